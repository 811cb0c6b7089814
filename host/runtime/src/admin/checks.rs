//! `/readyz` and its named checks.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::apiserver::ApiServer;
use crate::registry::Views;

/// Whether the host was ready once, and whether it is stopping. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Readiness(Arc<State>);

#[derive(Default)]
struct State {
    was_settled: AtomicBool,
    stopping: AtomicBool,
}

/// One named check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) ok: bool,
    /// Whether it decides on readiness; the others only inform.
    pub(crate) decides: bool,
    pub(crate) detail: String,
}

impl Readiness {
    /// The host stops: nothing new should be sent to it.
    pub(crate) fn stopping(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
    }

    /// All checks, in a fixed order.
    pub(crate) fn checks(&self, views: &Views, apiserver: &ApiServer) -> Vec<Check> {
        let published = views.load();
        let settled = published.listed && published.settled;
        // Once ready, a plugin that is being swapped makes nobody unready.
        let was_settled = self.0.was_settled.fetch_or(settled, Ordering::Relaxed) || settled;
        let loading: Vec<_> = published
            .places
            .iter()
            .filter(|place| place.next.as_ref().is_some_and(|next| next.state == "loading"))
            .map(|place| place.source.as_str())
            .collect();
        let stopping = self.0.stopping.load(Ordering::Relaxed);
        let check = |name, ok, decides, detail: String| Check { name, ok, decides, detail };
        vec![
            check("ping", true, true, String::new()),
            check("sources", published.listed, true, "not every source has been looked at yet".to_owned()),
            check("plugins", was_settled, true, format!("first load and sync: {}", loading.join(", "))),
            check("running", !stopping, true, "the host is stopping".to_owned()),
            check("apiserver", apiserver.is_up(), false, apiserver.detail()),
        ]
    }
}

/// The answer in the form that Kubernetes' own components give.
pub(crate) fn answer(checks: &[Check], excluded: &[&str], verbose: bool) -> Response {
    let (ok, text) = judge(checks, excluded, verbose);
    let status = if ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    (status, text).into_response()
}

fn judge(checks: &[Check], excluded: &[&str], verbose: bool) -> (bool, String) {
    let mut text = String::new();
    let mut ready = true;
    for check in checks {
        let skipped = excluded.contains(&check.name);
        ready &= check.ok || skipped || !check.decides;
        // Writing to a String cannot fail.
        let _ = match (skipped, check.ok, check.decides) {
            (true, ..) => writeln!(text, "[+]{} excluded: ok", check.name),
            (_, true, _) => writeln!(text, "[+]{} ok", check.name),
            (_, false, true) => writeln!(text, "[-]{} failed: {}", check.name, check.detail),
            (_, false, false) => writeln!(
                text,
                "[!]{} failed, which does not make the host unready: {}",
                check.name, check.detail
            ),
        };
    }
    for name in excluded.iter().filter(|name| !checks.iter().any(|check| check.name == **name)) {
        let _ = writeln!(text, "warn: there is no check {name:?} to exclude");
    }
    let _ = writeln!(text, "readyz check {}", if ready { "passed" } else { "failed" });
    if ready && !verbose { (true, "ok".to_owned()) } else { (ready, text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, ok: bool, decides: bool) -> Check {
        Check { name, ok, decides, detail: "why".to_owned() }
    }

    #[test]
    fn only_deciding_checks_that_are_not_excluded_count() {
        let checks = [check("a", true, true), check("b", false, true), check("c", false, false)];
        let (ok, text) = judge(&checks, &[], false);
        assert!(!ok);
        assert_eq!(
            text,
            "[+]a ok\n[-]b failed: why\n[!]c failed, which does not make the host unready: why\nreadyz check failed\n"
        );
        assert_eq!(judge(&checks, &["b"], false), (true, "ok".to_owned()));
        let (ok, text) = judge(&checks, &["b", "x"], true);
        assert!(ok && text.contains("[+]b excluded: ok\n") && text.contains("no check \"x\""));
    }
}
