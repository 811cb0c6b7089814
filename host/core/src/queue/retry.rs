//! How long after a failure a key runs again (feature D2).

use std::time::Duration;

use rand::{Rng, RngExt};
use tokio::time::Instant;

use super::{FailureRetry, MAX_DELAY};
use crate::manifest::{OnExhausted, Retry};

/// The longest back-off of an outage: what the watches wait at most, so that work goes on about
/// when they do.
const OUTAGE_CAP: Duration = Duration::from_secs(30);

/// The shortest pause before a retry, whatever a failure asks for: ten a second of one key is no
/// busy loop.
const LEAST_RETRY_AFTER: Duration = Duration::from_millis(100);

/// What is remembered of a key's failures in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attempts {
    failures: u32,
    outages: u32,
    /// Until when the last failure backs off. A failure before that is of a run that an event
    /// caused: it neither counts nor moves the end.
    window: Option<Instant>,
}

impl Attempts {
    /// Failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether there is anything to remember.
    pub(super) fn is_clear(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the last attempt has been made.
    pub(super) fn stalled(&self, retry: &Retry) -> bool {
        self.failures > 0 && self.failures >= retry.max_attempts
    }

    /// Counts a failure; the time until the next attempt, `None` when there is none.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        kind: FailureRetry,
        retry: &Retry,
        rng: &mut impl Rng,
    ) -> Option<Duration> {
        if kind == FailureRetry::Outage {
            self.outages = self.outages.saturating_add(1);
            return Some(jittered(exponential(retry, self.outages).min(OUTAGE_CAP), rng));
        }
        self.outages = 0;
        let left = self.window.and_then(|end| end.checked_duration_since(now)).filter(|left| !left.is_zero());
        if left.is_none() {
            self.failures = self.failures.saturating_add(1);
        }
        let exhausted = self.stalled(retry) && retry.on_exhausted == OnExhausted::Stop;
        let delay = match kind {
            FailureRetry::Transient { retry_after: Some(after) } if !exhausted => {
                // It wins, but it is no way around the brake: never a busy loop, and once the key
                // is stalled not sooner than the back-off.
                let least = if self.stalled(retry) {
                    jittered(exponential(retry, self.failures), rng)
                } else {
                    LEAST_RETRY_AFTER
                };
                Some(after.clamp(least, MAX_DELAY.max(least)))
            }
            FailureRetry::Transient { retry_after: None } if !exhausted => {
                left.or_else(|| Some(jittered(exponential(retry, self.failures), rng)))
            }
            _ => None,
        };
        self.window = delay.map(|delay| now + delay);
        delay
    }
}

/// The base, doubled with each failure after the first, up to the cap.
fn exponential(retry: &Retry, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(63);
    let ms = retry.base_ms.saturating_mul(1 << doublings).min(retry.cap_ms);
    Duration::from_millis(ms).min(MAX_DELAY)
}

/// ±10 %, so that what failed together does not come back together.
pub(super) fn jittered(delay: Duration, rng: &mut impl Rng) -> Duration {
    delay.mul_f64(rng.random_range(0.9..=1.1))
}
