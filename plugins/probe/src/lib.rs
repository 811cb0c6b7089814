//! The test body for scenarios: a plugin that does what its object says. README.md beside it
//! specifies the programs.
//!
//! The three crates below export it with different roles, each with its own replaceable manifest.

pub mod block;
mod expand;
mod steps;

use std::collections::BTreeMap;

use reeve_sdk::log::{self, Level};
use reeve_sdk::prelude::*;

use crate::block::Block;
use crate::steps::Run;

/// Where a primary that has no `spec.steps` keeps its program as JSON text.
const ANNOTATION: &str = "test.reeve.dev/probe";
/// Where a watched object says whom its change concerns.
const MAPS_TO: &str = "test.reeve.dev/maps-to";

/// The role `reconciler`.
///
/// # Errors
/// What the program says.
pub fn reconcile(ctx: &Context, object: &Value, block: &'static Block) -> Result<Outcome, Error> {
    role(ctx, object, block, "run", "steps", "runs")
}

/// The role `cleanup`.
///
/// # Errors
/// What the program says.
pub fn cleanup(ctx: &Context, object: &Value, block: &'static Block) -> Result<Outcome, Error> {
    role(ctx, object, block, "cleanup", "cleanup", "cleanups")
}

/// A run without a primary: there is no program, so only the call is logged.
pub fn gone(ctx: &Context, block: &'static Block) -> Outcome {
    let version = block::version(block);
    log::write(
        Level::Info,
        "probe gone",
        &[
            ("name", ctx.name()),
            ("namespace", ctx.namespace().unwrap_or("")),
            ("attempt", &ctx.attempt().to_string()),
            ("reasons", &ctx.reasons().join(",")),
            ("version", &version),
        ],
    );
    Outcome::done()
}

/// The role `mapper`.
///
/// # Errors
/// What the changed object's annotation says.
///
/// # Panics
/// If it says so.
#[expect(clippy::panic, reason = "a scenario asks for it")]
pub fn map(watch: &str, changed: &Handle, block: &'static Block) -> Result<Vec<ObjectName>, Error> {
    let name = changed.name();
    let version = block::version(block);
    log::write(
        Level::Info,
        "probe map",
        &[
            ("name", &name.name),
            ("namespace", name.namespace.as_deref().unwrap_or("")),
            ("uid", &changed.uid()),
            ("resource-version", &changed.resource_version()),
            ("watch", watch),
            ("version", &version),
        ],
    );
    let pointer = format!("/metadata/annotations/{}", MAPS_TO.replace('/', "~1"));
    let Some(list) = changed.field::<String>(&pointer)? else { return Ok(Vec::new()) };
    match list.as_str() {
        "!panic" => panic!("asked to panic in map"),
        "!fail" => return Err(Error::permanent("MAP_FAILED", "asked to fail in map")),
        "!loop" => steps::spin_for_ever(),
        _ => {}
    }
    Ok(list
        .split(',')
        .filter(|entry| !entry.is_empty())
        .map(|entry| match entry.split_once('/') {
            Some((namespace, name)) => ObjectName::namespaced(namespace, name),
            None => ObjectName::cluster(entry),
        })
        .collect())
}

fn role(
    ctx: &Context,
    object: &Value,
    block: &'static Block,
    role: &str,
    steps: &str,
    counter: &str,
) -> Result<Outcome, Error> {
    let version = block::version(block);
    let facts = facts(ctx, object, &version, counter);
    let fields: Vec<(&str, &str)> = facts.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    log::write(Level::Info, &format!("probe {role}"), &fields);

    let program = program(object)?;
    if program["count"] == true {
        let before = object["status"][counter].as_u64().unwrap_or(0);
        ctx.set_status(&json!({ counter: before + 1 }))?;
    }
    if program["echo"] == true {
        ctx.set_status(&json!({ "run": {
            "attempt": ctx.attempt(),
            "reasons": ctx.reasons(),
            "generation": object["metadata"]["generation"],
            "resourceVersion": object["metadata"]["resourceVersion"],
            "uid": object["metadata"]["uid"],
            "version": version,
            "config": ctx.config::<Value>()?,
        } }))?;
    }
    Run::new(ctx, facts).all(program[steps].as_array().map(Vec::as_slice).unwrap_or_default())
}

/// What a run knows of itself: for the log line, and for `$(…)` in the steps.
fn facts(ctx: &Context, object: &Value, version: &str, counter: &str) -> BTreeMap<String, String> {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or("").to_owned();
    [
        ("name", ctx.name().to_owned()),
        ("namespace", ctx.namespace().unwrap_or("").to_owned()),
        ("uid", text("uid")),
        ("resource-version", text("resourceVersion")),
        ("generation", metadata["generation"].as_u64().unwrap_or(0).to_string()),
        ("attempt", ctx.attempt().to_string()),
        ("reasons", ctx.reasons().join(",")),
        ("version", version.to_owned()),
        ("runs", object["status"][counter].as_u64().unwrap_or(0).to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// The program in the spec, the data or an annotation.
fn program(object: &Value) -> Result<Value, Error> {
    if object["spec"]["steps"].is_array() || object["spec"]["cleanup"].is_array() {
        return Ok(object["spec"].clone());
    }
    let data = object["data"]["probe"].as_str();
    let Some(text) = data.or(object["metadata"]["annotations"][ANNOTATION].as_str()) else {
        return Ok(object["spec"].clone());
    };
    Ok(reeve_sdk::json::from_str(text)?)
}

#[cfg(test)]
mod tests;
