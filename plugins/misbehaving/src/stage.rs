//! What a guest reads and stages that it may not, or too much of it.

use reeve_sdk::__private::{Stage, stage_text};
use reeve_sdk::prelude::*;
use reeve_sdk::{EventKind, Verb};

/// Whether the mode was one of these. A refusal of the host is the run's failure.
pub(crate) fn misbehave(ctx: &Context, mode: &str, n: u64) -> Result<bool, Error> {
    match mode {
        "everything" => everything(ctx)?,
        "events" => {
            for i in 0..n {
                ctx.emit(EventKind::Normal, "Flood", "Flood", &format!("event {i}"))?;
            }
        }
        "event-huge" => ctx.event("Huge", &"x".repeat(kib(n)))?,
        "children" => {
            for i in 0..n {
                child(ctx, &i.to_string(), &json!({}))?;
            }
        }
        "child-huge" => child(ctx, "huge", &json!({ "x": "x".repeat(kib(n)) }))?,
        "status-huge" => ctx.set_status(&json!({ "x": "x".repeat(kib(n)) }))?,
        "conditions" => {
            for i in 0..n {
                ctx.condition(&format!("Type{i}"), true, "Flood", "")?;
            }
        }
        "condition-bad" => ctx.condition("not a type!", true, "not a reason!", "")?,
        "requeue-many" => (0..n).for_each(|i| ctx.requeue_after_raw(Duration::from_millis(i))),
        "undeclared-read" => {
            ctx.find("v1", "Pod", "x")?;
        }
        "undeclared-list" => {
            ctx.list("v1", "Pod").handles()?;
        }
        "undeclared-children" => {
            ctx.children("v1", "Pod")?;
        }
        "undeclared-index" => {
            ctx.list("v1", "Node").index("none", "x").handles()?;
        }
        "undeclared-child" => ctx.apply_child(&json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "x" },
        }))?,
        "undeclared-write" => ctx.write(&Write::delete("v1", "Pod", "x"))?,
        "undeclared-verb" => ctx.write(&Write::delete("v1", "ConfigMap", Verb::Delete.as_str()))?,
        "selector-bad" => {
            ctx.list("v1", "Node").labels("a in b").handles()?;
        }
        _ => return texts(ctx, mode, n),
    }
    Ok(true)
}

/// Texts that are no JSON, or JSON of the wrong shape.
fn texts(ctx: &Context, mode: &str, n: u64) -> Result<bool, Error> {
    let (stage, text) = match mode {
        "json-bad" => (Stage::Child, "{\"apiVersion\": "),
        "json-deep" => {
            let deep = "[".repeat(kib(n)) + &"]".repeat(kib(n));
            let text = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x"}},"data":{deep}}}"#
            );
            stage_text(ctx, Stage::Child, &text)?;
            return Ok(true);
        }
        "child-list" => (Stage::Child, "[]"),
        "child-without-kind" => (Stage::Child, r#"{"apiVersion":"v1","metadata":{"name":"x"}}"#),
        "child-without-name" => (Stage::Child, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}"#),
        "child-elsewhere" => (
            Stage::Child,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"elsewhere"}}"#,
        ),
        "status-bad" => (Stage::Status, "{"),
        "status-list" => (Stage::Status, "[]"),
        "status-conditions" => (Stage::Status, r#"{"conditions":[]}"#),
        "status-generation" => (Stage::Status, r#"{"observedGeneration":7}"#),
        "write-bad" => (Stage::Write, "nothing"),
        "write-verb" => {
            (Stage::Write, r#"{"verb":"replace","apiVersion":"v1","kind":"ConfigMap","name":"x"}"#)
        }
        "write-key" => (
            Stage::Write,
            r#"{"verb":"merge-patch","apiVersion":"v1","kind":"ConfigMap","name":"x","body":{},"fieldManager":"x"}"#,
        ),
        "write-primary" => (
            Stage::Write,
            r#"{"verb":"merge-patch","apiVersion":"test.reeve.dev/v1","kind":"Mishap","name":"x","body":{}}"#,
        ),
        "wait-bad" => (Stage::Wait, r#"{"apiVersion":"v1","kind":"Node","name":"x"}"#),
        "wait-key" => {
            (Stage::Wait, r#"{"apiVersion":"v1","kind":"Node","name":"x","exists":true,"until":1}"#)
        }
        _ => return Ok(false),
    };
    stage_text(ctx, stage, text)?;
    Ok(true)
}

/// One of each thing that can be staged.
pub(crate) fn everything(ctx: &Context) -> Result<(), Error> {
    child(ctx, "child", &json!({ "a": "b" }))?;
    ctx.set_status(&json!({ "staged": true }))?;
    ctx.condition("Ready", true, "Staged", "everything is staged")?;
    ctx.event("Staged", "everything is staged")?;
    ctx.write(&Write::create(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": format!("{}-written", ctx.name()) },
    }))?)?;
    Ok(())
}

/// A ConfigMap of the primary.
pub(crate) fn child(ctx: &Context, suffix: &str, data: &Value) -> Result<(), Error> {
    ctx.apply_child(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": format!("{}-{suffix}", ctx.name()) },
        "data": data,
    }))
}

fn kib(n: u64) -> usize {
    usize::try_from(n << 10).unwrap_or(usize::MAX)
}
