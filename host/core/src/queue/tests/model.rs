//! The queue against a model that does everything by looking at everything.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::retry::jittered;
use super::*;
use crate::reason::Reasons;

#[derive(Debug, Clone)]
enum Op {
    Push { lane: usize, name: usize, push: Push },
    Take,
    Settle { ticket: prop::sample::Index, settle: Settle },
    Drop { ticket: prop::sample::Index },
    Forget { lane: usize, name: usize },
    Advance(Duration),
    Close(usize),
    Open { lane: usize, config: LaneConfig },
}

const PLUGINS: [&str; 3] = ["a", "b", "c"];
const NAMES: [&str; 7] = ["x/1", "x/2", "x/3", "y/1", "y/2", "z/1", "cluster"];

#[derive(Debug)]
struct Model {
    lanes: BTreeMap<usize, ModelLane>,
    level: u64,
    set: u64,
    /// Gives the same jitter as the queue's.
    rng: StdRng,
}

#[derive(Debug)]
struct ModelLane {
    config: LaneConfig,
    open: bool,
    keys: BTreeMap<ObjectName, ModelKey>,
    /// Ready names in the order in which they came, a raised one again at the end.
    fifo: Vec<ObjectName>,
    /// Ready names in the order in which they came.
    ages: Vec<ObjectName>,
    turns: BTreeMap<Priority, Vec<Option<Arc<str>>>>,
    given: u64,
    had: u64,
    gave: bool,
}

#[derive(Debug, Default, Clone)]
struct ModelKey {
    /// When it runs (again).
    plan: Option<Plan>,
    ready: bool,
    /// Priority and reasons of the ticket that is out.
    out: Option<(Priority, Reasons)>,
    forgotten: bool,
    failures: u32,
    outages: u32,
    window: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    at: Instant,
    set: u64,
    priority: Priority,
    reasons: Reasons,
}

impl ModelKey {
    fn reset(&mut self) {
        (self.failures, self.outages, self.window) = (0, 0, None);
    }

    fn merge(&mut self, new: Plan) {
        let Some(old) = self.plan else {
            self.plan = Some(new);
            return;
        };
        let mut merged = if old.at <= new.at { old } else { new };
        let absorbs = old.at != new.at;
        let late = if old.at <= new.at { new } else { old };
        for reason in late.reasons.iter() {
            if !(absorbs && [Reason::Timer, Reason::Retry].contains(&reason)) {
                merged.reasons.insert(reason);
            }
        }
        merged.priority = old.priority.max(new.priority);
        merged.set = new.set;
        self.plan = Some(merged);
    }
}

impl ModelLane {
    fn priority(&self, name: &ObjectName) -> Priority {
        self.keys[name].plan.unwrap().priority
    }

    fn make_ready(&mut self, name: &ObjectName) {
        self.keys.get_mut(name).unwrap().ready = true;
        self.ages.push(name.clone());
        self.enter(name);
    }

    fn enter(&mut self, name: &ObjectName) {
        self.fifo.push(name.clone());
        let turns = self.turns.entry(self.priority(name)).or_default();
        if !turns.contains(&name.namespace) {
            turns.push(name.namespace.clone());
        }
    }

    fn leave(&mut self, name: &ObjectName) {
        let priority = self.priority(name);
        self.fifo.retain(|known| known != name);
        let more = self
            .fifo
            .iter()
            .any(|known| known.namespace == name.namespace && self.priority(known) == priority);
        if !more {
            self.turns.get_mut(&priority).unwrap().retain(|namespace| *namespace != name.namespace);
        }
    }

    /// The name whose turn it is, and whether ageing chose it.
    fn choose(&self) -> (ObjectName, bool) {
        let top = self.fifo.iter().map(|name| self.priority(name)).max().unwrap();
        if (self.given + 1).is_multiple_of(AGEING_EVERY)
            && let Some(name) = self.ages.iter().find(|name| self.priority(name) < top)
        {
            return (name.clone(), true);
        }
        let namespace = &self.turns[&top][0];
        let mut names = self.fifo.iter();
        let name = names.find(|name| name.namespace == *namespace && self.priority(name) == top);
        (name.unwrap().clone(), false)
    }

