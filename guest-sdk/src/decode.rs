//! Reads JSON into an author's type, and says where it does not fit.
//!
//! `serde_json` knows the byte at which it gave up, and the text up to that byte says the path:
//! so the good case costs nothing, and no type is compiled twice.
//!
//! Invariant: no value of the document is in the error, as it may be a secret.

use serde::de::DeserializeOwned;

use crate::error::{Category, Error, code};

/// Reads an object; `what` names it in the error, or is empty for the primary.
pub(crate) fn object<T: DeserializeOwned>(what: &str, json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| explain(code::INVALID_OBJECT, what, json, &error))
}

/// Reads the configuration.
pub(crate) fn config<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| explain(code::INVALID_CONFIG, "configuration", json, &error))
}

#[cold]
fn explain(code: &str, what: &str, json: &str, error: &serde_json::Error) -> Error {
    let path = path(json.as_bytes(), offset(json, error.line(), error.column()));
    let mut message = String::new();
    for part in [what, path.as_str()] {
        if !part.is_empty() {
            message.push_str(part);
            message.push_str(": ");
        }
    }
    message.push_str(&masked(error));
    let mut error = Error::permanent(code, message).category(Category::Validation);
    if !path.is_empty() {
        error.details.push(("path".to_owned(), path));
    }
    error
}

/// What serde says, without the value that it says it of and without line and column.
pub(crate) fn masked(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (head, expected) = match last(text.as_bytes(), b", expected ") {
        Some(comma) => text.split_at(comma),
        None => (text.as_str(), ""),
    };
    let (all, tail) = if expected.is_empty() { (head, "") } else { (head, expected) };
    let mut masked = if starts(all, "invalid ") {
        // `invalid type: string "x"`, `invalid value: integer `7``: up to the value.
        let end = all.bytes().position(|byte| matches!(byte, b'"' | b'`')).unwrap_or(all.len());
        all.get(..end).unwrap_or("").trim_ascii_end().to_owned()
    } else if starts(all, "unknown variant") {
        "unknown variant".to_owned()
    } else {
        all.to_owned()
    };
    masked.push_str(tail);
    if let Some(end) = last(masked.as_bytes(), b" at line ") {
        masked.truncate(end);
    }
    masked
}

fn starts(text: &str, with: &str) -> bool {
    text.as_bytes().starts_with(with.as_bytes())
}

/// Where a text last occurs. By hand, because the standard search costs 3 KB of every plugin.
fn last(text: &[u8], what: &[u8]) -> Option<usize> {
    (0..=text.len().checked_sub(what.len())?).rev().find(|&at| text[at..].starts_with(what))
}

/// The byte of a 1-based line and a column, which counts the bytes read of it.
fn offset(json: &str, line: usize, column: usize) -> usize {
    let mut line = line;
    let mut start = 0;
    for (at, byte) in json.bytes().enumerate() {
        if line <= 1 {
            break;
        }
        if byte == b'\n' {
            line -= 1;
            start = at + 1;
        }
    }
    (start + column).min(json.len())
}

/// The path of the value at a byte, as `spec.ports[2].name`; empty for the whole document.
fn path(json: &[u8], end: usize) -> String {
    /// A container that is open at the byte.
    enum Open {
        /// With the current key, between these bytes.
        Object(usize, usize),
        /// With the current index.
        Array(usize),
    }
    let mut open: Vec<Open> = Vec::new();
    let mut at = 0;
    while at < end {
        match json[at] {
            b'{' => open.push(Open::Object(0, 0)),
            b'[' => open.push(Open::Array(0)),
            b'}' | b']' => {
                open.pop();
            }
            b',' => match open.last_mut() {
                Some(Open::Array(index)) => *index += 1,
                Some(Open::Object(from, to)) => (*from, *to) = (0, 0),
                None => {}
            },
            b'"' => {
                let start = at + 1;
                at = start;
                while at < json.len() && json[at] != b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                if let Some(Open::Object(from, to)) = open.last_mut()
                    && *from == 0
                {
                    (*from, *to) = (start, at.min(json.len()));
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut text = String::new();
    for part in open {
        match part {
            Open::Object(0, _) => {}
            Open::Object(from, to) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(std::str::from_utf8(&json[from..to]).unwrap_or("?"));
            }
            Open::Array(index) => {
                text.push('[');
                text.push_str(&index.to_string());
                text.push(']');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests;
