//! All lanes, and which of them gives the next ticket.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::clock::Clock;
use super::lane::{Given, Lane, Wish};
use super::{Key, LaneConfig, LaneSnapshot, Push, QueueMetrics, Settle, Settled};
use crate::ids::{ObjectName, PluginName};

/// What a ticket costs a lane of weight 1. Large enough that heavy weights still differ, and small
/// enough that 64 bits last for years.
const TICKET_COST: u64 = 1 << 20;

/// The queue's whole state. Its operations are synchronous and take O(log n).
#[derive(Debug)]
pub(super) struct State {
    lanes: BTreeMap<PluginName, Share>,
    /// Lanes that can give a ticket, the one that had the least for its weight first.
    givers: BTreeSet<(u64, PluginName)>,
    /// What the lane that gave the last ticket had had.
    level: u64,
    clock: Clock,
    out: usize,
    stopped: bool,
    rng: StdRng,
    metrics: QueueMetrics,
}

/// A lane and what it has had.
#[derive(Debug)]
struct Share {
    lane: Lane,
    had: u64,
    gives: bool,
}

/// What there is for somebody who asks for a ticket.
#[derive(Debug)]
pub(super) enum Offer {
    /// A ticket, and whether there would be another one.
    Ticket(Given, bool),
    /// Nothing before this moment, or before something changes.
    Wait(Option<Instant>),
    /// Never again.
    Stopped,
}

impl State {
    pub(super) fn new(metrics: QueueMetrics, seed: u64) -> Self {
        Self {
            lanes: BTreeMap::new(),
            givers: BTreeSet::new(),
            level: 0,
            clock: Clock::new(),
            out: 0,
            stopped: false,
            rng: StdRng::seed_from_u64(seed),
            metrics,
        }
    }

    /// Makes ready what has come due by now. Every operation begins with it.
    pub(super) fn advance(&mut self, now: Instant) {
        self.clock.now = now;
        while let Some(key) = self.clock.pop_due() {
            self.with_lane(&key.plugin, |lane, clock| lane.due(&key.name, clock));
        }
    }

    pub(super) fn open(&mut self, plugin: &PluginName, config: LaneConfig) {
        match self.lanes.get_mut(plugin) {
            Some(share) if share.lane.is_open() => share.lane.configure(config),
            Some(share) => share.lane.reopen(config, self.metrics.open(plugin)),
            None => {
                let lane = Lane::new(plugin, config, self.metrics.open(plugin));
                self.lanes.insert(plugin.clone(), Share { lane, had: 0, gives: false });
            }
        }
        self.review(plugin);
    }

    pub(super) fn close(&mut self, plugin: &PluginName) {
        let Some(share) = self.lanes.get_mut(plugin) else { return };
        if share.lane.is_open() {
            share.lane.close(&mut self.clock);
            self.metrics.close(share.lane.metrics());
        }
        self.review(plugin);
    }

    pub(super) fn push(&mut self, key: Key, push: Push) {
        if self.stopped {
            return;
        }
        let Key { plugin, name } = key;
        let wish = Wish { priority: push.priority, reasons: push.reason.into() };
        self.with_lane(&plugin, |lane, clock| lane.push(&name, push.after, wish, clock));
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.with_lane(&key.plugin, |lane, clock| lane.forget(&key.name, clock));
    }

    pub(super) fn offer(&mut self) -> Offer {
        if self.stopped {
            return Offer::Stopped;
        }
        while let Some((had, plugin)) = self.givers.pop_first() {
            let Some(share) = self.lanes.get_mut(&plugin) else { continue };
            share.gives = false;
            self.level = had;
            share.had = had + (TICKET_COST / u64::from(share.lane.weight())).max(1);
            let given = share.lane.give(&mut self.clock);
            self.review(&plugin);
            if let Some(given) = given {
                self.out += 1;
                return Offer::Ticket(given, !self.givers.is_empty());
            }
        }
        Offer::Wait(self.clock.next_due())
    }

    pub(super) fn settle(&mut self, plugin: &PluginName, name: &ObjectName, settle: Settle) -> Settled {
        self.out = self.out.saturating_sub(1);
        let stopped = self.stopped;
        let settled = match self.lanes.get_mut(plugin) {
            Some(share) => share.lane.settle(name, settle, stopped, &mut self.clock, &mut self.rng),
            None => Settled { attempts: 0, stalled: false, next: None },
        };
        self.review(plugin);
        settled
    }

    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether no ticket is out.
    pub(super) fn is_idle(&self) -> bool {
        self.out == 0
    }

    pub(super) fn snapshot(&self) -> Vec<LaneSnapshot> {
        let open = self.lanes.values().filter(|share| share.lane.is_open());
        open.map(|share| share.lane.snapshot(self.clock.now)).collect()
    }

    /// Brings the gauges up to date that grow by themselves.
    pub(super) fn refresh(&self) {
        for share in self.lanes.values().filter(|share| share.lane.is_open()) {
            let (sum, longest): (Duration, Duration) = share.lane.unfinished(self.clock.now);
            share.lane.metrics().unfinished.set(sum.as_secs_f64());
            share.lane.metrics().longest.set(longest.as_secs_f64());
        }
    }

    fn with_lane(&mut self, plugin: &PluginName, change: impl FnOnce(&mut Lane, &mut Clock)) {
        if let Some(share) = self.lanes.get_mut(plugin) {
            change(&mut share.lane, &mut self.clock);
            self.review(plugin);
        }
    }

    /// Puts a lane among those that can give a ticket, or takes it out; drops it when it is over.
    fn review(&mut self, plugin: &PluginName) {
        let Some(share) = self.lanes.get_mut(plugin) else { return };
        let gives = share.lane.can_give();
        if gives && !share.gives {
            // Who had nothing to give does not save up for later.
            share.had = share.had.max(self.level);
            self.givers.insert((share.had, plugin.clone()));
        } else if !gives && share.gives {
            self.givers.remove(&(share.had, plugin.clone()));
        }
        share.gives = gives;
        if share.lane.is_over() {
            self.lanes.remove(plugin);
        }
    }
}
