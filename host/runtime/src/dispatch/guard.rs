//! Containment of what keeps breaking (feature D4): a quarantine per object, a circuit per plugin.
//!
//! Retries are bounded by the queue's back-off; events are not. An object whose runs break again
//! and again is quarantined: until its next retry is due only a change of the object itself or a
//! person makes it run. A plugin most of whose runs break, on many objects, is held as a whole, and
//! let through one run at a time until one does not break.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::queue::Key;
use reeve_core::reason::{Reason, Reasons};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// So many runs in a row must have broken before an object is quarantined: as many as retries
/// before `Stalled`.
pub(super) const QUARANTINE_AFTER: u32 = 5;
/// The last runs of a plugin that its circuit looks at.
pub(super) const CIRCUIT_WINDOW: usize = 32;
/// The circuit opens when at least so many different objects broke in the window …
pub(super) const CIRCUIT_OBJECTS: usize = 8;
/// … and at least this share of the window's runs, in percent.
pub(super) const CIRCUIT_PERCENT: usize = 80;
/// How long a circuit stays open at first, and at most; it doubles in between.
pub(super) const CIRCUIT_OPEN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_mins(5));
/// How long a key waits behind the run that tries whether the plugin is well again.
const BEHIND_TRIAL: Duration = Duration::from_secs(1);

/// What must be held back, and for how long.
pub(crate) struct Guard {
    state: Mutex<State>,
    metrics: Metrics,
}

#[derive(Default)]
struct State {
    poison: HashMap<Key, Poison>,
    circuits: HashMap<PluginName, Circuit>,
}

struct Poison {
    in_a_row: u32,
    until: Option<Instant>,
}

#[derive(Default)]
struct Circuit {
    recent: VecDeque<(ObjectName, bool)>,
    state: CircuitState,
}

#[derive(Default, Clone, PartialEq, Eq)]
enum CircuitState {
    #[default]
    Closed,
    Open {
        until: Instant,
        pause: Duration,
    },
    Trial {
        by: ObjectName,
        pause: Duration,
    },
}

/// How a run ended, as the guard sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The guest broke; the next run is planned after this.
    Broke { next: Option<Duration> },
    /// It did not break, whether it succeeded or not.
    Whole,
}

impl Guard {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { state: Mutex::default(), metrics }
    }

    /// How long this run must wait; `None` lets it through.
    pub(crate) fn hold(&self, key: &Key, reasons: Reasons) -> Option<Duration> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let let_through = [
            Reason::Updated,
            Reason::Created,
            Reason::Manual,
            Reason::External,
            Reason::Swap,
            Reason::Config,
        ];
        if let Some(until) = state.poison.get(key).and_then(|poison| poison.until)
            && until > now
            && !let_through.iter().any(|reason| reasons.contains(*reason))
        {
            return Some(until - now);
        }
        let circuit = state.circuits.get_mut(&key.plugin)?;
        match &circuit.state {
            CircuitState::Closed => None,
            CircuitState::Open { until, .. } if *until > now => Some(*until - now),
            CircuitState::Open { pause, .. } => {
                circuit.state = CircuitState::Trial { by: key.name.clone(), pause: *pause };
                None
            }
            CircuitState::Trial { by, .. } if *by == key.name => None,
            CircuitState::Trial { .. } => Some(BEHIND_TRIAL),
        }
    }

    /// Takes note of how a run ended.
    pub(crate) fn note(&self, key: &Key, ended: Ended) {
        let mut state = self.state.lock();
        let broke = matches!(ended, Ended::Broke { .. });
        let before = state.poison.get(key).is_some_and(Poison::is_quarantined);
        if let Ended::Broke { next } = ended {
            let poison = state.poison.entry(key.clone()).or_insert(Poison { in_a_row: 0, until: None });
            poison.in_a_row += 1;
            poison.until =
                next.filter(|_| poison.in_a_row >= QUARANTINE_AFTER).map(|next| Instant::now() + next);
            if poison.in_a_row == QUARANTINE_AFTER {
                tracing::warn!(plugin = %key.plugin, object = %key.name, "the runs of this object keep breaking: it is quarantined, and runs only when it changes or its next retry is due");
            }
        } else {
            state.poison.remove(key);
        }
        if state.poison.get(key).is_some_and(Poison::is_quarantined) != before {
            self.count(&state, &key.plugin);
        }
        self.judge(state.circuits.entry(key.plugin.clone()).or_default(), key, broke);
    }

    /// The run under way ended without an outcome: a trial starts over.
    pub(crate) fn abandoned(&self, key: &Key) {
        let mut state = self.state.lock();
        if let Some(circuit) = state.circuits.get_mut(&key.plugin)
            && let CircuitState::Trial { by, pause } = &circuit.state
            && *by == key.name
        {
            circuit.state = CircuitState::Open { until: Instant::now(), pause: *pause };
        }
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &Key) {
        {
            let mut state = self.state.lock();
            if state.poison.remove(key).is_some_and(|poison| poison.is_quarantined()) {
                self.count(&state, &key.plugin);
            }
        }
        self.abandoned(key);
    }

    fn count(&self, state: &State, plugin: &PluginName) {
        let quarantined =
            state.poison.iter().filter(|(key, poison)| key.plugin == *plugin && poison.is_quarantined());
        let count = i64::try_from(quarantined.count()).unwrap_or(i64::MAX);
        self.metrics.quarantined.with_label_values(&[plugin.as_str()]).set(count);
    }

    /// Another version took over, or the plugin went: it starts with a clean slate.
    pub(crate) fn reset(&self, plugin: &PluginName) {
        let mut state = self.state.lock();
        state.poison.retain(|key, _| key.plugin != *plugin);
        state.circuits.remove(plugin);
        self.metrics.quarantined.with_label_values(&[plugin.as_str()]).set(0);
        self.metrics.circuit_open.with_label_values(&[plugin.as_str()]).set(0);
    }

    fn judge(&self, circuit: &mut Circuit, key: &Key, broke: bool) {
        if circuit.recent.len() == CIRCUIT_WINDOW {
            circuit.recent.pop_front();
        }
        circuit.recent.push_back((key.name.clone(), broke));
        let pause = match &circuit.state {
            CircuitState::Trial { by, .. } if *by == key.name && !broke => {
                circuit.recent.clear();
                circuit.state = CircuitState::Closed;
                self.metrics.circuit_open.with_label_values(&[key.plugin.as_str()]).set(0);
                tracing::info!(plugin = %key.plugin, "a run of the plugin did not break: its runs go on");
                return;
            }
            CircuitState::Trial { by, pause } if *by == key.name => (*pause * 2).min(CIRCUIT_OPEN.1),
            CircuitState::Closed if circuit.is_bad() => CIRCUIT_OPEN.0,
            _ => return,
        };
        circuit.state = CircuitState::Open { until: Instant::now() + pause, pause };
        self.metrics.circuit_open.with_label_values(&[key.plugin.as_str()]).set(1);
        tracing::warn!(plugin = %key.plugin, pause_seconds = pause.as_secs(), "most runs of the plugin break: all of its objects are held for a while");
    }
}

