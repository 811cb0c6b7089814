//! Texts from guests, made fit for logs and conditions.

/// At most `limit` bytes of a text, whole characters.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// The text in one line: control characters, line breaks too, are written as escapes, so that a
/// guest can neither forge a log line nor steer a terminal.
pub(crate) fn one_line(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(char::is_control) {
        let escape = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
        text.chars().map(escape).collect::<String>().into()
    } else {
        text.into()
    }
}
