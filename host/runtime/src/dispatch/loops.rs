//! Hot loops (feature C9): a plugin that makes itself run again by its own writes.
//!
//! The echo of a child's write runs the owner once, and in that run a plugin that has reached its
//! desired state writes nothing. One that writes again, and again, is in a loop. From then on what
//! its children and other objects tell waits until [`SLOWED`] has passed since its last run; a
//! change of the object itself does not wait.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::ids::PluginName;
use reeve_core::plan::{Condition, ConditionStatus};
use reeve_core::queue::Key;
use reeve_core::reason::{Reason, Reasons};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// So many runs in a row that were caused by the plugin's own writes and wrote again are a loop.
/// A plugin that makes its children one by one needs as many runs as it has children.
pub(super) const LOOP_AFTER: u32 = 5;
/// The least time between two runs of an object in a loop: two a minute.
pub(super) const SLOWED: Duration = Duration::from_secs(30);
/// The condition that names a loop.
pub(super) const CONDITION: &str = "HotLoop";

/// Which keys cause their own runs.
pub(crate) struct Loops {
    keys: Mutex<HashMap<Key, State>>,
    metrics: Metrics,
}

#[derive(Default)]
struct State {
    /// The echo of an own write is in the queue, or in work.
    echo: bool,
    /// Runs in a row that an echo caused and that wrote.
    streak: u32,
    phase: Phase,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Well,
    Slowed {
        /// `None` after a run that somebody else asked for: what follows it shows whether the loop
        /// goes on, and does not wait.
        last_run: Option<Instant>,
    },
    /// It ended, and the condition still says otherwise.
    Ended,
}

/// What becomes of a key's loop after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing new.
    Same,
    /// The loop is over; one more run takes the condition back.
    Over,
}

impl State {
    fn is_slowed(&self) -> bool {
        matches!(self.phase, Phase::Slowed { .. })
    }
}

