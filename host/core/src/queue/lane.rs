//! One plugin's part of the queue.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use super::clock::{Clock, Due};
use super::metrics::LaneMetrics;
use super::ready::{Ready, Spot};
use super::retry::Attempts;
use super::{AGEING_EVERY, Key, LaneConfig, LaneSnapshot, MAX_DELAY, Priority, Settle, Settled};
use crate::ids::{ObjectName, PluginName};
use crate::reason::{Reason, Reasons};

/// One plugin's part of the queue.
#[derive(Debug)]
pub(super) struct Lane {
    plugin: PluginName,
    config: LaneConfig,
    /// A closed lane lives on only for its tickets.
    open: bool,
    entries: HashMap<ObjectName, Entry>,
    ready: Ready,
    waiting: usize,
    stalled: usize,
    /// How many tickets the lane has given.
    given: u64,
    /// Tickets that are out, by number, and when they were given.
    out: BTreeMap<u64, Instant>,
    metrics: LaneMetrics,
}

/// What is known of a key. A key of which there is nothing to know has no entry.
#[derive(Debug, Default)]
struct Entry {
    state: EntryState,
    attempts: Attempts,
}

#[derive(Debug, Default)]
enum EntryState {
    /// Nothing is planned; only the attempts are remembered.
    #[default]
    Idle,
    Waiting(Due, Wish),
    Ready(Spot, Wish),
    /// A ticket is out.
    InWork(Work),
}

#[derive(Debug)]
struct Work {
    ticket: u64,
    /// How and why the ticket was given.
    wish: Wish,
    /// What was asked for in the meantime.
    again: Option<(Instant, Wish)>,
    /// The object went in the meantime.
    forgotten: bool,
}

/// How and why a run is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) priority: Priority,
    pub(super) reasons: Reasons,
}

/// What a ticket is made of.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) key: Key,
    pub(super) wish: Wish,
    pub(super) attempt: u32,
    pub(super) waited: Duration,
}

impl Lane {
    pub(super) fn new(plugin: &PluginName, config: LaneConfig, metrics: LaneMetrics) -> Self {
        Self {
            plugin: plugin.clone(),
            config,
            open: true,
            entries: HashMap::new(),
            ready: Ready::default(),
            waiting: 0,
            stalled: 0,
            given: 0,
            out: BTreeMap::new(),
            metrics,
        }
    }

    /// Opens it again after it was closed.
    pub(super) fn reopen(&mut self, config: LaneConfig, metrics: LaneMetrics) {
        self.open = true;
        self.metrics = metrics;
        self.configure(config);
    }

    /// Changes it; attempts begin anew.
    pub(super) fn configure(&mut self, config: LaneConfig) {
        self.config = config;
        self.stalled = 0;
        self.entries.retain(|_, entry| {
            entry.attempts = Attempts::default();
            !matches!(entry.state, EntryState::Idle)
        });
    }

    /// Drops everything but the locks of keys in work.
    pub(super) fn close(&mut self, clock: &mut Clock) {
        self.open = false;
        for entry in self.entries.values() {
            if let EntryState::Waiting(due, _) = entry.state {
                clock.cancel(due);
            }
        }
        self.entries.retain(|_, entry| {
            entry.attempts = Attempts::default();
            match &mut entry.state {
                EntryState::InWork(work) => {
                    work.again = None;
                    true
                }
                _ => false,
            }
        });
        self.ready = Ready::default();
        self.waiting = 0;
        self.stalled = 0;
    }

    /// Whether nothing of it is left to keep.
    pub(super) fn is_over(&self) -> bool {
        !self.open && self.out.is_empty()
    }

    /// Whether it can give a ticket.
    pub(super) fn can_give(&self) -> bool {
        self.open && !self.ready.is_empty() && self.out.len() < self.config.concurrency as usize
    }

    pub(super) fn weight(&self) -> u32 {
        self.config.weight.max(1)
    }

