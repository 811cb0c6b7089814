//! How long a stream waits after trouble.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

/// The first pause, and the longest: feature B1, and the numbers of client-go.
const BASE: Duration = Duration::from_millis(800);
const CAP: Duration = Duration::from_secs(30);

/// After this long without trouble the next pause is the first again.
const RESET_AFTER: Duration = Duration::from_mins(2);

/// Doubling pauses with up to 100 % jitter, so that many streams do not come back at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Instant>,
}

// === impl Backoff ===

impl Backoff {
    /// The pause after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) > RESET_AFTER) {
            self.failures = 0;
        }
        let pause = BASE.saturating_mul(1 << self.failures.min(6)).min(CAP);
        self.failures += 1;
        let pause = pause.mul_f64(1.0 + rand::rng().random::<f64>()).min(CAP);
        self.last = Some(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn w7_pauses_double_from_800_ms_to_30_s_and_start_over_after_two_quiet_minutes() {
        let mut backoff = Backoff::default();
        for step in [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            let base = Duration::from_millis(step);
            let pause = backoff.next();
            assert!(pause >= base && pause <= (base * 2).min(CAP), "{pause:?} for {base:?}");
            tokio::time::advance(pause).await;
        }
        tokio::time::advance(RESET_AFTER + Duration::from_millis(1)).await;
        assert!(backoff.next() <= BASE * 2);
    }
}