impl Loops {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { keys: Mutex::default(), metrics }
    }

    /// How long a change may not make a key run. `own`: the change is the echo of its own write.
    pub(crate) fn delay(&self, key: &Key, reason: Reason, own: bool) -> Duration {
        let mut keys = self.keys.lock();
        if own {
            keys.entry(key.clone()).or_default().echo = true;
        }
        match keys.get(key).map(|state| state.phase) {
            Some(Phase::Slowed { last_run }) if matches!(reason, Reason::Child | Reason::Mapped) => last_run
                .map_or(Duration::ZERO, |last| (last + SLOWED).saturating_duration_since(Instant::now())),
            _ => Duration::ZERO,
        }
    }

    /// A run begins; says whether an own write caused it. Give the answer to [`Self::ended`].
    pub(crate) fn begins(&self, key: &Key, reasons: Reasons) -> bool {
        let mut keys = self.keys.lock();
        let Some(state) = keys.get_mut(key) else { return false };
        if let Phase::Slowed { last_run } = &mut state.phase {
            let related = |reason| matches!(reason, Reason::Child | Reason::Mapped);
            *last_run = reasons.iter().all(related).then(Instant::now);
        }
        std::mem::take(&mut state.echo)
    }

    /// The condition that the run's plan must carry, if any.
    pub(crate) fn condition(&self, key: &Key) -> Option<Condition> {
        let (status, reason, text) = match self.keys.lock().get(key)?.phase {
            Phase::Well => return None,
            Phase::Slowed { .. } => (
                ConditionStatus::True,
                "OwnWrites",
                format!(
                    "its own writes make it run again; it is slowed to one run in {} s: make it write the same for the same input",
                    SLOWED.as_secs()
                ),
            ),
            Phase::Ended => {
                (ConditionStatus::False, "Settled", "its own writes no longer make it run again".to_owned())
            }
        };
        let message = format!("plugin {}: {text}", key.plugin);
        Some(Condition { kind: CONDITION.to_owned(), status, reason: reason.to_owned(), message })
    }

    /// A run was committed with so many writes.
    pub(crate) fn ended(&self, key: &Key, caused_by_echo: bool, writes: u32) -> After {
        let mut keys = self.keys.lock();
        let state = keys.entry(key.clone()).or_default();
        let slowed = state.is_slowed();
        let mut after = After::Same;
        match state.phase {
            Phase::Slowed { .. } if writes == 0 => {
                (state.streak, state.phase, after) = (0, Phase::Ended, After::Over);
                tracing::info!(plugin = %key.plugin, object = %key.name, "the hot loop is over");
            }
            Phase::Slowed { .. } => {}
            Phase::Ended => state.phase = Phase::Well,
            Phase::Well if caused_by_echo && writes > 0 => {
                state.streak += 1;
                if state.streak >= LOOP_AFTER {
                    state.phase = Phase::Slowed { last_run: Some(Instant::now()) };
                    self.metrics.hot_loops.with_label_values(&[key.plugin.as_str()]).inc();
                    tracing::warn!(
                        plugin = %key.plugin, object = %key.name, runs = state.streak,
                        "hot loop: the plugin's own writes make it run again; it is slowed to one run in {} s", SLOWED.as_secs()
                    );
                }
            }
            Phase::Well => state.streak = 0,
        }
        let now_slowed = state.is_slowed();
        if !state.echo && state.streak == 0 && state.phase == Phase::Well {
            keys.remove(key);
        }
        if now_slowed != slowed {
            self.count(&keys, &key.plugin);
        }
        after
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &Key) {
        let mut keys = self.keys.lock();
        if keys.remove(key).is_some_and(|state| state.is_slowed()) {
            self.count(&keys, &key.plugin);
        }
    }

    /// Another version took over, or the plugin went. What a condition says is taken back later.
    pub(crate) fn reset(&self, plugin: &PluginName) {
        let mut keys = self.keys.lock();
        keys.retain(|key, state| {
            if key.plugin == *plugin && matches!(state.phase, Phase::Slowed { .. }) {
                (state.streak, state.phase) = (0, Phase::Ended);
            }
            key.plugin != *plugin || state.phase == Phase::Ended
        });
        self.count(&keys, plugin);
    }

    fn count(&self, keys: &HashMap<Key, State>, plugin: &PluginName) {
        let slowed = keys
            .iter()
            .filter(|(key, state)| key.plugin == *plugin && matches!(state.phase, Phase::Slowed { .. }));
        self.metrics
            .hot_loop_objects
            .with_label_values(&[plugin.as_str()])
            .set(i64::try_from(slowed.count()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use reeve_core::ids::ObjectName;

    use super::*;

    fn key() -> Key {
        Key { plugin: "p".parse().unwrap(), name: ObjectName::namespaced("n", "a") }
    }

    fn loops() -> Loops {
        Loops::new(Metrics::new(&prometheus::Registry::new()).unwrap())
    }

    /// One run that wrote so often; its writes echo.
    fn run(loops: &Loops, writes: u32) -> After {
        let echo = loops.begins(&key(), Reason::Child.into());
        if writes > 0 {
            loops.delay(&key(), Reason::Child, true);
        }
        loops.ended(&key(), echo, writes)
    }

    #[tokio::test(start_paused = true)]
    async fn reaching_the_desired_state_is_no_loop() {
        let loops = loops();
        for _ in 0..20 {
            run(&loops, 4);
            run(&loops, 1);
            run(&loops, 0);
        }
        assert_eq!(loops.condition(&key()), None);
        assert!(loops.keys.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_slowed_named_and_ended() {
        let loops = loops();
        for _ in 0..=LOOP_AFTER {
            assert_eq!(loops.delay(&key(), Reason::Child, false), Duration::ZERO);
            run(&loops, 1);
        }
        assert_eq!(loops.delay(&key(), Reason::Child, true), SLOWED);
        assert_eq!(loops.delay(&key(), Reason::Updated, false), Duration::ZERO);
        assert_eq!(loops.condition(&key()).unwrap().status, ConditionStatus::True);
        assert_eq!(loops.metrics.hot_loops.with_label_values(&["p"]).get(), 1);
        tokio::time::advance(SLOWED).await;
        assert_eq!(loops.delay(&key(), Reason::Child, true), Duration::ZERO);
        assert_eq!(run(&loops, 1), After::Same);
        assert_eq!(loops.delay(&key(), Reason::Mapped, false), SLOWED);
        // A run for a change of the object may be followed by one of its own writes.
        let echo = loops.begins(&key(), Reason::Updated.into());
        assert_eq!(loops.delay(&key(), Reason::Child, true), Duration::ZERO);
        loops.ended(&key(), echo, 1);
        assert_eq!(run(&loops, 0), After::Over);
        assert_eq!(loops.condition(&key()).unwrap().status, ConditionStatus::False);
        run(&loops, 1);
        assert_eq!(loops.condition(&key()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn runs_that_others_cause_are_no_loop() {
        let loops = loops();
        for _ in 0..LOOP_AFTER * 3 {
            let echo = loops.begins(&key(), Reason::Child.into());
            assert_eq!(loops.ended(&key(), echo, 1), After::Same);
        }
        assert_eq!(loops.condition(&key()), None);
    }
}
