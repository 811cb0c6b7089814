//! Waiting for a condition instead of a time.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, MissedTickBehavior};

/// How often a condition is looked at: often enough not to slow a test, seldom enough to leave the
/// machine to what is waited for.
const EVERY: Duration = Duration::from_millis(25);

/// How long anything in a scenario may take that should happen soon. Generous: two cores may be
/// busy with a compiler beside us, and only a failure ever waits that long.
pub const SOON: Duration = Duration::from_secs(30);

/// A state from which the condition can never be reached: the wait ends at once.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fatal(String);

impl Fatal {
    /// As the error of a check.
    pub fn error(text: String) -> anyhow::Error {
        Self(text).into()
    }
}

/// Waits until `check` is ok, and returns its value. Its error says what is still missing; the
/// last one becomes the failure.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut check: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let end = Instant::now() + within;
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match check().await {
            Ok(value) => return Ok(value),
            Err(missing) if missing.is::<Fatal>() => {
                return Err(missing).with_context(|| format!("it will never be: {what}"));
            }
            Err(missing) if Instant::now() >= end => {
                return Err(missing).with_context(|| format!("after {within:?} still not: {what}"));
            }
            Err(_) => {}
        }
    }
}

/// As [`eventually`], within [`SOON`].
pub async fn soon<T>(what: &str, check: impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    eventually(what, SOON, check).await
}

/// Makes sure that `check` stays ok for that long: for what must not happen. Only this way of
/// waiting costs its full time.
pub async fn stays(
    what: &str,
    during: Duration,
    mut check: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = check().await {
            bail!("it did not stay so: {what}: after {:?}: {error:#}", begin.elapsed());
        }
        if begin.elapsed() >= during {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_state_is_the_failure() {
        let mut looks = 0;
        let failed = eventually("five looks", Duration::from_secs(1), async || {
            looks += 1;
            ensure!(looks < 0, "{looks} looks");
            Ok(())
        })
        .await
        .unwrap_err();
        assert_eq!(format!("{failed:#}"), "after 1s still not: five looks: 41 looks");
        assert_eq!(eventually("now", Duration::ZERO, async || Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_to_stay_is_looked_at_all_the_time() {
        let begin = Instant::now();
        let failed = stays("young", Duration::from_secs(5), async || {
            ensure!(begin.elapsed() < Duration::from_secs(1), "too old");
            Ok(())
        })
        .await
        .unwrap_err();
        assert_eq!(failed.to_string(), "it did not stay so: young: after 1s: too old");
        stays("young", Duration::from_secs(5), async || Ok(())).await.unwrap();
    }
}
