//! What one stream is for, and whether a version of an object is within it.

use std::sync::Arc;

use reeve_core::json;
use reeve_core::labels::Selector;
use reeve_core::object::{ManagedFields, Object};

/// In which form the objects of a kind are kept. Each form has a store of its own; a stream's form
/// decides which one it feeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Flavour {
    /// Only `apiVersion`, `kind` and `metadata`.
    pub(crate) metadata_only: bool,
    /// With or without `metadata.managedFields`.
    pub(crate) managed: ManagedFields,
}

/// The objects that one stream is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Coverage {
    /// `None`: all namespaces. Objects of cluster-scoped kinds are in each.
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) labels: Selector,
    /// A field selector as the server takes it.
    pub(crate) fields: Option<Arc<str>>,
}

/// Whether an object is within a coverage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// By namespace, labels and name, as the server decides it too.
    Certain(bool),
    /// By fields, which each kind defines for itself: most are paths into the object.
    Guess(bool),
}

// === impl Flavour ===

impl Flavour {
    /// All forms; the fullest first.
    pub(crate) const ALL: [Self; 4] = [
        Self { metadata_only: false, managed: ManagedFields::Strip },
        Self { metadata_only: false, managed: ManagedFields::Keep },
        Self { metadata_only: true, managed: ManagedFields::Strip },
        Self { metadata_only: true, managed: ManagedFields::Keep },
    ];

    /// Whether a reader who wants `other` may get objects of this form.
    pub(crate) fn serves(self, other: Self) -> bool {
        (!self.metadata_only || other.metadata_only)
            && (self.managed == ManagedFields::Keep || other.managed == ManagedFields::Strip)
    }

    /// The metric label.
    pub(crate) fn label(self) -> &'static str {
        match (self.metadata_only, self.managed) {
            (false, ManagedFields::Strip) => "full",
            (false, ManagedFields::Keep) => "full+managedFields",
            (true, ManagedFields::Strip) => "metadata",
            (true, ManagedFields::Keep) => "metadata+managedFields",
        }
    }
}

// === impl Coverage ===

impl Coverage {
    /// Whether everything that `narrower` is for is in this one too, and can be told from the rest.
    /// What a field selector means only the server knows, so it covers nothing but itself.
    pub(crate) fn covers(&self, narrower: &Self) -> bool {
        (self.namespace.is_none() || self.namespace == narrower.namespace)
            && self.labels.covers(&narrower.labels)
            && self.fields == narrower.fields
    }

    /// Whether it leaves out objects by their content, so that an object can leave it without
    /// being deleted.
    pub(crate) fn selective(&self) -> bool {
        !self.labels.is_everything() || self.fields.is_some()
    }

    /// Whether an object is within it.
    pub(crate) fn contains(&self, object: &Object) -> Membership {
        let meta = object.meta();
        let here = match (&self.namespace, &meta.name.namespace) {
            (Some(wanted), Some(found)) => wanted == found,
            _ => true,
        };
        if !here || !self.labels.matches(meta) {
            return Membership::Certain(false);
        }
        match &self.fields {
            None => Membership::Certain(true),
            Some(fields) => matches_fields(fields, object),
        }
    }
}

/// `metadata.name=a,spec.nodeName!=b`: each term is a path, which holds the empty string where the
/// object has nothing.
fn matches_fields(fields: &str, object: &Object) -> Membership {
    let mut certain = true;
    let mut matched = true;
    for term in fields.split(',').filter(|term| !term.trim().is_empty()) {
        let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
            (path, value, false)
        } else if let Some((path, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (path, value, true)
        } else {
            return Membership::Guess(true);
        };
        let path = path.trim();
        certain &= matches!(path, "metadata.name" | "metadata.namespace");
        let pointer = format!("/{}", path.replace('~', "~0").replace('/', "~1").replace('.', "/"));
        let found = object.pointer(&pointer).and_then(json::scalar).unwrap_or_default();
        matched &= (found == value.trim()) == equal;
    }
    if certain { Membership::Certain(matched) } else { Membership::Guess(matched) }
}

#[cfg(test)]
mod tests {
    use reeve_core::gvk::Gvk;

    use super::*;

    #[track_caller]
    fn check(namespace: Option<&str>, labels: &str, fields: Option<&str>, expected: Membership) {
        let json = r#"{"metadata":{"namespace":"web","name":"a","uid":"u","resourceVersion":"1",
            "labels":{"app":"x"}},"spec":{"nodeName":"n1","hostNetwork":true}}"#;
        let object = Object::parse(&Gvk::new("", "v1", "Pod"), json, ManagedFields::Strip).unwrap();
        let coverage = Coverage {
            namespace: namespace.map(Into::into),
            labels: labels.parse().unwrap(),
            fields: fields.map(Into::into),
        };
        assert_eq!(coverage.contains(&object), expected);
    }

    #[test]
    fn objects_are_within_a_coverage_by_namespace_labels_and_fields() {
        use Membership::{Certain, Guess};
        check(None, "", None, Certain(true));
        check(Some("web"), "app=x", None, Certain(true));
        check(Some("db"), "", None, Certain(false));
        check(None, "app!=x", None, Certain(false));
        check(None, "", Some("metadata.name=a,metadata.namespace==web"), Certain(true));
        check(None, "", Some("metadata.name!=a"), Certain(false));
        check(None, "", Some("spec.nodeName=n1"), Guess(true));
        check(None, "", Some("spec.nodeName=n1,metadata.name=b"), Guess(false));
        check(None, "", Some("spec.hostNetwork=true"), Guess(true));
        check(None, "", Some("status.phase="), Guess(true));
        check(None, "app=y", Some("spec.nodeName=n1"), Certain(false));
    }

    #[test]
    fn a_wider_coverage_covers_a_narrower_one() {
        let coverage = |namespace: Option<&str>, labels: &str, fields: Option<&str>| Coverage {
            namespace: namespace.map(Into::into),
            labels: labels.parse().unwrap(),
            fields: fields.map(Into::into),
        };
        let all = coverage(None, "", None);
        let narrow = coverage(Some("web"), "app=x", None);
        assert!(all.covers(&narrow) && !narrow.covers(&all));
        assert!(!coverage(None, "app=y", None).covers(&narrow));
        assert!(coverage(Some("web"), "app in (x,y)", None).covers(&narrow));
        let fields = coverage(Some("web"), "app=x", Some("spec.nodeName=n1"));
        assert!(!narrow.covers(&fields) && !fields.covers(&narrow));
        assert!(coverage(None, "", Some("spec.nodeName=n1")).covers(&fields) && fields.selective());
        assert!(!all.selective() && narrow.selective() && !coverage(Some("web"), "", None).selective());
    }
}