    fn out(&self) -> usize {
        self.keys.values().filter(|key| key.out.is_some()).count()
    }

    fn gives(&self) -> bool {
        self.open && !self.fifo.is_empty() && self.out() < self.config.concurrency as usize
    }
}

impl Model {
    fn push(&mut self, lane: usize, name: &ObjectName, push: Push) {
        self.set += 1;
        let at = Instant::now() + push.after;
        let plan = Plan { at, set: self.set, priority: push.priority, reasons: push.reason.into() };
        let Some(lane) = self.lanes.get_mut(&lane).filter(|lane| lane.open) else { return };
        let key = lane.keys.entry(name.clone()).or_default();
        if matches!(push.reason, Reason::Swap | Reason::Config) {
            key.reset();
        }
        key.forgotten = false;
        if !key.ready {
            key.merge(plan);
            return;
        }
        let old = key.plan.unwrap();
        let mut reasons = old.reasons;
        reasons.merge(push.reason.into());
        let raised = Plan { priority: old.priority.max(push.priority), reasons, ..old };
        if raised.priority > old.priority {
            lane.leave(name);
            lane.keys.get_mut(name).unwrap().plan = Some(raised);
            lane.enter(name);
        } else {
            key.plan = Some(raised);
        }
    }

    /// What has come due is ready; what there is nothing to know of is gone.
    fn advance(&mut self) {
        let now = Instant::now();
        for lane in self.lanes.values_mut() {
            lane.keys.retain(|_, key| {
                key.plan.is_some()
                    || key.out.is_some()
                    || key.failures + key.outages > 0
                    || key.window.is_some()
            });
        }
        let mut due: Vec<_> = self
            .lanes
            .iter()
            .flat_map(|(&index, lane)| lane.keys.iter().map(move |(name, key)| (index, name, key)))
            .filter(|(_, _, key)| !key.ready && key.out.is_none())
            .filter_map(|(index, name, key)| key.plan.map(|plan| (plan.at, plan.set, index, name.clone())))
            .filter(|(at, ..)| *at <= now)
            .collect();
        due.sort();
        for (_, _, lane, name) in due {
            self.lanes.get_mut(&lane).unwrap().make_ready(&name);
        }
        self.lanes.retain(|_, lane| lane.open || lane.out() > 0);
        for lane in self.lanes.values_mut() {
            let gives = lane.gives();
            if gives && !lane.gave {
                lane.had = lane.had.max(self.level);
            }
            lane.gave = gives;
        }
    }

    fn take(&mut self) -> Option<(usize, ObjectName, Plan, u32)> {
        let givers = self.lanes.iter_mut().filter(|(_, lane)| lane.gives());
        let (&index, lane) = givers.min_by_key(|(index, lane)| (lane.had, **index))?;
        self.level = lane.had;
        lane.had += (1 << 20) / u64::from(lane.config.weight);
        let (name, aged) = lane.choose();
        let plan = lane.keys[&name].plan.unwrap();
        lane.leave(&name);
        lane.ages.retain(|known| *known != name);
        let turns = lane.turns.get_mut(&plan.priority).unwrap();
        if !aged && turns.first() == Some(&name.namespace) {
            turns.rotate_left(1);
        }
        lane.given += 1;
        let key = lane.keys.get_mut(&name).unwrap();
        (key.plan, key.ready, key.out, key.forgotten) =
            (None, false, Some((plan.priority, plan.reasons)), false);
        Some((index, name.clone(), plan, key.failures + 1))
    }

