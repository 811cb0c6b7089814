//! Reading single values out of JSON text, and cutting and splicing it, without a tree.
//!
//! Everything here works on text that was already found to be valid JSON (the API server's, checked
//! once by [`Object::parse`](crate::object::Object::parse)); other text gives `None` or a wrong
//! part of itself, never a panic. Where a key stands twice in one object the first one counts.

use std::borrow::Cow;

mod scan;

pub(crate) use scan::{Scanner, members};

/// The JSON text at an RFC 6901 pointer, without the space around it; `""` is the whole value.
///
/// `None` where there is nothing, and for a pointer that neither is empty nor begins with `/`.
pub fn pointer<'a>(json: &'a str, pointer: &str) -> Option<&'a str> {
    let mut scanner = Scanner::new(json);
    let mut rest = tokens(pointer)?;
    while let Some(token) = rest.next_token() {
        if !scanner.enter(token) {
            return None;
        }
    }
    scanner.value()
}

/// Several pointers, answers in the same order.
pub fn pointer_many<'a, P: AsRef<str>>(json: &'a str, pointers: &[P]) -> Vec<Option<&'a str>> {
    pointers.iter().map(|each| pointer(json, each.as_ref())).collect()
}

/// Every value at a pointer in which the token `*` stands for each element of an array; this is
/// what declared indexes use. At anything but an array `*` is a key like any other.
pub fn pointer_each<'a>(json: &'a str, pointer: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    if let Some(tokens) = tokens(pointer) {
        each(Scanner::new(json), tokens, &mut found);
    }
    found
}

fn each<'a>(mut scanner: Scanner<'a>, mut rest: Tokens<'_>, found: &mut Vec<&'a str>) {
    while let Some(token) = rest.next_token() {
        if token == "*" && scanner.at_array() {
            scanner.elements(|element| each(Scanner::new(element), rest, found));
            return;
        }
        if !scanner.enter(token) {
            return;
        }
    }
    found.extend(scanner.value());
}

/// The text under which a value is indexed: strings as they are, numbers and booleans as JSON
/// writes them; `None` for `null`, objects and arrays.
pub fn scalar(json: &str) -> Option<Cow<'_, str>> {
    match json.as_bytes().first()? {
        b'"' => string(json),
        b'{' | b'[' | b'n' => None,
        _ => Some(Cow::Borrowed(json)),
    }
}

/// The content of a JSON string.
pub fn string(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(json).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// Whether a text is a pointer: empty, or `/` and tokens whose `~` are `~0` or `~1`.
pub fn is_pointer(text: &str) -> bool {
    (text.is_empty() || text.starts_with('/'))
        && text.split('~').skip(1).all(|after| after.starts_with('0') || after.starts_with('1'))
}

/// The tokens of a pointer that are still to go, escaped as they stand there.
#[derive(Clone, Copy)]
struct Tokens<'p>(Option<&'p str>);

fn tokens(pointer: &str) -> Option<Tokens<'_>> {
    if pointer.is_empty() {
        Some(Tokens(None))
    } else {
        pointer.strip_prefix('/').map(|rest| Tokens(Some(rest)))
    }
}

impl<'p> Tokens<'p> {
    fn next_token(&mut self) -> Option<&'p str> {
        let rest = self.0?;
        let (token, after) = match rest.split_once('/') {
            Some((token, after)) => (token, Some(after)),
            None => (rest, None),
        };
        self.0 = after;
        Some(token)
    }
}

#[cfg(test)]
mod tests;
