//! `$(…)` in the strings of a program.

use std::collections::BTreeMap;

use reeve_sdk::prelude::Value;

/// The value with every `$(fact)` in its strings replaced; unknown ones stay.
pub(crate) fn value(value: &Value, facts: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => Value::String(self::text(text, facts)),
        Value::Array(items) => items.iter().map(|item| self::value(item, facts)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| (text(key, facts), self::value(field, facts))).collect()
        }
        other => other.clone(),
    }
}

/// The text with every `$(fact)` replaced; unknown ones stay.
pub(crate) fn text(text: &str, facts: &BTreeMap<String, String>) -> String {
    if !text.contains("$(") {
        return text.to_owned();
    }
    facts.iter().fold(text.to_owned(), |text, (key, value)| text.replace(&format!("$({key})"), value))
}
