//! The state machine of a stream.
//!
//! Pure: no IO and no time. Each state carries what is legal in it; [`State::after`] says where
//! trouble leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reeve_core::ids::{ObjectName, ResourceVersion};
use reeve_core::object::SharedObject;

use super::events::Events;

/// A watch that the server fails with 5xx this often in a row is given up for a new list: what the
/// server cannot do from this version it may do from a newer one.
const MAX_REFUSALS: u8 = 3;

/// Where a stream is.
#[derive(Debug)]
pub(super) enum State {
    /// It does not know yet how the kind is served.
    Resolving,
    /// It reads pages.
    Listing {
        /// How fresh the list must be.
        from: Freshness,
        /// The next page; `None` for the first.
        next: Option<String>,
        /// The temporary store: what was read so far.
        found: Found,
    },
    /// It reads the initial events of a watch. What was read is given up with the watch, so it is
    /// not kept here.
    Streaming {
        /// How fresh the initial state must be.
        from: Freshness,
    },
    /// It follows what happens after a version.
    Watching {
        /// The last version that was told.
        at: ResourceVersion,
        /// How often in a row the server could not.
        refusals: u8,
        /// The open watch, if there is one.
        events: Option<Events>,
    },
}

/// The temporary store of a list.
pub(super) type Found = BTreeMap<ObjectName, SharedObject>;

/// How fresh a list must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Whatever the server has at hand.
    Any,
    /// Not older than this.
    NotOlderThan(ResourceVersion),
    /// The latest: a quorum read.
    Latest,
}

/// How a stream reads everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Watch-list: as the first events of its watch.
    Stream,
    /// Pages.
    List,
}

/// What can go wrong. Texts are for people and say the same for the same trouble, so that it is
/// logged once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The cluster does not serve the kind.
    NotServed(Arc<str>),
    /// A path was answered 404: what discovery said no longer holds.
    Missing,
    /// 401 or 403.
    Forbidden(Arc<str>),
    /// 410: the version or page is too old.
    Expired,
    /// The version is newer than what the server has.
    TooLarge,
    /// 429 or 503, with the wish to be left alone for a while.
    Busy(Option<Duration>),
    /// 5xx.
    Failed(Arc<str>),
    /// No connection, or it broke.
    Unreachable(Arc<str>),
    /// The server does not do watch-list.
    NoStreaming,
    /// An answer that makes no sense.
    Bad(Arc<str>),
    /// The watch ended at once and told nothing.
    TooShort,
    /// Nothing came for so long that the connection must be dead.
    Silent,
    /// Watch-list never said that the initial events were all.
    Endless,
}

/// How long to wait before going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    None,
    Backoff,
    /// What the server asked for; without a number, a back-off.
    Asked(Option<Duration>),
    /// Until a missing kind is looked for again.
    Recheck,
}

// === impl State ===

impl State {
    /// Reads everything anew. Watch-list starts from the latest state as client-go does: it costs
    /// the server no more, as it is served from its cache either way.
    pub(super) fn first(method: Method) -> Self {
        match method {
            Method::Stream => Self::Streaming { from: Freshness::Latest },
            Method::List => Self::list(Freshness::Any),
        }
    }

    fn read(method: Method, from: Freshness) -> Self {
        match method {
            Method::Stream => Self::Streaming { from },
            Method::List => Self::list(from),
        }
    }

    fn list(from: Freshness) -> Self {
        Self::Listing { from, next: None, found: Found::new() }
    }

    /// Where trouble leads. `method` is how this stream reads; it changes when watch-list turns out
    /// not to be there.
    pub(super) fn after(self, trouble: &Trouble, method: &mut Method) -> (Self, Pause) {
        match trouble {
            Trouble::NotServed(_) | Trouble::Missing => (Self::Resolving, Pause::Recheck),
            Trouble::NoStreaming | Trouble::Endless => {
                *method = Method::List;
                (Self::first(Method::List), Pause::None)
            }
            Trouble::Expired => (self.reread(*method), Pause::Backoff),
            Trouble::TooLarge => (Self::read(*method, Freshness::Latest), Pause::Backoff),
            Trouble::Busy(pause) => (self.disconnected(), Pause::Asked(*pause)),
            Trouble::Failed(_) => (self.refused(*method), Pause::Backoff),
            Trouble::Forbidden(_) | Trouble::Unreachable(_) | Trouble::Bad(_) | Trouble::TooShort => {
                (self.disconnected(), Pause::Backoff)
            }
            Trouble::Silent => (self.disconnected(), Pause::None),
        }
    }

    /// A version or page is too old: first not older than what was told, then the latest.
    fn reread(self, method: Method) -> Self {
        match self {
            Self::Resolving => Self::Resolving,
            Self::Watching { at, .. } => Self::read(method, Freshness::NotOlderThan(at)),
            Self::Listing { .. } | Self::Streaming { .. } => Self::read(method, Freshness::Latest),
        }
    }

