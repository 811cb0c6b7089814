//! WIT records and the host's own types, in both directions.

use std::time::Duration;

use reeve_core::failure::Failure;
use reeve_core::grant::Denied;
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::{failure::code, read::ReadError};

use super::bindings::reeve::plugin::host;
use crate::config::MAX_NAME;
use crate::text::cut;

/// Facts of a failure that are kept, and the bytes of each.
const MAX_DETAILS: usize = 16;
const MAX_DETAIL: usize = 256;
/// Bytes of a code, of a category, and of a failure's message that are kept. A condition's
/// message may have 32 KiB; a person reads one screen.
const MAX_CODE: usize = 64;
const MAX_MESSAGE: usize = 4_096;
/// What a guest's failure is called that gives no usable code.
const UNNAMED: &str = "PLUGIN_FAILURE";

pub(super) fn gvk_from_guest(gvk: &host::Gvk) -> Gvk {
    Gvk::new(&gvk.group, &gvk.version, &gvk.kind)
}

pub(super) fn name_from_guest(name: host::ObjectName) -> ObjectName {
    ObjectName { namespace: name.namespace.map(Into::into), name: name.name.into() }
}

pub(super) fn name_to_guest(name: &ObjectName) -> host::ObjectName {
    host::ObjectName { namespace: name.namespace.as_deref().map(str::to_owned), name: name.name.to_string() }
}

/// Whether a guest's names can be names at all: what it reads is kept for the length of the run.
pub(super) fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    match names.into_iter().find(|name| name.len() > MAX_NAME) {
        None => Ok(()),
        Some(name) => {
            let text = format!("a name of {} bytes is none: Kubernetes allows {MAX_NAME}", name.len());
            Err(Failure::permanent(code::INVALID_ARGUMENT, "validation", text))
        }
    }
}

/// All parts of a kind.
pub(super) fn gvk_parts(gvk: &Gvk) -> [&str; 3] {
    [&gvk.group, &gvk.version, &gvk.kind]
}

/// A failure that a plugin returned, cut to what logs, conditions and labels can carry.
pub(super) fn failure_from_guest(failure: &host::Failure) -> Failure {
    Failure {
        code: code_word(&failure.code),
        category: match failure.category.trim() {
            "" => "internal".to_owned(),
            word => cut(word, MAX_CODE).to_owned(),
        },
        severity: failure.severity.clamp(1, 5),
        transient: failure.transient,
        message: cut(&failure.message, MAX_MESSAGE).to_owned(),
        retry_after: failure.retry_after_ms.map(Duration::from_millis),
        details: failure
            .details
            .iter()
            .take(MAX_DETAILS)
            .map(|(key, value)| (cut(key, MAX_DETAIL).to_owned(), cut(value, MAX_DETAIL).to_owned()))
            .collect(),
    }
}

/// `UPPER_SNAKE_CASE`, because a code becomes the reason of a condition and a metric's label.
fn code_word(text: &str) -> String {
    let word: String = text
        .chars()
        .take(MAX_CODE)
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
        .collect();
    let word = word.trim_matches('_');
    if word.starts_with(|c: char| c.is_ascii_alphabetic()) { word.to_owned() } else { UNNAMED.to_owned() }
}

/// A refusal of the host, as the plugin sees it.
pub(super) fn failure_to_guest(failure: Failure) -> host::Failure {
    host::Failure {
        code: failure.code,
        category: failure.category,
        severity: failure.severity,
        transient: failure.transient,
        message: failure.message,
        retry_after_ms: failure.retry_after.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
        details: failure.details,
    }
}

/// A refusal under the grant.
pub(crate) fn denied(denied: &Denied) -> Failure {
    let code = match denied {
        Denied::NotDeclared { .. } => code::NOT_DECLARED,
        Denied::Ceiling { .. } => code::NOT_GRANTED,
    };
    Failure::permanent(code, "permission", denied.to_string())
}

/// A read that the cache refused.
pub(super) fn read_error(error: &ReadError) -> Failure {
    let text = error.to_string();
    match error {
        ReadError::NotDeclared(_) | ReadError::NoIndex(..) => {
            Failure::permanent(code::NOT_DECLARED, "permission", text)
        }
        ReadError::OutOfScope(..) => Failure::permanent(code::NOT_GRANTED, "permission", text),
        ReadError::NotSynced(..) => Failure::transient(code::KIND_NOT_SERVED, "dependency", text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_words_for_programs() {
        for (given, kept) in [
            ("DB_CONN_TIMEOUT", "DB_CONN_TIMEOUT"),
            ("db conn timeout", "DB_CONN_TIMEOUT"),
            ("", UNNAMED),
            ("__", UNNAMED),
            ("404", UNNAMED),
            ("größe", "GR__E"),
        ] {
            assert_eq!(code_word(given), kept, "{given:?}");
        }
        assert_eq!(code_word(&"A".repeat(100)).len(), MAX_CODE);
    }
}
