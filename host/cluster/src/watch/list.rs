//! Reads a list item by item as its bytes come, so that only one item is in memory twice.

use bytes::{Buf as _, Bytes, BytesMut};

use super::events::MAX_EVENT_BYTES;

/// A piece of a list that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// The list's own metadata.
    Metadata(Bytes),
    /// One item.
    Item(Bytes),
    /// The list is over.
    End,
}

/// Why bytes are no list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadList {
    #[error("it is not JSON")]
    NotJson,
    #[error("it has no items")]
    NoItems,
    #[error("an item has more than {MAX_EVENT_BYTES} bytes")]
    TooLarge,
}

/// A list that is being read.
#[derive(Debug, Default)]
pub(super) struct ListReader {
    buffer: BytesMut,
    place: Place,
    scan: Scan,
    items_seen: bool,
}

/// Where in the list the first byte of the buffer is.
#[derive(Debug, Default)]
enum Place {
    /// Before `{`.
    #[default]
    Start,
    /// Before a key, a comma or the closing brace.
    Key,
    /// Before the value of this key.
    Value(Key),
    /// Before an item, a comma or the closing bracket.
    Items,
    /// Behind the closing brace.
    End,
}

#[derive(Debug, Clone, Copy)]
enum Key {
    Items,
    Metadata,
    Other,
}

/// How far a value was looked through that is not complete yet.
#[derive(Debug, Default)]
struct Scan {
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

// === impl ListReader ===

impl ListReader {
    /// More bytes came.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece; `None` needs more bytes.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, BadList> {
        loop {
            let space = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.buffer.advance(space);
            if matches!(self.place, Place::End) {
                return if self.items_seen { Ok(Some(Piece::End)) } else { Err(BadList::NoItems) };
            }
            let Some(&first) = self.buffer.first() else { return Ok(None) };
            match self.place {
                Place::Start => {
                    self.eat(first, b'{')?;
                    self.place = Place::Key;
                }
                Place::Key => match first {
                    b'}' => {
                        self.buffer.advance(1);
                        self.place = Place::End;
                    }
                    b',' => self.buffer.advance(1),
                    _ => match self.key()? {
                        Some(key) => self.place = Place::Value(key),
                        None => return Ok(None),
                    },
                },
                Place::Value(Key::Items) if first == b'[' => {
                    self.buffer.advance(1);
                    self.items_seen = true;
                    self.place = Place::Items;
                }
                Place::Value(key) => {
                    let Some(value) = self.value()? else { return Ok(None) };
                    // An empty list of some servers.
                    self.items_seen |= matches!(key, Key::Items) && &value[..] == b"null";
                    self.place = Place::Key;
                    if matches!(key, Key::Metadata) {
                        return Ok(Some(Piece::Metadata(value)));
                    }
                }
                Place::Items => match first {
                    b']' => {
                        self.buffer.advance(1);
                        self.place = Place::Key;
                    }
                    b',' => self.buffer.advance(1),
                    _ => return Ok(self.value()?.map(Piece::Item)),
                },
                // Seen above, as it needs no byte.
                Place::End => {}
            }
        }
    }

    fn eat(&mut self, found: u8, wanted: u8) -> Result<(), BadList> {
        if found != wanted {
            return Err(BadList::NotJson);
        }
        self.buffer.advance(1);
        Ok(())
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<Option<Key>, BadList> {
        if self.buffer[0] != b'"' {
            return Err(BadList::NotJson);
        }
        // Top-level keys of a list are plain words; its colon is behind at most some space.
        let Some(end) = self.buffer.iter().skip(1).position(|byte| *byte == b'"').map(|at| at + 1) else {
            return self.more();
        };
        let Some(colon) = self.buffer.iter().skip(end + 1).position(|byte| !byte.is_ascii_whitespace())
        else {
            return self.more();
        };
        let colon = end + 1 + colon;
        if self.buffer[colon] != b':' {
            return Err(BadList::NotJson);
        }
        let key = match &self.buffer[1..end] {
            b"items" => Key::Items,
            b"metadata" => Key::Metadata,
            _ => Key::Other,
        };
        self.buffer.advance(colon + 1);
        Ok(Some(key))
    }

    /// A whole value.
    fn value(&mut self) -> Result<Option<Bytes>, BadList> {
        match self.scan.end(&self.buffer) {
            Some(end) => {
                self.scan = Scan::default();
                if end == 0 {
                    return Err(BadList::NotJson);
                }
                Ok(Some(self.buffer.split_to(end).freeze()))
            }
            None => self.more(),
        }
    }

    fn more<T>(&self) -> Result<Option<T>, BadList> {
        if self.buffer.len() > MAX_EVENT_BYTES { Err(BadList::TooLarge) } else { Ok(None) }
    }
}

// === impl Scan ===

impl Scan {
    /// The length of the value that the buffer begins with, once it is all there.
    fn end(&mut self, buffer: &[u8]) -> Option<usize> {
        while let Some(&byte) = buffer.get(self.at) {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return Some(self.at + 1);
                        }
                    }
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    // The end of what a bare number or word stands in.
                    b'}' | b']' | b',' if self.depth == 0 => return Some(self.at),
                    b'}' | b']' => {
                        self.depth -= 1;
                        if self.depth == 0 {
                            return Some(self.at + 1);
                        }
                    }
                    _ if self.depth == 0 && byte.is_ascii_whitespace() => return Some(self.at),
                    _ => {}
                }
            }
            self.at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pieces of a text that comes in chunks of `size` bytes.
    fn read(text: &str, size: usize) -> Result<Vec<Piece>, BadList> {
        let mut reader = ListReader::default();
        let mut pieces = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            reader.feed(chunk);
            while let Some(piece) = reader.next()? {
                let end = piece == Piece::End;
                pieces.push(piece);
                if end {
                    return Ok(pieces);
                }
            }
        }
        Ok(pieces)
    }

    #[test]
    fn items_come_one_by_one_however_the_bytes_are_cut() {
        let text = r#" {"kind":"List", "apiVersion" : "v1","metadata":{"resourceVersion":"7","x":[1,"]}"]},
            "items": [ {"a":"}\"{,]"} ,{"b":[{}]}, 5 , "s"] , "other": [null, true]} "#;
        let item = |text: &'static str| Piece::Item(Bytes::from_static(text.as_bytes()));
        let expected = vec![
            Piece::Metadata(Bytes::from_static(br#"{"resourceVersion":"7","x":[1,"]}"]}"#)),
            item(r#"{"a":"}\"{,]"}"#),
            item(r#"{"b":[{}]}"#),
            item("5"),
            item(r#""s""#),
            Piece::End,
        ];
        for size in 1..=text.len() {
            assert_eq!(read(text, size), Ok(expected.clone()), "in chunks of {size}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_and_what_is_cut_off_has_no_end() {
        assert_eq!(read(r#"{"items":[]}"#, 3), Ok(vec![Piece::End]));
        assert_eq!(read(r#"{"items":null}"#, 3), Ok(vec![Piece::End]));
        assert_eq!(read(r#"{"kind":"Table","rows":[]}"#, 3), Err(BadList::NoItems));
        assert_eq!(read("<html>", 3), Err(BadList::NotJson));
        assert_eq!(read(r#"{"items":]"#, 3), Err(BadList::NotJson));
        assert_eq!(read(r#"{"items":[{"a":1},{"b""#, 3).map(|pieces| pieces.len()), Ok(1));
    }
}
