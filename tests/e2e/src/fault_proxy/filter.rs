//! Which requests are meant: the one vocabulary of rules and of questions to the request log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A request, seen as far as filters go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLine {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query's pairs, decoded; of several with one name the last.
    pub query: BTreeMap<String, String>,
    /// The `User-Agent` header, empty without one.
    pub user_agent: String,
}

/// Requests that have all of these properties; what is empty or absent does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// One of these methods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// The whole path, where `*` stands for any text, also across `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// None of these paths, same form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_paths: Vec<String>,
    /// True: only watches; false: no watches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<bool>,
    /// Query parameters; the value may hold `*`, and `null` means that the parameter is absent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, Option<String>>,
    /// A part of the user agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
}

// === impl RequestLine ===

impl RequestLine {
    /// What stands in a request's head.
    pub fn of<B>(request: &http::Request<B>) -> Self {
        Self {
            method: request.method().as_str().to_owned(),
            path: request.uri().path().to_owned(),
            query: parse_query(request.uri().query().unwrap_or_default()),
            user_agent: request
                .headers()
                .get(http::header::USER_AGENT)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
        }
    }

    /// Whether this is a watch.
    pub fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|value| matches!(value.as_str(), "true" | "1"))
    }
}

// === impl Filter ===

impl Filter {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Everything that may change the cluster: no GET and none of the reviews, which only ask.
    pub fn writes() -> Self {
        Self {
            methods: ["POST", "PUT", "PATCH", "DELETE"].map(str::to_owned).to_vec(),
            not_paths: vec!["*reviews".to_owned()],
            ..Self::default()
        }
    }

    /// Watches whose path matches.
    pub fn watches(path: &str) -> Self {
        Self { watch: Some(true), ..Self::default() }.on(path)
    }

    /// GETs that are no watches and whose path matches.
    pub fn reads(path: &str) -> Self {
        Self { methods: vec!["GET".to_owned()], watch: Some(false), ..Self::default() }.on(path)
    }

    /// With this path (`*` stands for any text).
    #[must_use]
    pub fn on(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    /// Without this path (`*` stands for any text).
    #[must_use]
    pub fn not_on(mut self, path: &str) -> Self {
        self.not_paths.push(path.to_owned());
        self
    }

    /// Only this method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.methods = vec![method.to_owned()];
        self
    }

    /// With this query parameter (`*` stands for any text).
    #[must_use]
    pub fn with_query(mut self, name: &str, value: &str) -> Self {
        self.query.insert(name.to_owned(), Some(value.to_owned()));
        self
    }

    /// Without this query parameter.
    #[must_use]
    pub fn without_query(mut self, name: &str) -> Self {
        self.query.insert(name.to_owned(), None);
        self
    }

    /// Whether a request is meant.
    pub fn matches(&self, line: &RequestLine) -> bool {
        (self.methods.is_empty() || self.methods.contains(&line.method))
            && self.path.as_deref().is_none_or(|pattern| glob(pattern, &line.path))
            && !self.not_paths.iter().any(|pattern| glob(pattern, &line.path))
            && self.watch.is_none_or(|watch| watch == line.is_watch())
            && self.user_agent.as_deref().is_none_or(|part| line.user_agent.contains(part))
            && self.query.iter().all(|(name, wanted)| match (wanted, line.query.get(name)) {
                (None, found) => found.is_none(),
                (Some(pattern), Some(found)) => glob(pattern, found),
                (Some(_), None) => false,
            })
    }
}

/// Whether `text` as a whole matches `pattern`, in which `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Splits and decodes a query string.
pub(crate) fn parse_query(query: &str) -> BTreeMap<String, String> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(name), percent_decode(value))
        })
        .collect()
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |b: u8| char::from(b).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        match bytes[at] {
            b'+' => out.push(b' '),
            b'%' => {
                match (bytes.get(at + 1).copied().and_then(hex), bytes.get(at + 2).copied().and_then(hex)) {
                    (Some(high), Some(low)) => {
                        out.push(high * 16 + low);
                        at += 2;
                    }
                    _ => out.push(b'%'),
                }
            }
            other => out.push(other),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(method: &str, target: &str) -> RequestLine {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        RequestLine {
            method: method.to_owned(),
            path: path.to_owned(),
            query: parse_query(query),
            user_agent: "reeve/0.1".to_owned(),
        }
    }

    #[track_caller]
    fn check(filter: &Filter, method: &str, target: &str, expected: bool) {
        assert_eq!(filter.matches(&line(method, target)), expected, "{method} {target} against {filter:?}");
    }

    #[test]
    fn globs_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("/a", "/a", true),
            ("/a", "/ab", false),
            ("/a*", "/ab/c", true),
            ("*b", "/ab", true),
            ("*b", "/abc", false),
            ("/a*c*e", "/abcde", true),
            ("/a*c*e", "/abde", false),
            ("*aa", "aaa", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern:?} against {text:?}");
        }
    }

    #[test]
    fn filters_look_at_every_property() {
        let watch = Filter::watches("/api/v1/*configmaps");
        check(&watch, "GET", "/api/v1/namespaces/a/configmaps?watch=true", true);
        check(&watch, "GET", "/api/v1/configmaps?watch=1&x=y", true);
        check(&watch, "GET", "/api/v1/configmaps", false);
        check(&watch, "GET", "/api/v1/secrets?watch=true", false);
        check(&Filter::reads("*"), "GET", "/api/v1/configmaps?watch=true", false);
        check(&Filter::writes(), "PATCH", "/api/v1/namespaces/a/configmaps/b", true);
        check(&Filter::writes(), "GET", "/api/v1/namespaces/a/configmaps/b", false);
        check(&Filter::writes(), "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", false);
        check(
            &Filter::writes().not_on("*/events"),
            "POST",
            "/apis/events.k8s.io/v1/namespaces/a/events",
            false,
        );
        let continued = Filter::any().with_query("continue", "*").without_query("limit");
        check(&continued, "GET", "/a?continue=x", true);
        check(&continued, "GET", "/a?continue=x&limit=5", false);
        check(&continued, "GET", "/a", false);
        check(&Filter { user_agent: Some("kubectl".to_owned()), ..Filter::any() }, "GET", "/a", false);
        check(&Filter { user_agent: Some("reeve".to_owned()), ..Filter::any() }, "GET", "/a", true);
    }

    #[test]
    fn queries_are_decoded() {
        let query = parse_query("labelSelector=a%3Db%2Cc+d&watch=true&bad=%zz&flag");
        assert_eq!(query["labelSelector"], "a=b,c d");
        assert_eq!(query["bad"], "%zz");
        assert_eq!(query["flag"], "");
    }
}