    fn refused(self, method: Method) -> Self {
        match self {
            Self::Watching { at, refusals, .. } if refusals + 1 < MAX_REFUSALS => {
                Self::Watching { at, refusals: refusals + 1, events: None }
            }
            Self::Watching { at, .. } => Self::read(method, Freshness::NotOlderThan(at)),
            other => other,
        }
    }

    /// The same without the open watch. A list goes on with its page.
    fn disconnected(self) -> Self {
        match self {
            Self::Watching { at, refusals, .. } => Self::Watching { at, refusals, events: None },
            other => other,
        }
    }
}

// === impl Trouble ===

impl Trouble {
    /// The metric label.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NotServed(_) => "not_served",
            Self::Missing => "not_found",
            Self::Forbidden(_) => "forbidden",
            Self::Expired => "expired",
            Self::TooLarge => "version_too_large",
            Self::Busy(_) => "too_many_requests",
            Self::Failed(_) => "server_error",
            Self::Unreachable(_) => "unreachable",
            Self::NoStreaming => "no_watch_list",
            Self::Bad(_) => "bad_answer",
            Self::TooShort => "short_watch",
            Self::Silent => "silent",
            Self::Endless => "no_initial_events_end",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: ResourceVersion = ResourceVersion(7);

    fn watching(refusals: u8) -> State {
        State::Watching { at: AT, refusals, events: None }
    }

    fn show(state: &State) -> String {
        match state {
            State::Resolving => "resolving".to_owned(),
            State::Listing { from, next, .. } => format!("listing {from:?} {next:?}"),
            State::Streaming { from } => format!("streaming {from:?}"),
            State::Watching { at, refusals, .. } => format!("watching {at} {refusals}"),
        }
    }

    #[track_caller]
    fn check(state: State, method: Method, trouble: &Trouble, expected: &str, pause: Pause) {
        let mut method = method;
        let (next, paused) = state.after(trouble, &mut method);
        assert_eq!((show(&next).as_str(), paused), (expected, pause));
    }

    #[test]
    fn trouble_leads_to_the_least_work_that_can_help() {
        use Method::{List, Stream};
        use Pause::{Asked, Backoff, None as Now, Recheck};
        let listing = |from| State::Listing { from, next: Some("p2".to_owned()), found: Found::new() };
        let (failed, broken) = (Trouble::Failed("500".into()), Trouble::Unreachable("refused".into()));
        let second = Duration::from_secs(1);
        // W2: 410 in the stream is a list not older than what was told.
        check(watching(0), List, &Trouble::Expired, "listing NotOlderThan(ResourceVersion(7)) None", Backoff);
        check(watching(0), Stream, &Trouble::Expired, "streaming NotOlderThan(ResourceVersion(7))", Backoff);
        // W3: 410 on the list is a quorum read.
        check(listing(Freshness::NotOlderThan(AT)), List, &Trouble::Expired, "listing Latest None", Backoff);
        check(
            State::Streaming { from: Freshness::Any },
            Stream,
            &Trouble::Expired,
            "streaming Latest",
            Backoff,
        );
        // W4: a version from the future is a quorum read too.
        check(watching(0), List, &Trouble::TooLarge, "listing Latest None", Backoff);
        // W5: 429 waits as asked and does not list again.
        check(watching(1), List, &Trouble::Busy(Some(second)), "watching 7 1", Asked(Some(second)));
        check(listing(Freshness::Any), List, &Trouble::Busy(None), "listing Any Some(\"p2\")", Asked(None));
        // W6: 500s retry, then list again.
        check(watching(0), List, &failed, "watching 7 1", Backoff);
        check(watching(2), List, &failed, "listing NotOlderThan(ResourceVersion(7)) None", Backoff);
        check(listing(Freshness::Any), List, &failed, "listing Any Some(\"p2\")", Backoff);
        // W7, W20: a dead connection goes on where it was.
        check(watching(0), List, &broken, "watching 7 0", Backoff);
        check(watching(0), List, &Trouble::Silent, "watching 7 0", Now);
        check(watching(0), List, &Trouble::TooShort, "watching 7 0", Backoff);
        // W9, W11: without watch-list, or without its end, pages.
        check(State::first(Stream), Stream, &Trouble::NoStreaming, "listing Any None", Now);
        check(State::first(Stream), Stream, &Trouble::Endless, "listing Any None", Now);
        // A kind that is gone is looked for again.
        check(watching(0), List, &Trouble::Missing, "resolving", Recheck);
        check(State::Resolving, List, &Trouble::NotServed("x".into()), "resolving", Recheck);
        check(State::Resolving, List, &broken, "resolving", Backoff);
    }
}
