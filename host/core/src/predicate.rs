//! Which changes trigger a run (feature A3).
//!
//! A predicate in a manifest is an externally tagged tree:
//! `{"all": ["generationChanged", {"labels": "app=web"}, {"not": {"field": {"pointer":
//! "/spec/paused", "equals": true}}}]}`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::{self, members};
use crate::labels::Selector;
use crate::object::Object;

/// A test of one change.
///
/// The tests of a change (`…Changed`) hold for every creation, deletion and replacement by an
/// object of the same name. The tests of a state look at the object as it is now, or as it last
/// was when it is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Predicate {
    /// `metadata.generation` changed; never holds for updates of kinds that have none.
    GenerationChanged,
    /// `metadata.labels` changed.
    LabelsChanged,
    /// `metadata.annotations` changed.
    AnnotationsChanged,
    /// Anything changed.
    ResourceVersionChanged,
    /// The object has these labels.
    Labels(Selector),
    /// The object has this value at a pointer.
    Field {
        /// RFC 6901.
        pointer: String,
        /// Compared as JSON values; `null` also holds where there is nothing.
        equals: Value,
    },
    /// All hold; the empty list holds.
    All(Vec<Predicate>),
    /// One holds; the empty list does not.
    Any(Vec<Predicate>),
    /// It does not hold.
    Not(Box<Predicate>),
}

/// Whether a change of a primary (or a mapped kind with a predicate of its own) triggers.
///
/// Without a predicate: creations and deletions trigger, and an update does when anything but
/// `status`, `metadata.resourceVersion` and `metadata.managedFields` changed. A changed
/// generation settles that at once; an equal one does not, since labels, annotations, finalizers,
/// owner references and a deletion never raise it.
pub fn admits(predicate: Option<&Predicate>, old: Option<&Object>, new: Option<&Object>) -> bool {
    decide(predicate, old, new, desired_state_changed)
}

/// Whether a change of an owned or mapped object triggers. Without a predicate every change of
/// the resourceVersion does, as the status of a child is what its owner waits for.
pub fn admits_related(predicate: Option<&Predicate>, old: Option<&Object>, new: Option<&Object>) -> bool {
    decide(predicate, old, new, |old, new| old.meta.resource_version != new.meta.resource_version)
}

/// Whether an update holds more than what the host itself writes to a primary for a plugin, status
/// and finalizers, and, where the plugin `writes_metadata` of its primary, labels and annotations.
/// So a foreign change that came in with the answer of an own write is never taken for an echo.
pub fn changed_beyond_own_writes(old: &Object, new: &Object, writes_metadata: bool) -> bool {
    if old.meta.generation != new.meta.generation || old.meta.deleting != new.meta.deleting {
        return true;
    }
    let foreign = |object| {
        wanted_metadata(object).filter(move |(key, _)| match *key {
            "finalizers" => false,
            "labels" | "annotations" => !writes_metadata,
            _ => true,
        })
    };
    !foreign(old).eq(foreign(new)) || content_changed(old, new)
}

fn decide(
    predicate: Option<&Predicate>,
    old: Option<&Object>,
    new: Option<&Object>,
    default: impl Fn(&Object, &Object) -> bool,
) -> bool {
    // An object of the same name with another UID is a deletion and a creation.
    let update = old.zip(new).filter(|(old, new)| old.meta.uid == new.meta.uid);
    match predicate {
        None => update.is_none_or(|(old, new)| default(old, new)),
        Some(predicate) => new.or(old).is_some_and(|state| predicate.holds(update, state)),
    }
}

/// Whether more than the status changed.
fn desired_state_changed(old: &Object, new: &Object) -> bool {
    if old.meta.resource_version == new.meta.resource_version {
        return false;
    }
    old.meta.generation != new.meta.generation
        || !wanted_metadata(old).eq(wanted_metadata(new))
        || content_changed(old, new)
}

/// What is wanted of an object in its metadata: all but what every write changes. The server
/// writes members in one order, so that texts can be compared; another order would only cause a
/// needless run.
fn wanted_metadata(object: &Object) -> impl Iterator<Item = (&str, &str)> {
    let members = members(object.metadata());
    members
        .filter(|member| !matches!(member.key, "resourceVersion" | "managedFields"))
        .map(|member| (member.key, member.value))
}

/// Whether anything changed but `metadata` and `status`.
fn content_changed(old: &Object, new: &Object) -> bool {
    // Most often the text around them is the same as a whole.
    if old.around_metadata_and_status() == new.around_metadata_and_status() {
        return false;
    }
    let content = |object| {
        members(Object::json(object))
            .filter(|member| !matches!(member.key, "status" | "metadata"))
            .map(|member| (member.key, member.value))
    };
    !content(old).eq(content(new))
}

// === impl Predicate ===

impl Predicate {
    fn holds(&self, update: Option<(&Object, &Object)>, state: &Object) -> bool {
        let changed = |by: fn(&Object, &Object) -> bool| update.is_none_or(|(old, new)| by(old, new));
        match self {
            Self::GenerationChanged => changed(|old, new| old.meta.generation != new.meta.generation),
            Self::LabelsChanged => changed(|old, new| old.meta.labels != new.meta.labels),
            Self::AnnotationsChanged => changed(|old, new| {
                old.pointer("/metadata/annotations") != new.pointer("/metadata/annotations")
            }),
            Self::ResourceVersionChanged => {
                changed(|old, new| old.meta.resource_version != new.meta.resource_version)
            }
            Self::Labels(selector) => selector.matches(&state.meta),
            Self::Field { pointer, equals } => match state.pointer(pointer) {
                None => equals.is_null(),
                Some(text) => serde_json::from_str::<Value>(text).is_ok_and(|value| value == *equals),
            },
            Self::All(all) => all.iter().all(|each| each.holds(update, state)),
            Self::Any(any) => any.iter().any(|each| each.holds(update, state)),
            Self::Not(not) => !not.holds(update, state),
        }
    }

    /// Why the predicate cannot be meant, as part of a sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Field { pointer, .. } if !json::is_pointer(pointer) => {
                Err(format!("the pointer {pointer:?} does not begin with '/' or has a '~' without 0 or 1"))
            }
            Self::All(each) | Self::Any(each) => each.iter().try_for_each(Self::check),
            Self::Not(not) => not.check(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
