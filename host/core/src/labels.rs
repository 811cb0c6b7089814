//! Label selectors, in the syntax of Kubernetes: `app=web,tier in (a,b),!canary`.
//!
//! A [`Selector`] is kept in a normal form, so that two texts that say the same are equal, have
//! one hash, and can share a watch.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::object::{Labels, Meta};

mod parse;

/// The most requirements of one selector, and the most values of one requirement: far more than
/// any selector that people write, and few enough to evaluate for each change.
pub const MAX_REQUIREMENTS: usize = 256;

/// Which labels an object must have; the empty selector is for every object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Selector(BTreeSet<Requirement>);

/// One of the parts that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Requirement {
    key: Box<str>,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Test {
    /// `=`, `==` and `in`.
    In(BTreeSet<Box<str>>),
    /// `!=` and `notin`; an object without the label passes.
    NotIn(BTreeSet<Box<str>>),
    /// The key alone.
    Exists,
    /// `!` and the key.
    Absent,
}

/// Why a text is no selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label selector {selector:?}: {reason}; write for example \"app=web,tier in (a,b),!canary\"")]
pub struct InvalidSelector {
    selector: String,
    reason: String,
}

// === impl Selector ===

impl Selector {
    /// Every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Objects with exactly these values, as `matchLabels` has it.
    pub fn match_labels<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, InvalidSelector> {
        let mut selector = Self::default();
        for (key, value) in pairs {
            let test = Test::In(BTreeSet::from([value.into()]));
            parse::check(key, &test)
                .map_err(|reason| InvalidSelector::new(&format!("{key}={value}"), reason))?;
            selector.0.insert(Requirement { key: key.into(), test });
        }
        Ok(selector)
    }

    /// Objects for which both hold.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Whether it is for every object.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object with this metadata is selected.
    pub fn matches(&self, meta: &Meta) -> bool {
        self.matches_labels(&meta.labels)
    }

    /// Whether an object with these labels is selected.
    pub fn matches_labels(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }

    /// Whether everything that `narrower` selects is selected by this one too. `false` may also
    /// mean that it is not obvious from the texts.
    pub fn covers(&self, narrower: &Self) -> bool {
        self.0.iter().all(|mine| narrower.0.iter().any(|theirs| theirs.implies(mine)))
    }
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
        }
    }

    /// Whether every label set that passes this one passes the other.
    fn implies(&self, other: &Self) -> bool {
        self.key == other.key
            && match (&self.test, &other.test) {
                (Test::In(mine), Test::In(theirs)) => mine.is_subset(theirs),
                (Test::In(mine), Test::NotIn(theirs)) => mine.is_disjoint(theirs),
                (Test::NotIn(mine), Test::NotIn(theirs)) => mine.is_superset(theirs),
                (Test::In(_) | Test::Exists, Test::Exists)
                | (Test::Absent, Test::Absent | Test::NotIn(_)) => true,
                _ => false,
            }
    }
}

impl InvalidSelector {
    fn new(selector: &str, reason: String) -> Self {
        Self { selector: selector.chars().take(256).collect(), reason }
    }
}

impl FromStr for Selector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::selector(text).map_err(|reason| InvalidSelector::new(text, reason))
    }
}

/// The normal form, as the API server takes it.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let one = |values: &BTreeSet<Box<str>>| match values.first() {
            Some(value) if values.len() == 1 => Some(value.clone()),
            _ => None,
        };
        let list =
            |values: &BTreeSet<Box<str>>| values.iter().map(|value| &**value).collect::<Vec<_>>().join(",");
        match &self.test {
            Test::In(values) => match one(values) {
                Some(value) => write!(f, "{key}={value}"),
                None => write!(f, "{key} in ({})", list(values)),
            },
            Test::NotIn(values) => match one(values) {
                Some(value) => write!(f, "{key}!={value}"),
                None => write!(f, "{key} notin ({})", list(values)),
            },
            Test::Exists => f.write_str(key),
            Test::Absent => write!(f, "!{key}"),
        }
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
