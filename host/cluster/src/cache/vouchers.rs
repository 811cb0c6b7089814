//! Which streams stand for an entry of a store.

/// One stream in the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StreamId(pub(crate) u32);

/// The streams that vouch for an entry. Nearly always there is one.
pub(super) enum Vouchers {
    One(StreamId),
    Many(Box<[StreamId]>),
}

// === impl Vouchers ===

impl Vouchers {
    pub(super) fn new(streams: Vec<StreamId>) -> Option<Self> {
        match streams[..] {
            [] => None,
            [one] => Some(Self::One(one)),
            _ => Some(Self::Many(streams.into())),
        }
    }

    fn all(&self) -> &[StreamId] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    pub(super) fn contains(&self, id: StreamId) -> bool {
        self.all().contains(&id)
    }

    pub(super) fn add(&mut self, id: StreamId) {
        if !self.contains(id) {
            *self = Self::Many(self.all().iter().copied().chain([id]).collect());
        }
    }

    /// Whether another one is left. The last one stays, as the entry goes with it.
    pub(super) fn remove(&mut self, id: StreamId) -> bool {
        let left: Vec<StreamId> = self.all().iter().copied().filter(|known| *known != id).collect();
        Self::new(left).map(|left| *self = left).is_some()
    }
}
