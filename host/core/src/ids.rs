//! The names of things: plugins, digests, objects, UIDs, resource versions.
//!
//! Each is a type of its own, so that no function takes two strings that could be swapped. The
//! `Display` of each is what stands in logs and metric labels.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

/// The identity of a plugin: its manifest name, a DNS label (RFC 1123: at most 63 of `a-z`,
/// `0-9` and `-`, beginning and ending with a letter or digit).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PluginName(Arc<str>);

/// Why a text is no [`PluginName`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "plugin name {0:?} is not a DNS label: use 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
)]
pub struct InvalidPluginName(String);

/// The SHA-256 of a plugin's bytes as they were delivered; shown as `sha256:<64 hex digits>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Why a text is no [`Digest`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("digest {0:?} is not \"sha256:\" and 64 hex digits")]
pub struct InvalidDigest(String);

/// The name of an object within its kind.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// `metadata.uid`: the identity of one life of an object.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(UidText);

/// A server writes UUIDs, which are kept in place: every object has one UID and most have an
/// owner's. Invariant: a text of [`UUID_LENGTH`] bytes is always `Uuid`, so that equal UIDs are
/// equal values.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum UidText {
    Uuid([u8; UUID_LENGTH]),
    Other(Arc<str>),
}

/// `8-4-4-4-12` hex digits.
const UUID_LENGTH: usize = 36;

/// `metadata.resourceVersion`. Within one kind these are comparable as numbers since Kubernetes
/// 1.35 (KEP-5504); 0 stands for "none given".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ResourceVersion(pub u64);

// === impl PluginName ===

impl PluginName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The field manager and finalizer of this plugin: `reeve.dev/<name>`.
    pub fn field_manager(&self) -> String {
        format!("reeve.dev/{self}")
    }
}

impl FromStr for PluginName {
    type Err = InvalidPluginName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = text.as_bytes();
        let valid = (1..=63).contains(&bytes.len())
            && bytes.iter().all(|&b| ok(b) || b == b'-')
            && bytes.first().copied().is_some_and(ok)
            && bytes.last().copied().is_some_and(ok);
        if valid { Ok(Self(text.into())) } else { Err(InvalidPluginName(text.to_owned())) }
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for PluginName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PluginName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

// === impl Digest ===

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The 64 hex digits without the algorithm, for file names.
    pub fn hex(&self) -> String {
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
            text
        })
    }

    /// The first 12 hex digits, for people.
    pub fn short(&self) -> String {
        self.hex().chars().take(12).collect()
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidDigest(text.chars().take(100).collect());
        let hex = text.strip_prefix("sha256:").ok_or_else(invalid)?;
        let mut digits = hex.chars().map(|c| c.to_digit(16));
        let mut bytes = [0u8; 32];
        for byte in &mut bytes {
            let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) else {
                return Err(invalid());
            };
            *byte = u8::try_from(high * 16 + low).map_err(|_| invalid())?;
        }
        if digits.next().is_some() { Err(invalid()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl ObjectName ===

impl ObjectName {
    /// A name in a namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// A name of a cluster-scoped object.
    pub fn cluster(name: &str) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// The namespace, or the empty string.
    pub fn namespace_or_empty(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Uid ===

impl Uid {
    /// A UID as the server wrote it.
    pub fn new(text: &str) -> Self {
        match <[u8; UUID_LENGTH]>::try_from(text.as_bytes()) {
            Ok(bytes) => Self(UidText::Uuid(bytes)),
            Err(_) => Self(UidText::Other(text.into())),
        }
    }

    /// The UID as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            // They come from a `str`, so this never falls back.
            UidText::Uuid(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            UidText::Other(text) => text,
        }
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl ResourceVersion ===

impl ResourceVersion {
    /// Reads the server's text; `None` when it is no number (an API server older than the
    /// guarantee, or an aggregated one: then versions cannot be compared).
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_names_are_dns_labels() {
        let long = "a".repeat(64);
        for good in ["a", "website", "a-1", "0"] {
            assert_eq!(good.parse::<PluginName>().map(|n| n.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "é", &long] {
            assert!(bad.parse::<PluginName>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn digests_round_trip_and_refuse_other_texts() {
        let digest = Digest::of(b"");
        assert_eq!(
            digest.to_string(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "sha256:", "sha256:00", &digest.hex(), &format!("{digest}0"), "sha512:00"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?} was taken");
        }
    }
}
