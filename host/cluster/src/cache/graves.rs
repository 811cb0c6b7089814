//! What is known to be gone, so that nothing older brings it back.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use reeve_core::ids::{ResourceVersion, Uid};
use tokio::time::Instant;

use super::vouchers::StreamId;

/// The most graves of one store. Only what is still under way can come back (a list from a lagging
/// API server, the answer of a write), so this is far more than a burst of deletes in that time.
pub(crate) const MAX_GRAVES: usize = 16_384;

/// How long a grave is kept. No answer and no API server's cache is that late.
pub(crate) const GRAVE_LIFE: Duration = Duration::from_mins(10);

/// The graves of one store. A UID never comes back after its object was deleted; an object that
/// only left a stream's selector comes back to it in a newer version.
#[derive(Default)]
pub(crate) struct Graves {
    by_uid: HashMap<Uid, Grave>,
    /// Oldest first; a grave that was dug again stands in it twice.
    order: VecDeque<(Instant, Uid)>,
}

struct Grave {
    at: Instant,
    why: Why,
}

enum Why {
    /// Deleted.
    Gone,
    /// It left selectors.
    Left {
        /// Every version before this one is history.
        past: ResourceVersion,
        /// Not in these streams up to these versions.
        streams: Vec<(StreamId, ResourceVersion)>,
    },
}

// === impl Graves ===

impl Graves {
    /// The object was deleted.
    pub(crate) fn bury(&mut self, uid: &Uid) {
        self.dig(uid, Why::Gone);
    }

    /// The object is not in a stream's selector at `version`, and changed at `past` or later.
    pub(crate) fn left(
        &mut self,
        uid: &Uid,
        stream: StreamId,
        version: ResourceVersion,
        past: ResourceVersion,
    ) {
        let (before, mut streams) = match self.by_uid.remove(uid).map(|grave| grave.why) {
            Some(Why::Gone) => return self.dig(uid, Why::Gone),
            Some(Why::Left { past, streams }) => (past, streams),
            None => (past, Vec::with_capacity(1)),
        };
        match streams.iter_mut().find(|(known, _)| *known == stream) {
            Some((_, known)) => *known = version.max(*known),
            None => streams.push((stream, version)),
        }
        self.dig(uid, Why::Left { past: past.max(before), streams });
    }

    /// Whether this version is known to be history: the object was deleted or changed since.
    pub(crate) fn is_past(&self, uid: &Uid, version: ResourceVersion) -> bool {
        match self.by_uid.get(uid).map(|grave| &grave.why) {
            Some(Why::Gone) => true,
            Some(Why::Left { past, .. }) => version < *past,
            None => false,
        }
    }

    /// Whether this version is known not to be in the stream any more.
    pub(crate) fn has_left(&self, uid: &Uid, stream: StreamId, version: ResourceVersion) -> bool {
        match self.by_uid.get(uid).map(|grave| &grave.why) {
            Some(Why::Gone) => true,
            Some(Why::Left { streams, .. }) => {
                streams.iter().any(|(known, until)| *known == stream && version <= *until)
            }
            None => false,
        }
    }

    /// The server's history went back (a restored backup): what was deleted may live.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn dig(&mut self, uid: &Uid, why: Why) {
        let now = Instant::now();
        self.by_uid.insert(uid.clone(), Grave { at: now, why });
        self.order.push_back((now, uid.clone()));
        while let Some((at, uid)) = self.order.front()
            && (self.order.len() > MAX_GRAVES || now.duration_since(*at) > GRAVE_LIFE)
        {
            if self.by_uid.get(uid).is_some_and(|grave| grave.at == *at) {
                self.by_uid.remove(uid);
            }
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn graves_are_bounded_in_number_and_time() {
        let mut graves = Graves::default();
        let uid = |index: usize| Uid::new(&index.to_string());
        let last = ResourceVersion(u64::MAX);
        for index in 0..=MAX_GRAVES {
            graves.bury(&uid(index));
            tokio::time::advance(Duration::from_nanos(1)).await;
        }
        assert!(!graves.is_past(&uid(0), last) && graves.is_past(&uid(1), last));
        tokio::time::advance(GRAVE_LIFE).await;
        graves.bury(&uid(MAX_GRAVES + 1));
        assert!(!graves.is_past(&uid(1), last) && graves.by_uid.len() <= 2);
    }

    #[test]
    fn an_object_that_left_a_selector_comes_back_to_it_in_a_newer_version_only() {
        let mut graves = Graves::default();
        let (uid, version) = (Uid::new("u"), ResourceVersion);
        graves.left(&uid, StreamId(1), version(5), version(4));
        assert!(graves.is_past(&uid, version(3)) && !graves.is_past(&uid, version(4)));
        assert!(graves.has_left(&uid, StreamId(1), version(5)));
        assert!(!graves.has_left(&uid, StreamId(1), version(6)));
        assert!(!graves.has_left(&uid, StreamId(2), version(5)), "another stream may have it");
        graves.left(&uid, StreamId(1), version(3), version(2));
        assert!(
            graves.has_left(&uid, StreamId(1), version(5)) && graves.is_past(&uid, version(3)),
            "never back"
        );
        graves.bury(&uid);
        graves.left(&uid, StreamId(1), version(9), version(9));
        assert!(graves.is_past(&uid, version(100)), "deleted stays deleted");
    }
}
