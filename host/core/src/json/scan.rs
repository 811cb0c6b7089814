//! A cursor over JSON text that skips what nobody asked for.

use std::borrow::Cow;

/// A cursor that stands before a value.
#[derive(Clone, Copy)]
pub(crate) struct Scanner<'a> {
    json: &'a str,
    at: usize,
}

/// One `key: value` of an object, as it stands in the text.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    /// Between the quotes, escapes not resolved.
    pub(crate) key: &'a str,
    /// The value's text.
    pub(crate) value: &'a str,
    /// Where the key's first quote stands.
    pub(crate) start: usize,
    /// Where the value ends.
    pub(crate) end: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(json: &'a str) -> Self {
        Self { json, at: 0 }
    }

    /// Moves to before the value that an escaped pointer token names; `false` where there is none.
    pub(crate) fn enter(&mut self, token: &str) -> bool {
        self.space();
        match self.peek() {
            Some(b'{') => self.enter_object(token),
            Some(b'[') => self.enter_array(token),
            _ => false,
        }
    }

    /// The text of the value ahead; the cursor goes behind it.
    pub(crate) fn value(&mut self) -> Option<&'a str> {
        self.space();
        let start = self.at;
        self.skip_value().then(|| &self.json[start..self.at])
    }

    pub(crate) fn at_array(&mut self) -> bool {
        self.space();
        self.peek() == Some(b'[')
    }

    /// Calls with the text of each element of the array ahead.
    pub(crate) fn elements(&mut self, mut with: impl FnMut(&'a str)) {
        if !self.eat(b'[') {
            return;
        }
        while !self.eat(b']') {
            let Some(value) = self.value() else { return };
            with(value);
            if !self.eat(b',') && self.peek() != Some(b']') {
                return;
            }
        }
    }

    fn enter_object(&mut self, token: &str) -> bool {
        self.at += 1;
        let wanted = unescape(token);
        loop {
            let Some(key) = self.key() else { return false };
            let found = if key.contains('\\') {
                key_text(key).is_some_and(|text| text == wanted)
            } else {
                key == wanted
            };
            if found {
                return true;
            }
            if !self.skip_value() || !self.eat(b',') {
                return false;
            }
        }
    }

    fn enter_array(&mut self, token: &str) -> bool {
        // As RFC 6901 has it: no sign and no leading zero.
        let digits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || (token.len() > 1 && token.starts_with('0')) {
            return false;
        }
        let Ok(mut index) = token.parse::<usize>() else { return false };
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            return false;
        }
        while index > 0 {
            if !self.skip_value() || !self.eat(b',') {
                return false;
            }
            index -= 1;
        }
        true
    }

    /// Reads `"key":`; the cursor then stands before the value. `None` at the end of the object.
    fn key(&mut self) -> Option<&'a str> {
        self.space();
        let start = self.at + 1;
        if self.peek() != Some(b'"') || !self.skip_string() {
            return None;
        }
        let key = self.json.get(start..self.at - 1)?;
        self.eat(b':').then_some(key)
    }

    fn peek(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    /// Takes this byte if it comes next, after space.
    fn eat(&mut self, byte: u8) -> bool {
        self.space();
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    fn skip_value(&mut self) -> bool {
        self.space();
        match self.peek() {
            Some(b'"') => self.skip_string(),
            Some(b'{' | b'[') => self.skip_nested(),
            Some(_) => {
                let start = self.at;
                while matches!(self.peek(), Some(b'+' | b'-' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E')) {
                    self.at += 1;
                }
                self.at > start
            }
            None => false,
        }
    }

    /// From the bracket ahead to behind the one that closes it.
    fn skip_nested(&mut self) -> bool {
        let bytes = self.json.as_bytes();
        let mut depth = 0usize;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' => {
                    if !self.skip_string() {
                        return false;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return true;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        false
    }

    /// From the quote ahead to behind the one that closes it.
    fn skip_string(&mut self) -> bool {
        self.at += 1;
        loop {
            let rest = &self.json.as_bytes()[self.at.min(self.json.len())..];
            match find_quote_or_backslash(rest) {
                Some((offset, b'"')) => {
                    self.at += offset + 1;
                    return true;
                }
                Some((offset, _)) => self.at += offset + 2,
                None => return false,
            }
        }
    }
}

/// Where the next `"` or `\` is. Eight bytes at a time: most of a large object is string.
fn find_quote_or_backslash(bytes: &[u8]) -> Option<(usize, u8)> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    const QUOTES: u64 = u64::from_ne_bytes([b'"'; 8]);
    const BACKSLASHES: u64 = u64::from_ne_bytes([b'\\'; 8]);
    let has_zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let mut offset = 0;
    while let Some(chunk) = bytes.get(offset..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let hits = has_zero(word ^ QUOTES) | has_zero(word ^ BACKSLASHES);
        if hits != 0 {
            let found = offset + (hits.trailing_zeros() / 8) as usize;
            return Some((found, bytes[found]));
        }
        offset += 8;
    }
    bytes[offset..]
        .iter()
        .position(|&byte| byte == b'"' || byte == b'\\')
        .map(|at| (offset + at, bytes[offset + at]))
}

/// The members of the object that a text is; ends early where the text is no object.
pub(crate) fn members(json: &str) -> impl Iterator<Item = Member<'_>> {
    let mut scanner = Scanner::new(json);
    let mut more = scanner.eat(b'{');
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        scanner.space();
        let start = scanner.at;
        let key = scanner.key()?;
        let value = scanner.value()?;
        let end = scanner.at;
        more = scanner.eat(b',');
        Some(Member { key, value, start, end })
    })
}

/// A key with its escapes resolved.
fn key_text(raw: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{raw}\"")).ok()
}

/// A pointer token with `~1` and `~0` resolved.
fn unescape(token: &str) -> Cow<'_, str> {
    if token.contains('~') {
        Cow::Owned(token.replace("~1", "/").replace("~0", "~"))
    } else {
        Cow::Borrowed(token)
    }
}
