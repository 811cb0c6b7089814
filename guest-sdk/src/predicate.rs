//! Which changes of an object trigger a run.

use serde_json::{Map, Value, json};

/// A test of a change, for [`Manifest::predicate`](crate::Manifest::predicate) and
/// [`Watch::predicate`](crate::Watch::predicate).
///
/// The tests of a change hold for every creation, deletion and replacement too; the tests of a
/// state look at the object as it is now, or as it last was when it is gone.
///
/// ```
/// use reeve_sdk::{Predicate, json};
///
/// let predicate = Predicate::generation_changed()
///     .or(Predicate::annotations_changed())
///     .and(Predicate::field("/spec/paused", json!(true)).negated());
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "pass it to `Manifest::predicate`"]
pub struct Predicate(Value);

impl Predicate {
    /// `metadata.generation` changed: the spec did. Kinds without generation never do.
    pub fn generation_changed() -> Self {
        Self(json!("generationChanged"))
    }

    /// `metadata.labels` changed.
    pub fn labels_changed() -> Self {
        Self(json!("labelsChanged"))
    }

    /// `metadata.annotations` changed.
    pub fn annotations_changed() -> Self {
        Self(json!("annotationsChanged"))
    }

    /// Anything changed, the status too.
    pub fn resource_version_changed() -> Self {
        Self(json!("resourceVersionChanged"))
    }

    /// The object has labels that a selector matches.
    pub fn labels(selector: &str) -> Self {
        Self::tagged("labels", json!(selector))
    }

    /// The object has this value at a JSON pointer; `null` also holds where there is nothing.
    pub fn field(pointer: &str, equals: Value) -> Self {
        let mut field = Map::new();
        field.insert("pointer".to_owned(), json!(pointer));
        field.insert("equals".to_owned(), equals);
        Self::tagged("field", Value::Object(field))
    }

    /// Both hold.
    pub fn and(self, other: Self) -> Self {
        Self::tagged("all", Value::Array(vec![self.0, other.0]))
    }

    /// At least one holds.
    pub fn or(self, other: Self) -> Self {
        Self::tagged("any", Value::Array(vec![self.0, other.0]))
    }

    /// It does not hold.
    pub fn negated(self) -> Self {
        Self::tagged("not", self.0)
    }

    /// The document that the host reads.
    pub fn into_json(self) -> Value {
        self.0
    }

    fn tagged(tag: &str, value: Value) -> Self {
        let mut predicate = Map::new();
        predicate.insert(tag.to_owned(), value);
        Self(Value::Object(predicate))
    }
}
