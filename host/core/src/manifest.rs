//! What a plugin says of itself: the JSON that `describe` returns.
//!
//! Unknown fields are refused, so that a plugin for a newer host is not half understood.
//! Everything has a default but the name, the version and the primary kind.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::grant::Verb;
use crate::gvk::Gvk;
use crate::ids::PluginName;
use crate::predicate::Predicate;

/// The most bytes of a manifest.
pub const MAX_MANIFEST_BYTES: usize = 256 * 1024;
/// The most watches, indexes, or write declarations of one manifest.
pub const MAX_DECLARATIONS: usize = 64;

/// A plugin's manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// The plugin's identity, a DNS label.
    pub name: PluginName,
    /// The plugin's own version, free text of at most 64 bytes.
    pub version: String,
    /// One sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The SDK that built it, for example `reeve-sdk 0.1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sdk: Option<String>,
    /// The kind whose objects are reconciled.
    pub primary: Primary,
    /// Every other kind that is read or that triggers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watches: Vec<Watch>,
    /// Writes beside children, status and finalizer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<WriteAccess>,
    /// Indexes over watched kinds, for `index:<name>` filters and mapping.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<Index>,
    /// When to run again without a change; default 10 h, each with ±10 % jitter; 0 is never.
    #[serde(default = "default_resync", rename = "resyncSeconds", with = "seconds")]
    pub resync: Duration,
    /// How failures are retried.
    #[serde(default)]
    pub retry: Retry,
    /// What one run may use.
    #[serde(default)]
    pub limits: Limits,
    /// How the status is written.
    #[serde(default)]
    pub status: StatusStrategy,
    /// How long a finalizer may be held before it is reported; default 15 min.
    #[serde(default = "default_finalizer_limit", rename = "finalizerLimitSeconds", with = "seconds")]
    pub finalizer_limit: Duration,
    /// Keeps `metadata.managedFields` in the cached objects of this plugin's kinds.
    #[serde(default)]
    pub managed_fields: bool,
}

/// The primary kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Primary {
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Only objects with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Only objects with these fields (what the server's field selectors can do).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<String>,
    /// Which changes trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<Predicate>,
    /// Runs once more, without a primary, when the object is gone.
    #[serde(default)]
    pub when_gone: bool,
}

/// Another kind that is read or that triggers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watch {
    /// The name that `map` is called with; default is the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// How its changes find primaries.
    pub relation: Relation,
    /// Only objects with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Only objects with these fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<String>,
    /// Only `metadata` is watched and can be read.
    #[serde(default)]
    pub metadata_only: bool,
    /// Which changes trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<Predicate>,
}

/// How a change of a watched object finds primaries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Relation {
    /// The primary is its controller. The plugin may apply and delete such children.
    Owned,
    /// As `owned`, and any owner reference triggers.
    OwnedByAny,
    /// The value of this label is the name of a primary in the same namespace.
    Label(String),
    /// Primaries of the same namespace (or cluster-scoped) whose value in this index, declared
    /// over the primary kind, is the object's name.
    Index(String),
    /// The plugin's `map` export says which.
    Map,
    /// It never triggers.
    Read,
}

/// Writes that are no children, status or finalizer of the primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteAccess {
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// What is done.
    pub verbs: BTreeSet<Verb>,
    /// With which subresources; empty means the object itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<String>,
}

/// An index over a watched kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Index {
    /// Unique per kind.
    pub name: String,
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// RFC 6901; `*` as a token stands for every element of an array. Strings are indexed as they
    /// are, numbers and booleans as JSON writes them, the rest is not indexed.
    pub pointer: String,
}

/// How failures are retried (feature D2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// The first delay; 1 s, doubled with each failure.
    pub base_ms: u64,
    /// The longest delay; 5 min.
    pub cap_ms: u64,
    /// Failures until the object is `Stalled`; 5.
    pub max_attempts: u32,
    /// What happens then.
    pub on_exhausted: OnExhausted,
}

