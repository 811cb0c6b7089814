//! Field selectors, evaluated by the host: changes of one kind come from streams with other
//! selectors too, and only those of a plugin's own selector concern it.

use reeve_core::json;
use reeve_core::object::Object;

/// A field selector: `status.phase=Running,spec.nodeName!=n1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields(Vec<Field>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    pointer: String,
    equal: bool,
    value: String,
}

/// Why a text is no field selector.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("field selector {0:?} is not of the form \"path=value,path!=value\"")]
pub struct InvalidFields(String);

impl std::str::FromStr for Fields {
    type Err = InvalidFields;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidFields(text.to_owned());
        let field = |part: &str| {
            let (path, equal, value) = if let Some((path, value)) = part.split_once("!=") {
                (path, false, value)
            } else {
                let (path, value) = part.split_once('=')?;
                (path, true, value.strip_prefix('=').unwrap_or(value))
            };
            let path = path.trim();
            (!path.is_empty()).then(|| Field {
                pointer: format!("/{}", path.replace('~', "~0").replace('/', "~1").replace('.', "/")),
                equal,
                value: value.trim().to_owned(),
            })
        };
        let parts = text.split(',').filter(|part| !part.trim().is_empty());
        parts.map(|part| field(part).ok_or_else(invalid)).collect::<Result<_, _>>().map(Self)
    }
}

impl Fields {
    /// Whether the object has these fields. What is missing counts as the empty text, as with the
    /// API server.
    pub fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|field| {
            let value = object.pointer(&field.pointer).and_then(json::scalar);
            (value.as_deref().unwrap_or_default() == field.value) == field.equal
        })
    }
}
