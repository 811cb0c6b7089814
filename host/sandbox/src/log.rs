//! What guests write: log lines of the contract, and their standard output and error (feature F6).
//!
//! Lines go to `tracing`, target `reeve::guest`, in the span of the run. Lines and bytes of one
//! call are limited together, whatever they come from; the rest is dropped and counted. The last
//! words of a guest are kept apart from that, because they explain a trap.

use tracing::Level;

use crate::config::{MAX_LAST_WORDS, MAX_LOG_BYTES, MAX_LOG_LINE};
use crate::text::{cut, one_line};

/// The target of guests' lines.
const TARGET: &str = "reeve::guest";

/// The log of one call.
#[derive(Debug)]
pub(crate) struct GuestLog {
    lines_left: u32,
    bytes_left: usize,
    written: u32,
    dropped: u32,
    last_words: String,
    out: Vec<u8>,
    err: Vec<u8>,
}

/// One of the two streams that every program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

impl GuestLog {
    /// A log that takes so many lines.
    pub(crate) fn new(lines: u32) -> Self {
        Self {
            lines_left: lines,
            bytes_left: MAX_LOG_BYTES,
            written: 0,
            dropped: 0,
            last_words: String::new(),
            out: Vec::new(),
            err: Vec::new(),
        }
    }

    /// Lines written so far.
    pub(crate) fn written(&self) -> u32 {
        self.written
    }

    /// Lines dropped so far.
    pub(crate) fn dropped(&self) -> u32 {
        self.dropped
    }

    /// The last thing that the guest said in an error line or on its standard error.
    pub(crate) fn last_words(&self) -> Option<&str> {
        Some(self.last_words.trim()).filter(|words| !words.is_empty())
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, level: Level, message: &str, fields: &[(String, String)]) {
        if level == Level::ERROR {
            cut(message, MAX_LAST_WORDS).clone_into(&mut self.last_words);
        }
        let size = message.len() + fields.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if !self.take(size.min(MAX_LOG_LINE)) {
            return;
        }
        let mut room = MAX_LOG_LINE;
        let message = cut(message, room);
        room -= message.len();
        let mut shown = String::new();
        for (key, value) in fields {
            if room == 0 {
                break;
            }
            if !shown.is_empty() {
                shown.push(' ');
            }
            let key = cut(key, room);
            room -= key.len();
            let value = cut(value, room);
            room -= value.len();
            shown.push_str(key);
            shown.push('=');
            shown.push_str(value);
        }
        emit(level, &one_line(message), &one_line(&shown));
    }

    /// Takes bytes of a stream, which become a line at each line break.
    pub(crate) fn bytes(&mut self, stream: Stream, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let buffer = self.buffer(stream);
            let room = MAX_LOG_LINE.saturating_sub(buffer.len());
            buffer.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.end_line(stream);
            }
        }
    }

    /// Writes what the streams hold without a line break. Called when the guest has ended.
    pub(crate) fn finish(&mut self) {
        self.end_line(Stream::Out);
        self.end_line(Stream::Err);
        if self.dropped > 0 {
            tracing::warn!(
                target: TARGET,
                dropped = self.dropped,
                "the plugin wrote more than its limit (`limits.logLines`); the rest of this run's lines is dropped"
            );
        }
    }

    fn end_line(&mut self, stream: Stream) {
        let line = std::mem::take(self.buffer(stream));
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        let level = match stream {
            Stream::Out => Level::INFO,
            Stream::Err => Level::WARN,
        };
        if stream == Stream::Err {
            self.remember(text);
        }
        if self.take(text.len()) {
            emit(level, &one_line(text), "");
        }
    }

    /// A panic message of several lines on standard error is kept whole.
    fn remember(&mut self, line: &str) {
        if self.last_words.len() + line.len() >= MAX_LAST_WORDS {
            self.last_words.clear();
        }
        if !self.last_words.is_empty() {
            self.last_words.push('\n');
        }
        self.last_words.push_str(cut(line, MAX_LAST_WORDS));
    }

    fn buffer(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        }
    }

    fn take(&mut self, bytes: usize) -> bool {
        if self.lines_left == 0 || self.bytes_left < bytes {
            self.dropped = self.dropped.saturating_add(1);
            return false;
        }
        self.lines_left -= 1;
        self.bytes_left -= bytes;
        self.written += 1;
        true
    }
}

fn emit(level: Level, message: &str, fields: &str) {
    // The level of an event is part of its static description, hence one arm for each.
    macro_rules! event {
        ($level:ident) => {
            if fields.is_empty() {
                tracing::event!(target: TARGET, Level::$level, "{message}")
            } else {
                tracing::event!(target: TARGET, Level::$level, fields, "{message}")
            }
        };
    }
    match level {
        Level::ERROR => event!(ERROR),
        Level::WARN => event!(WARN),
        Level::INFO => event!(INFO),
        Level::DEBUG => event!(DEBUG),
        Level::TRACE => event!(TRACE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_limit_are_dropped_and_counted() {
        let mut log = GuestLog::new(3);
        for _ in 0..10 {
            log.line(Level::INFO, "hello", &[]);
        }
        log.bytes(Stream::Out, b"one\ntwo\n");
        log.finish();
        assert_eq!((log.written(), log.dropped()), (3, 9));
    }

    #[test]
    fn bytes_are_limited_too() {
        let mut log = GuestLog::new(u32::MAX);
        let line = "x".repeat(MAX_LOG_LINE * 2);
        for _ in 0..100 {
            log.line(Level::INFO, &line, &[("k".to_owned(), line.clone())]);
        }
        assert_eq!(log.written() as usize, MAX_LOG_BYTES / MAX_LOG_LINE);
        assert_eq!(log.written() + log.dropped(), 100);
    }

    #[test]
    fn last_words_survive_the_limit() {
        let mut log = GuestLog::new(0);
        log.bytes(Stream::Err, b"thread 'main' panicked at src/lib.rs:1:2:\nboom");
        log.finish();
        assert_eq!(log.last_words(), Some("thread 'main' panicked at src/lib.rs:1:2:\nboom"));
        log.line(Level::ERROR, "later", &[]);
        assert_eq!(log.last_words(), Some("later"));
    }

    #[test]
    fn a_stream_without_line_breaks_needs_bounded_memory() {
        let mut log = GuestLog::new(10);
        for _ in 0..1_000 {
            log.bytes(Stream::Out, &[b'x'; 4096]);
        }
        assert!(log.out.capacity() <= 2 * MAX_LOG_LINE);
    }
}