    fn settle(&mut self, lane: usize, name: &ObjectName, settle: Settle) -> Settled {
        let now = Instant::now();
        self.set += 1;
        let lane = self.lanes.get_mut(&lane).unwrap();
        let key = lane.keys.get_mut(name).unwrap();
        let (priority, reasons) = key.out.take().unwrap();
        let max_attempts = lane.config.retry.max_attempts;
        let next = match settle {
            Settle::Done => {
                key.reset();
                None
            }
            Settle::After(after) => {
                key.reset();
                Some((after, priority.min(Priority::NORMAL), Reason::Timer.into()))
            }
            Settle::Again(reason) => Some((Duration::ZERO, priority, reason.into())),
            Settle::Hold(after) => Some((after, priority, reasons)),
            Settle::Failed { retry: FailureRetry::Outage } => {
                key.outages += 1;
                let base = seconds(1 << (key.outages - 1).min(10))
                    .min(ms(lane.config.retry.cap_ms))
                    .min(seconds(30));
                Some((jittered(base, &mut self.rng), priority, Reason::Retry.into()))
            }
            Settle::Failed { retry } => {
                let left = key.window.filter(|end| *end > now).map(|end| end - now);
                key.outages = 0;
                key.failures += u32::from(left.is_none());
                let stop =
                    lane.config.retry.on_exhausted == OnExhausted::Stop && key.failures >= max_attempts;
                let after = match retry {
                    FailureRetry::Transient { .. } if stop => None,
                    FailureRetry::Transient { retry_after: Some(after) } => {
                        let least = if key.failures >= max_attempts {
                            let base =
                                seconds(1 << (key.failures - 1).min(10)).min(ms(lane.config.retry.cap_ms));
                            jittered(base, &mut self.rng)
                        } else {
                            ms(100)
                        };
                        Some(after.max(least))
                    }
                    FailureRetry::Transient { .. } if left.is_some() => left,
                    FailureRetry::Transient { .. } => {
                        let base = seconds(1 << (key.failures - 1).min(10)).min(ms(lane.config.retry.cap_ms));
                        Some(jittered(base, &mut self.rng))
                    }
                    _ => None,
                };
                key.window = after.map(|after| now + after);
                after.map(|after| (after, priority, Reason::Retry.into()))
            }
        };
        let (attempts, stalled) = (key.failures, key.failures >= max_attempts);
        if !lane.open || (key.forgotten && key.plan.is_none()) {
            *key = ModelKey::default();
            return Settled { attempts, stalled, next: None };
        }
        if let Some((after, priority, reasons)) = next {
            key.merge(Plan { at: now + after, set: self.set, priority, reasons });
        }
        let next = key.plan.map(|plan| plan.at.saturating_duration_since(now));
        Settled { attempts, stalled, next }
    }
}

fn names() -> impl Strategy<Value = usize> {
    0..NAMES.len()
}

fn lanes() -> impl Strategy<Value = usize> {
    0..PLUGINS.len()
}

fn delays() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => Just(Duration::ZERO), 1 => (1u64..20_000).prop_map(ms)]
}

fn pushes() -> impl Strategy<Value = Push> {
    let priorities = prop::sample::select(vec![Priority::LOW, Priority::NORMAL, Priority::HIGH]);
    let reasons = prop::sample::select(vec![Reason::Updated, Reason::Child, Reason::Timer, Reason::Swap]);
    (delays(), priorities, reasons).prop_map(|(after, priority, reason)| Push { after, priority, reason })
}

fn settles() -> impl Strategy<Value = Settle> {
    let failures = prop_oneof![
        4 => Just(FailureRetry::Transient { retry_after: None }),
        1 => (0u64..20_000).prop_map(|after| FailureRetry::Transient { retry_after: Some(ms(after)) }),
        1 => Just(FailureRetry::Outage),
        1 => Just(FailureRetry::Permanent),
    ];
    prop_oneof![
        3 => Just(Settle::Done),
        1 => delays().prop_map(Settle::After),
        1 => Just(Settle::Again(Reason::Conflict)),
        1 => delays().prop_map(Settle::Hold),
        4 => failures.prop_map(|retry| Settle::Failed { retry }),
    ]
}