    /// Asks for a run of a key.
    pub(super) fn push(&mut self, name: &ObjectName, after: Duration, wish: Wish, clock: &mut Clock) {
        if !self.open {
            return;
        }
        if wish.reasons.contains(Reason::Swap) || wish.reasons.contains(Reason::Config) {
            self.change_attempts(name, |attempts| *attempts = Attempts::default());
        }
        if !after.is_zero() {
            self.metrics.retries.inc();
        }
        let at = clock.now + after.min(MAX_DELAY);
        match self.entries.get_mut(name).map(|entry| &mut entry.state) {
            None | Some(EntryState::Idle) => self.plan(name, at, wish, clock),
            Some(EntryState::Waiting(due, known)) => {
                let (old, known) = (*due, *known);
                clock.cancel(old);
                self.waiting -= 1;
                let (at, wish) = merge((old.at, known), (at, wish));
                self.plan(name, at, wish, clock);
            }
            Some(EntryState::Ready(spot, known)) => {
                known.reasons.merge(wish.reasons);
                if wish.priority > known.priority {
                    known.priority = wish.priority;
                    self.metrics.moved(spot.priority, wish.priority);
                    *spot = self.ready.raise(name, *spot, wish.priority, clock);
                }
            }
            Some(EntryState::InWork(work)) => {
                work.forgotten = false;
                let asked = (at, wish);
                work.again = Some(work.again.map_or(asked, |known| merge(known, asked)));
            }
        }
    }

    /// A timer of the lane has come due.
    pub(super) fn due(&mut self, name: &ObjectName, clock: &mut Clock) {
        if let Some(Entry { state: EntryState::Waiting(_, wish), .. }) = self.entries.get(name) {
            let wish = *wish;
            self.waiting -= 1;
            self.plan(name, clock.now, wish, clock);
        }
    }

    /// The object is gone.
    pub(super) fn forget(&mut self, name: &ObjectName, clock: &mut Clock) {
        self.change_attempts(name, |attempts| *attempts = Attempts::default());
        match self.entries.get_mut(name).map(|entry| &mut entry.state) {
            Some(EntryState::InWork(work)) => {
                work.again = None;
                work.forgotten = true;
                return;
            }
            Some(EntryState::Waiting(due, _)) => {
                clock.cancel(*due);
                self.waiting -= 1;
            }
            Some(EntryState::Ready(spot, _)) => {
                self.metrics.left(spot.priority);
                self.ready.remove(name, *spot);
            }
            Some(EntryState::Idle) | None => {}
        }
        self.entries.remove(name);
    }

    /// Gives a ticket for the entry whose turn it is.
    pub(super) fn give(&mut self, clock: &mut Clock) -> Option<Given> {
        let ageing = (self.given + 1).is_multiple_of(AGEING_EVERY);
        let aged = if ageing { self.ready.oldest_below() } else { None };
        let name = aged.or(self.ready.first())?.clone();
        let in_turn = aged.is_none();
        let entry = self.entries.get_mut(&name)?;
        let EntryState::Ready(spot, wish) = entry.state else { return None };
        self.ready.remove(&name, spot);
        if in_turn {
            self.ready.end_turn(&name, spot.priority, clock);
        }
        self.given += 1;
        let ticket = self.given;
        self.out.insert(ticket, clock.now);
        entry.state = EntryState::InWork(Work { ticket, wish, again: None, forgotten: false });
        let waited = clock.now.saturating_duration_since(spot.since);
        self.metrics.left(spot.priority);
        self.metrics.queue_duration.observe(waited.as_secs_f64());
        let attempt = entry.attempts.failures().saturating_add(1);
        Some(Given { key: Key { plugin: self.plugin.clone(), name }, wish, attempt, waited })
    }