impl Poison {
    fn is_quarantined(&self) -> bool {
        self.until.is_some()
    }
}

impl Circuit {
    fn is_bad(&self) -> bool {
        let broken: Vec<_> = self.recent.iter().filter(|(_, broke)| *broke).map(|(name, _)| name).collect();
        let objects: HashSet<_> = broken.iter().collect();
        objects.len() >= CIRCUIT_OBJECTS && broken.len() * 100 >= self.recent.len() * CIRCUIT_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { plugin: "p".parse().unwrap(), name: ObjectName::namespaced("n", name) }
    }

    fn guard() -> Guard {
        Guard::new(Metrics::new(&prometheus::Registry::new()).unwrap())
    }

    const BROKE: Ended = Ended::Broke { next: Some(Duration::from_mins(1)) };

    #[tokio::test(start_paused = true)]
    async fn a_poison_object_runs_only_when_it_changes_or_its_retry_is_due() {
        let guard = guard();
        for _ in 0..QUARANTINE_AFTER {
            assert_eq!(guard.hold(&key("a"), Reason::Child.into()), None);
            guard.note(&key("a"), BROKE);
        }
        assert_eq!(guard.hold(&key("a"), Reason::Child.into()), Some(Duration::from_mins(1)));
        assert_eq!(guard.hold(&key("b"), Reason::Child.into()), None);
        for reason in [Reason::Updated, Reason::Manual, Reason::Swap] {
            assert_eq!(guard.hold(&key("a"), reason.into()), None);
        }
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(guard.hold(&key("a"), Reason::Retry.into()), None);
        guard.note(&key("a"), Ended::Whole);
        assert_eq!(guard.hold(&key("a"), Reason::Child.into()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_mostly_breaks_is_held_and_tried_again() {
        let guard = guard();
        for number in 0..CIRCUIT_OBJECTS {
            guard.note(&key(&number.to_string()), BROKE);
        }
        let reasons = Reasons::from(Reason::Updated);
        assert_eq!(guard.hold(&key("x"), reasons), Some(CIRCUIT_OPEN.0));
        tokio::time::advance(CIRCUIT_OPEN.0).await;
        assert_eq!(guard.hold(&key("x"), reasons), None, "one run tries");
        assert_eq!(guard.hold(&key("y"), reasons), Some(BEHIND_TRIAL));
        guard.note(&key("x"), BROKE);
        assert_eq!(guard.hold(&key("y"), reasons), Some(CIRCUIT_OPEN.0 * 2));
        tokio::time::advance(CIRCUIT_OPEN.0 * 2).await;
        assert_eq!(guard.hold(&key("y"), reasons), None);
        guard.note(&key("y"), Ended::Whole);
        assert_eq!(guard.hold(&key("x"), reasons), None);
        assert_eq!(guard.hold(&key("z"), reasons), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_object_opens_no_circuit() {
        let guard = guard();
        for _ in 0..CIRCUIT_WINDOW * 2 {
            guard.note(&key("bad"), BROKE);
        }
        assert_eq!(guard.hold(&key("good"), Reason::Updated.into()), None);
    }
}