fn configs() -> impl Strategy<Value = LaneConfig> {
    (0u32..4, 1u32..4, any::<bool>()).prop_map(|(concurrency, weight, stop)| LaneConfig {
        concurrency,
        weight,
        retry: Retry {
            on_exhausted: if stop { OnExhausted::Stop } else { OnExhausted::Slow },
            max_attempts: 3,
            cap_ms: 8_000,
            ..Retry::default()
        },
    })
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (lanes(), names(), pushes()).prop_map(|(lane, name, push)| Op::Push { lane, name, push }),
        10 => Just(Op::Take),
        8 => (any::<prop::sample::Index>(), settles()).prop_map(|(ticket, settle)| Op::Settle { ticket, settle }),
        1 => any::<prop::sample::Index>().prop_map(|ticket| Op::Drop { ticket }),
        1 => (lanes(), names()).prop_map(|(lane, name)| Op::Forget { lane, name }),
        5 => (1u64..5_000).prop_map(|time| Op::Advance(ms(time))),
        1 => lanes().prop_map(Op::Close),
        1 => (lanes(), configs()).prop_map(|(lane, config)| Op::Open { lane, config }),
    ]
}

/// Runs both, and compares what can be seen after every step.
struct Both {
    queue: Queue,
    model: Model,
    tickets: Vec<(usize, Ticket)>,
}

impl Both {
    fn key(lane: usize, name: usize) -> Key {
        key(PLUGINS[lane], NAMES[name])
    }

    async fn step(&mut self, op: Op) {
        match op {
            Op::Push { lane, name, push } => {
                self.queue.push(Self::key(lane, name), push);
                self.model.push(lane, &Self::key(lane, name).name, push);
            }
            Op::Take => self.take().await,
            Op::Settle { ticket, settle } if !self.tickets.is_empty() => {
                let (lane, ticket) = self.tickets.swap_remove(ticket.index(self.tickets.len()));
                let name = ticket.key().name.clone();
                let settled = ticket.settle(settle);
                assert_eq!(settled, self.model.settle(lane, &name, settle));
            }
            Op::Drop { ticket } if !self.tickets.is_empty() => {
                let (lane, ticket) = self.tickets.swap_remove(ticket.index(self.tickets.len()));
                let name = ticket.key().name.clone();
                drop(ticket);
                self.model.settle(lane, &name, failed());
            }
            Op::Settle { .. } | Op::Drop { .. } => {}
            Op::Forget { lane, name } => {
                self.queue.forget(&Self::key(lane, name));
                self.forget(lane, &Self::key(lane, name).name);
            }
            Op::Advance(time) => tokio::time::advance(time).await,
            Op::Close(lane) => {
                self.queue.close(&plugin(PLUGINS[lane]));
                if let Some(lane) = self.model.lanes.get_mut(&lane) {
                    lane.open = false;
                    lane.keys.retain(|_, key| key.out.is_some());
                    for key in lane.keys.values_mut() {
                        *key = ModelKey { out: key.out, forgotten: key.forgotten, ..ModelKey::default() };
                    }
                    (lane.fifo, lane.ages) = Default::default();
                    lane.turns.clear();
                }
            }
            Op::Open { lane, config } => {
                self.queue.open(&plugin(PLUGINS[lane]), config);
                let lane = self.model.lanes.entry(lane).or_insert_with(|| ModelLane {
                    config,
                    open: true,
                    keys: BTreeMap::new(),
                    fifo: Vec::new(),
                    ages: Vec::new(),
                    turns: BTreeMap::new(),
                    given: 0,
                    had: 0,
                    gave: false,
                });
                (lane.open, lane.config) = (true, config);
                lane.keys.values_mut().for_each(ModelKey::reset);
            }
        }
        self.model.advance();
        self.compare();
    }

