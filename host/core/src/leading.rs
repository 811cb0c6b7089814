//! The right to write.
//!
//! Invariant: every write takes a [`Leading`], and it is checked at the moment of sending. This
//! bounds late writes, it cannot exclude them: a request that was sent in time may still be
//! carried out by the server later.

use std::time::Duration;

use tokio::time::Instant;

/// A value that exists only while this process may write.
#[derive(Debug, Clone)]
pub struct Leading(Term);

#[derive(Debug, Clone)]
enum Term {
    /// Without election: the operator promises that this is the only host.
    Solo,
    /// Until a moment counted from before the renew request was sent.
    Until(tokio::sync::watch::Receiver<Option<Instant>>),
}

/// The right to write has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this host no longer holds the Lease, so nothing more is written")]
pub struct LostLease;

impl Leading {
    /// Without election.
    pub fn solo() -> Self {
        Self(Term::Solo)
    }

    /// As long as the sender, the Lease's renewer, says so; `None` there means "lost".
    pub fn until(deadline: tokio::sync::watch::Receiver<Option<Instant>>) -> Self {
        Self(Term::Until(deadline))
    }

    /// How long a request may take that is sent now, at most `limit`.
    pub fn check(&self, limit: Duration) -> Result<Duration, LostLease> {
        match &self.0 {
            Term::Solo => Ok(limit),
            Term::Until(receiver) => {
                let deadline = (*receiver.borrow()).ok_or(LostLease)?;
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() { Err(LostLease) } else { Ok(left.min(limit)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_bounds_requests_and_ends() {
        let second = Duration::from_secs(1);
        assert_eq!(Leading::solo().check(second * 10), Ok(second * 10));
        let (sender, receiver) = tokio::sync::watch::channel(Some(Instant::now() + second * 3));
        let leading = Leading::until(receiver);
        assert_eq!(leading.check(second * 10), Ok(second * 3));
        assert_eq!(leading.check(second), Ok(second));
        tokio::time::advance(second * 3).await;
        assert_eq!(leading.check(second), Err(LostLease));
        sender.send_replace(Some(Instant::now() + second));
        assert_eq!(leading.check(second * 10), Ok(second));
        sender.send_replace(None);
        assert_eq!(leading.check(second), Err(LostLease));
    }
}
