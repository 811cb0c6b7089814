use reeve_sdk::testing::{Case, Run};

use super::*;

fn run(mode: &str, n: u64) -> Run {
    Case::new(
        json!({ "metadata": { "name": "m", "namespace": "web" }, "spec": { "mode": mode, "amount": n } }),
    )
    .run::<Misbehaving>()
}

#[track_caller]
fn check_failure(mode: &str, code: &str) {
    assert_eq!(run(mode, 1).error().code(), code, "{mode}");
}

#[test]
fn what_the_host_refuses_is_the_runs_failure() {
    for mode in ["undeclared-read", "undeclared-list", "undeclared-children", "undeclared-index"] {
        check_failure(mode, "NOT_DECLARED");
    }
    for mode in ["undeclared-child", "undeclared-write", "undeclared-verb", "write-primary"] {
        check_failure(mode, "NOT_DECLARED");
    }
    for mode in ["json-bad", "child-without-name", "status-list", "status-conditions", "wait-bad"] {
        check_failure(mode, "INVALID_ARGUMENT");
    }
    check_failure("no-such-mode", "UNKNOWN_MODE");
}

#[test]
fn floods_are_as_large_as_asked() {
    assert_eq!(run("events", 40).plan().events.len(), 40);
    assert_eq!(run("children", 40).plan().children.len(), 40);
    assert_eq!(run("status-huge", 2).plan().status("x").as_str().map(str::len), Some(2048));
    assert_eq!(run("requeue-many", 3).plan().requeue_after, Some(Duration::ZERO));
}

#[test]
fn a_failure_after_staging_has_staged() {
    let run = run("fail-after-staging", 0);
    assert_eq!(run.error().code(), "ASKED");
    assert_eq!(run.staged().children.len(), 1);
    assert_eq!(run.staged().writes.len(), 1);
    assert_eq!(run.staged().conditions.len(), 1);
}

#[test]
fn failures_are_full() {
    let run = run("fail-full", 7);
    assert_eq!(run.error().delay(), Some(Duration::from_millis(7)));
    assert_eq!(run.error().details()[1], ("port".to_owned(), "5432".to_owned()));
}