    /// A ticket came back. With `stopped` nothing is planned any more.
    pub(super) fn settle(
        &mut self,
        name: &ObjectName,
        settle: Settle,
        stopped: bool,
        clock: &mut Clock,
        rng: &mut impl Rng,
    ) -> Settled {
        let nothing = Settled { attempts: 0, stalled: false, next: None };
        let Some(entry) = self.entries.get_mut(name) else { return nothing };
        let EntryState::InWork(work) = std::mem::take(&mut entry.state) else { return nothing };
        if let Some(since) = self.out.remove(&work.ticket) {
            self.metrics.work_duration.observe(clock.now.saturating_duration_since(since).as_secs_f64());
        }
        let retry = self.config.retry;
        let priority = work.wish.priority;
        let wish = |priority, reason: Reason| Wish { priority, reasons: reason.into() };
        let mut delay = None;
        self.change_attempts(name, |attempts| match settle {
            Settle::Done => *attempts = Attempts::default(),
            Settle::After(after) => {
                *attempts = Attempts::default();
                delay = Some((after.min(MAX_DELAY), wish(priority.min(Priority::NORMAL), Reason::Timer)));
            }
            Settle::Again(reason) => delay = Some((Duration::ZERO, wish(priority, reason))),
            Settle::Hold(after) => delay = Some((after.min(MAX_DELAY), work.wish)),
            Settle::Failed { retry: kind } => {
                let after = attempts.failed(clock.now, kind, &retry, rng);
                delay = after.map(|after| (after, wish(priority, Reason::Retry)));
            }
        });
        let attempts = self.entries.get(name).map(|entry| entry.attempts).unwrap_or_default();
        let mut settled =
            Settled { attempts: attempts.failures(), stalled: attempts.stalled(&retry), next: None };
        if stopped || !self.open || (work.forgotten && work.again.is_none()) {
            self.change_attempts(name, |attempts| *attempts = Attempts::default());
            self.entries.remove(name);
            return settled;
        }
        let planned = delay.map(|(after, wish)| {
            if !after.is_zero() {
                self.metrics.retries.inc();
            }
            (clock.now + after, wish)
        });
        let next = match (planned, work.again) {
            (Some(planned), Some(again)) => Some(merge(planned, again)),
            (planned, again) => planned.or(again),
        };
        match next {
            Some((at, wish)) => {
                settled.next = Some(at.saturating_duration_since(clock.now));
                self.plan(name, at, wish, clock);
            }
            None if attempts.is_clear() => _ = self.entries.remove(name),
            None => {}
        }
        settled
    }

    /// The sum of the ages of all tickets that are out, and the age of the oldest.
    pub(super) fn unfinished(&self, now: Instant) -> (Duration, Duration) {
        let ages = self.out.values().map(|&since| now.saturating_duration_since(since));
        (ages.clone().sum(), ages.max().unwrap_or_default())
    }

    pub(super) fn metrics(&self) -> &LaneMetrics {
        &self.metrics
    }

    pub(super) fn snapshot(&self, now: Instant) -> LaneSnapshot {
        let oldest = self.ready.oldest().and_then(|name| match self.entries.get(name)?.state {
            EntryState::Ready(spot, _) => Some(now.saturating_duration_since(spot.since)),
            _ => None,
        });
        LaneSnapshot {
            plugin: self.plugin.clone(),
            ready: self.ready.len(),
            waiting: self.waiting,
            in_work: self.out.len(),
            oldest,
            stalled: self.stalled,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Makes the entry ready, or lets it wait until then.
    fn plan(&mut self, name: &ObjectName, at: Instant, wish: Wish, clock: &mut Clock) {
        let state = if at <= clock.now {
            self.metrics.entered(wish.priority);
            EntryState::Ready(self.ready.insert(name, wish.priority, clock), wish)
        } else {
            self.waiting += 1;
            EntryState::Waiting(clock.set(at, Key { plugin: self.plugin.clone(), name: name.clone() }), wish)
        };
        match self.entries.get_mut(name) {
            Some(entry) => entry.state = state,
            None => _ = self.entries.insert(name.clone(), Entry { state, attempts: Attempts::default() }),
        }
    }

    /// The only way in which attempts change, so that the count of stalled keys is right.
    fn change_attempts(&mut self, name: &ObjectName, change: impl FnOnce(&mut Attempts)) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let before = entry.attempts.stalled(&self.config.retry);
        change(&mut entry.attempts);
        let after = entry.attempts.stalled(&self.config.retry);
        self.stalled = self.stalled + usize::from(after) - usize::from(before);
    }
}

/// Two wishes for one run: the sooner time, the higher priority, all reasons. A timer or retry
/// that did not come due is absorbed by what comes before it, and is no reason for that.
fn merge(one: (Instant, Wish), other: (Instant, Wish)) -> (Instant, Wish) {
    let (first, later) = if one.0 <= other.0 { (one, other) } else { (other, one) };
    let mut reasons = first.1.reasons;
    let absorbed = |reason| first.0 < later.0 && matches!(reason, Reason::Timer | Reason::Retry);
    for reason in later.1.reasons.iter().filter(|&reason| !absorbed(reason)) {
        reasons.insert(reason);
    }
    (first.0, Wish { priority: first.1.priority.max(later.1.priority), reasons })
}
