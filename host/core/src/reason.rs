//! Why a reconcile runs.

/// One reason. Hints for logs, metrics and plugins; the result must not depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The primary is new to the host.
    Created,
    /// The primary changed.
    Updated,
    /// The primary is gone.
    Deleted,
    /// A child changed.
    Child,
    /// Another watched object changed.
    Mapped,
    /// A requeue-after came due.
    Timer,
    /// The resync interval passed.
    Resync,
    /// The admin port asked for it.
    External,
    /// A new version of the plugin took over.
    Swap,
    /// The plugin's configuration changed.
    Config,
    /// Annotation `reeve.dev/reconcile-at` or the CLI.
    Manual,
    /// What the last run waited for changed or timed out.
    Wait,
    /// The back-off of a failure passed.
    Retry,
    /// The answer of a write is there.
    Answer,
    /// A write was refused as stale, and the object was refreshed.
    Conflict,
}

/// A small set of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reasons(u16);

// === impl Reason ===

impl Reason {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 15] = [
        Self::Created,
        Self::Updated,
        Self::Deleted,
        Self::Child,
        Self::Mapped,
        Self::Timer,
        Self::Resync,
        Self::External,
        Self::Swap,
        Self::Config,
        Self::Manual,
        Self::Wait,
        Self::Retry,
        Self::Answer,
        Self::Conflict,
    ];

    /// The word of the contract.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
            Self::Child => "child",
            Self::Mapped => "mapped",
            Self::Timer => "timer",
            Self::Resync => "resync",
            Self::External => "external",
            Self::Swap => "swap",
            Self::Config => "config",
            Self::Manual => "manual",
            Self::Wait => "wait",
            Self::Retry => "retry",
            Self::Answer => "answer",
            Self::Conflict => "conflict",
        }
    }
}

// === impl Reasons ===

impl Reasons {
    /// Adds one.
    pub fn insert(&mut self, reason: Reason) {
        self.0 |= 1 << reason as u8;
    }

    /// Adds all of another set.
    pub fn merge(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether it is in the set.
    pub fn contains(self, reason: Reason) -> bool {
        self.0 & (1 << reason as u8) != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// In the order of [`Reason::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Reason> {
        Reason::ALL.into_iter().filter(move |reason| self.contains(*reason))
    }
}

impl From<Reason> for Reasons {
    fn from(reason: Reason) -> Self {
        let mut set = Self::default();
        set.insert(reason);
        set
    }
}

impl std::fmt::Display for Reasons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, reason) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            f.write_str(reason.as_str())?;
        }
        Ok(())
    }
}
