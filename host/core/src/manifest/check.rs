//! What a manifest must fulfil beyond its shape. A refusal names the field and the remedy.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Limits, MAX_DECLARATIONS, Manifest, ManifestError, Relation};

/// The longest time that a manifest may ask for. More is a mistake, and would overflow a timer;
/// `resyncSeconds` has 0 for "never".
const MAX_TIME: Duration = Duration::from_hours(10 * 365 * 24);

impl Manifest {
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        let invalid = |text: String| Err(ManifestError::Invalid(text));
        if self.version.is_empty() || self.version.len() > 64 {
            return invalid("`version` must have 1 to 64 bytes".to_owned());
        }
        for (what, count) in
            [("watches", self.watches.len()), ("writes", self.writes.len()), ("indexes", self.indexes.len())]
        {
            if count > MAX_DECLARATIONS {
                return invalid(format!(
                    "`{what}` has {count} entries, at most {MAX_DECLARATIONS} are allowed"
                ));
            }
        }
        check_kind("primary", &self.primary.api_version, &self.primary.kind)?;
        let mut names = BTreeSet::new();
        for watch in &self.watches {
            check_kind("watches", &watch.api_version, &watch.kind)?;
            if !names.insert(watch.name()) {
                return invalid(format!(
                    "two watches are called {:?}: give one of them another `name`",
                    watch.name()
                ));
            }
            if let Relation::Index(index) = &watch.relation
                && !self.indexes.iter().any(|known| known.name == *index && known.gvk() == self.primary.gvk())
            {
                return invalid(format!(
                    "watch {:?} uses index {index:?}, which `indexes` does not declare over the primary kind {}",
                    watch.name(),
                    self.primary.gvk()
                ));
            }
        }
        for write in &self.writes {
            check_kind("writes", &write.api_version, &write.kind)?;
        }
        for index in &self.indexes {
            check_kind("indexes", &index.api_version, &index.kind)?;
            if !self.read_kinds().any(|gvk| gvk == index.gvk()) {
                return invalid(format!(
                    "index {:?} is over {}, which is not watched",
                    index.name,
                    index.gvk()
                ));
            }
            if !index.pointer.starts_with('/') {
                return invalid(format!(
                    "index {:?}: the pointer {:?} does not begin with '/'",
                    index.name, index.pointer
                ));
            }
        }
        let selectors =
            std::iter::once(&self.primary.labels).chain(self.watches.iter().map(|watch| &watch.labels));
        for selector in selectors.flatten() {
            if let Err(error) = selector.parse::<crate::labels::Selector>() {
                return invalid(format!("label selector {selector:?}: {error}"));
            }
        }
        let predicates =
            std::iter::once(&self.primary.predicate).chain(self.watches.iter().map(|watch| &watch.predicate));
        for predicate in predicates.flatten() {
            predicate.check().map_err(|reason| ManifestError::Invalid(format!("`predicate`: {reason}")))?;
        }
        self.limits.check().map_err(ManifestError::Invalid)?;
        if self.retry.base_ms == 0 || self.retry.cap_ms < self.retry.base_ms {
            return invalid("`retry` needs 1 ≤ baseMs ≤ capMs".to_owned());
        }
        for (name, time) in [("resyncSeconds", self.resync), ("finalizerLimitSeconds", self.finalizer_limit)]
        {
            if time > MAX_TIME {
                return invalid(format!(
                    "`{name}` is {}, at most {} (ten years) are allowed",
                    time.as_secs(),
                    MAX_TIME.as_secs()
                ));
            }
        }
        Ok(())
    }
}

fn check_kind(place: &str, api_version: &str, kind: &str) -> Result<(), ManifestError> {
    let part = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
    };
    let version_ok = match api_version.split_once('/') {
        Some((group, version)) => part(group) && part(version),
        None => part(api_version),
    };
    if version_ok && part(kind) {
        Ok(())
    } else {
        Err(ManifestError::Invalid(format!(
            "`{place}` names apiVersion {api_version:?} and kind {kind:?}: write them as objects do, for example \"apps/v1\" and \"Deployment\""
        )))
    }
}

impl Limits {
    fn check(&self) -> Result<(), String> {
        let range = |name: &str, value: u64, from: u64, to: u64| {
            if (from..=to).contains(&value) {
                Ok(())
            } else {
                Err(format!("`limits.{name}` is {value}, it must be between {from} and {to}"))
            }
        };
        range("memoryMib", self.memory_mib.into(), 1, 512)?;
        range("deadlineMs", self.deadline_ms, 10, 600_000)?;
        range("concurrency", self.concurrency.into(), 1, 256)?;
        range("logLines", self.log_lines.into(), 0, 100_000)?;
        range("events", self.events.into(), 0, 1_000)?;
        range("hostCalls", self.host_calls, 1, 100_000_000)?;
        range("stagedKib", self.staged_kib.into(), 1, 65_536)?;
        range("children", self.children.into(), 0, 10_000)
    }
}