/// What happens to an object after its last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub enum OnExhausted {
    /// Its delays go on doubling to the cap.
    #[default]
    Slow,
    /// It is left until it changes.
    Stop,
}

/// What one run may use (features A5, D3, F6). The host's ceiling applies beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Linear memory in MiB; 64.
    pub memory_mib: u32,
    /// From start to end, in ms; 30 s.
    pub deadline_ms: u64,
    /// Keys in work at once; 4.
    pub concurrency: u32,
    /// Log lines of one run; 256.
    pub log_lines: u32,
    /// Events of one run; 16.
    pub events: u32,
    /// Host calls of one run; 100,000.
    pub host_calls: u64,
    /// Bytes staged in one run in KiB; 8,192.
    pub staged_kib: u32,
    /// Children of one run; 1,000.
    pub children: u32,
}

/// How the status is written (feature C4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub enum StatusStrategy {
    /// A merge patch of the difference.
    #[default]
    Merge,
    /// Server-side apply with the plugin's field manager.
    Apply,
    /// A replace with the resourceVersion that the run read.
    Update,
}

/// Why a manifest is refused.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Larger than [`MAX_MANIFEST_BYTES`].
    #[error("the manifest has {0} bytes, more than the {MAX_MANIFEST_BYTES} allowed: shorten it")]
    TooLarge(usize),
    /// A field that this host does not know.
    #[error(
        "the manifest has a field that this host does not know ({0}): a newer host is needed, or the field is misspelt"
    )]
    UnknownField(String),
    /// Not JSON or not of the manifest's shape.
    #[error("the manifest is not readable: {0}")]
    Json(String),
    /// Readable, but it contradicts itself.
    #[error("the manifest is not valid: {0}")]
    Invalid(String),
}

// === impl Manifest ===

impl Manifest {
    /// Reads and checks a manifest.
    pub fn parse(json: &str) -> Result<Self, ManifestError> {
        if json.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge(json.len()));
        }
        let manifest: Self = serde_json::from_str(json).map_err(|error| {
            let text = error.to_string();
            if text.starts_with("unknown field") || text.starts_with("unknown variant") {
                ManifestError::UnknownField(text)
            } else {
                ManifestError::Json(text)
            }
        })?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Every kind that is read: the primary's first.
    pub fn read_kinds(&self) -> impl Iterator<Item = Gvk> {
        std::iter::once(self.primary.gvk()).chain(self.watches.iter().map(Watch::gvk))
    }
}

// === impl Limits ===

impl Limits {
    /// The deadline of one run.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: 64,
            deadline_ms: 30_000,
            concurrency: 4,
            log_lines: 256,
            events: 16,
            host_calls: 100_000,
            staged_kib: 8_192,
            children: 1_000,
        }
    }
}

// === impl Retry ===

impl Default for Retry {
    fn default() -> Self {
        Self { base_ms: 1_000, cap_ms: 300_000, max_attempts: 5, on_exhausted: OnExhausted::Slow }
    }
}

// === impl Watch and the other declarations ===

impl Primary {
    /// The kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::from_api_version(&self.api_version, &self.kind)
    }
}

impl Watch {
    /// The kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::from_api_version(&self.api_version, &self.kind)
    }

    /// The name that `map` is called with.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.kind)
    }
}

impl WriteAccess {
    /// The kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::from_api_version(&self.api_version, &self.kind)
    }
}

impl Index {
    /// The kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::from_api_version(&self.api_version, &self.kind)
    }
}

impl Relation {
    /// Whether objects of the watched kind are children of the primary.
    pub fn is_owned(&self) -> bool {
        matches!(self, Self::Owned | Self::OwnedByAny)
    }
}

fn default_resync() -> Duration {
    Duration::from_hours(10)
}

fn default_finalizer_limit() -> Duration {
    Duration::from_mins(15)
}

/// Durations as whole seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.as_secs())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_secs)
    }
}

mod check;
#[cfg(test)]
mod tests;
