//! Label selectors, as far as tests need them: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`,
//! `!a`, joined by commas.

use std::str::FromStr;

use serde_json::Value;

/// A parsed label selector.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Selector {
    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"].get(key).and_then(Value::as_str);
        let among =
            |key: &str, values: &[String]| label(key).is_some_and(|found| values.iter().any(|v| v == found));
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => among(key, values),
            Requirement::NotIn(key, values) => !among(key, values),
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
        })
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = vec![String::new()];
        let mut depth = 0;
        for each in text.chars() {
            match each {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            match parts.last_mut() {
                Some(last) if each != ',' || depth > 0 => last.push(each),
                _ => parts.push(String::new()),
            }
        }
        parts.iter().map(|part| requirement(part.trim())).collect::<Result<_, _>>().map(Self)
    }
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let set = |values: &str| -> Result<Vec<String>, String> {
        let inner = values.trim().strip_prefix('(').and_then(|values| values.strip_suffix(')'));
        let inner = inner.ok_or_else(|| format!("{part:?} is no label requirement"))?;
        Ok(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    let key = |key: &str| key.trim().to_owned();
    if let Some((name, values)) = part.split_once(" notin ") {
        return Ok(Requirement::NotIn(key(name), set(values)?));
    }
    if let Some((name, values)) = part.split_once(" in ") {
        return Ok(Requirement::In(key(name), set(values)?));
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key(name), vec![key(value)]));
    }
    if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(key(name), vec![key(value)]));
    }
    match part.strip_prefix('!') {
        Some(name) => Ok(Requirement::Absent(key(name))),
        None if part.is_empty() => Err("a label requirement is empty".to_owned()),
        None => Ok(Requirement::Exists(key(part))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Selector;

    #[track_caller]
    fn check(selector: &str, expected: bool) {
        let object = json!({ "metadata": { "labels": { "app": "web", "tier": "a" } } });
        assert_eq!(selector.parse::<Selector>().unwrap().matches(&object), expected, "{selector}");
    }

    #[test]
    fn selectors_match_as_the_servers() {
        check("app=web", true);
        check("app==web,tier in (a, b)", true);
        check("app!=web", false);
        check("none!=x", true);
        check("tier notin (b,c)", true);
        check("tier notin (a)", false);
        check("app", true);
        check("!app", false);
        check("!none", true);
        assert!("app in web".parse::<Selector>().is_err());
        assert!("".parse::<Selector>().is_err());
    }
}