    async fn take(&mut self) {
        let expected = self.model.take();
        let ticket = try_next(&self.queue).await;
        let seen = ticket
            .as_ref()
            .map(|ticket| (ticket.key().clone(), ticket.priority(), ticket.reasons(), ticket.attempt()));
        let wanted = expected.as_ref().map(|(lane, name, plan, attempt)| {
            let key = Key { plugin: plugin(PLUGINS[*lane]), name: name.clone() };
            (key, plan.priority, plan.reasons, *attempt)
        });
        assert_eq!(seen, wanted);
        if let Some(((lane, ..), ticket)) = expected.zip(ticket) {
            assert!(self.tickets.iter().all(|(_, out)| out.key() != ticket.key()), "two tickets of one key");
            self.tickets.push((lane, ticket));
        }
    }

    fn forget(&mut self, lane: usize, name: &ObjectName) {
        let Some(lane) = self.model.lanes.get_mut(&lane) else { return };
        let Some(key) = lane.keys.get(name) else { return };
        if key.ready {
            lane.leave(name);
            lane.ages.retain(|known| known != name);
        }
        let key = lane.keys.get_mut(name).unwrap();
        *key = ModelKey { out: key.out, forgotten: key.out.is_some(), ..ModelKey::default() };
    }

    fn compare(&self) {
        let open = self.model.lanes.iter().filter(|(_, lane)| lane.open);
        let expected: Vec<_> = open
            .map(|(&index, lane)| {
                let count =
                    |test: &dyn Fn(&ModelKey) -> bool| lane.keys.values().filter(|key| test(key)).count();
                (
                    plugin(PLUGINS[index]),
                    count(&|key| key.ready),
                    count(&|key| key.plan.is_some() && !key.ready && key.out.is_none()),
                    count(&|key| key.out.is_some()),
                    count(&|key| key.failures >= lane.config.retry.max_attempts),
                )
            })
            .collect();
        let seen: Vec<_> = self
            .queue
            .snapshot()
            .into_iter()
            .map(|lane| (lane.plugin, lane.ready, lane.waiting, lane.in_work, lane.stalled))
            .collect();
        assert_eq!(seen, expected);
    }
}

async fn run(ops: Vec<Op>, seed: u64) {
    let queue = Queue::with_seed(QueueMetrics::new(&Registry::new()).unwrap(), seed);
    let mut both = Both {
        queue,
        model: Model { lanes: BTreeMap::new(), level: 0, set: 0, rng: StdRng::seed_from_u64(seed) },
        tickets: Vec::new(),
    };
    for lane in 0..2 {
        let retry = Retry { max_attempts: 3, cap_ms: 8_000, ..Retry::default() };
        both.step(Op::Open { lane, config: LaneConfig { retry, ..config(2) } }).await;
    }
    for op in ops {
        both.step(op).await;
    }
    // No key is lost: with room, time, and good ends, everything that is planned runs.
    for lane in both.model.lanes.keys().copied().collect::<Vec<_>>() {
        if both.model.lanes[&lane].open {
            both.step(Op::Open { lane, config: config(100) }).await;
        }
    }
    both.step(Op::Advance(seconds(60))).await;
    loop {
        while let Some((lane, ticket)) = both.tickets.pop() {
            let name = ticket.key().name.clone();
            let settled = ticket.settle(Settle::Done);
            assert_eq!(settled, both.model.settle(lane, &name, Settle::Done));
            both.model.advance();
        }
        both.step(Op::Take).await;
        if both.tickets.is_empty() {
            break;
        }
    }
    assert!(both.model.lanes.values().all(|lane| lane.keys.values().all(|key| key.plan.is_none())));
    both.queue.drained().await;
    both.queue.shutdown();
    both.queue.push(Both::key(0, 0), now(Reason::Updated));
    assert!(both.queue.next().await.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_048, ..ProptestConfig::default() })]
    #[test]
    fn the_queue_does_what_the_model_does(ops in prop::collection::vec(ops(), 0..150), seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(run(ops, seed));
    }
}
