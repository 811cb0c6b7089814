//! The operations of a program.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use reeve_sdk::log::{self, Level};
use reeve_sdk::prelude::*;
use reeve_sdk::{Category, EventKind, Handles, Query};

use crate::expand;

/// One run of a program.
pub(crate) struct Run<'a> {
    ctx: &'a Context,
    facts: BTreeMap<String, String>,
    complete: Option<bool>,
    comes_back: bool,
}

/// Whether the steps go on.
#[derive(PartialEq, Eq)]
enum Next {
    Step,
    End,
}

impl<'a> Run<'a> {
    pub(crate) fn new(ctx: &'a Context, facts: BTreeMap<String, String>) -> Self {
        Self { ctx, facts, complete: None, comes_back: false }
    }

    /// Runs the steps in order.
    pub(crate) fn all(mut self, steps: &[Value]) -> Result<Outcome, Error> {
        for (at, step) in steps.iter().enumerate() {
            if !self.applies(&step["when"]) {
                continue;
            }
            self.facts.insert("step".to_owned(), at.to_string());
            if self.one(step)? == Next::End {
                break;
            }
        }
        // Waits and delays were staged by their steps.
        let outcome = if self.comes_back { Outcome::pending() } else { Outcome::done() };
        Ok(match self.complete {
            Some(true) => outcome.children_complete(),
            Some(false) => outcome.children_incomplete(),
            None => outcome,
        })
    }

    fn one(&mut self, step: &Value) -> Result<Next, Error> {
        let operations = step.as_object().into_iter().flatten();
        let mut operations = operations.filter(|(key, _)| *key != "when" && *key != "as");
        let (Some((operation, argument)), None) = (operations.next(), operations.next()) else {
            return Err(wrong(&self.facts, "needs exactly one operation"));
        };
        let argument = expand::value(argument, &self.facts);
        match self.operate(operation, &argument, step) {
            Ok(Some(result)) => self.record(step, &result)?,
            Ok(None) if operation == "done" => return Ok(Next::End),
            Ok(None) => {}
            Err(error) if operation != "fail" && step["as"].is_string() => {
                let failure = json!({
                    "code": error.code(), "message": error.message(), "transient": error.is_transient(),
                });
                self.record(step, &json!({ "failure": failure }))?;
            }
            Err(error) => return Err(error),
        }
        Ok(Next::Step)
    }

    fn record(&self, step: &Value, result: &Value) -> Result<(), Error> {
        match step["as"].as_str() {
            // A merge patch removes what is null, so a missing value is written as a text.
            Some(name) if result.is_null() => self.ctx.set_status(&json!({ "results": { name: "null" } })),
            Some(name) => self.ctx.set_status(&json!({ "results": { name: result } })),
            None => Ok(()),
        }
    }

    fn operate(&mut self, operation: &str, argument: &Value, step: &Value) -> Result<Option<Value>, Error> {
        let ctx = self.ctx;
        let text = |key: &str| argument[key].as_str().unwrap_or("");
        let kind = (text("apiVersion"), text("kind"));
        match operation {
            "get" => {
                let namespace = match argument["namespace"].as_str() {
                    Some("") => None,
                    Some(namespace) => Some(namespace.to_owned()),
                    None => ctx.namespace().map(str::to_owned),
                };
                let name = ObjectName { namespace, name: text("name").to_owned() };
                let found = ctx.find_at(kind.0, kind.1, &name)?;
                return found.map_or(Ok(Value::Null), |found| seen(&found, argument)).map(Some);
            }
            "list" => {
                let filters = |query: Query<'a>| -> Query<'a> {
                    let mut query = query;
                    if let Some(namespace) = argument["namespace"].as_str() {
                        query = query.namespace(namespace);
                    }
                    if let Some(labels) = argument["labels"].as_str() {
                        query = query.labels(labels);
                    }
                    match argument["owner"].as_str() {
                        Some("self") => query = query.owner(&ctx.uid()),
                        Some(uid) => query = query.owner(uid),
                        None => {}
                    }
                    if let Some(name) = argument["index"]["name"].as_str() {
                        query = query.index(name, argument["index"]["value"].as_str().unwrap_or(""));
                    }
                    query
                };
                let found = filters(ctx.list(kind.0, kind.1)).handles()?;
                return listed(&found, argument).map(Some);
            }
            "children" => return listed(&ctx.children(kind.0, kind.1)?, argument).map(Some),
            "answer" => {
                return Ok(Some(match ctx.answer(text("id"))? {
                    None => Value::Null,
                    Some(answer) => match answer.into_result() {
                        Ok(object) => json!({ "ok": object }),
                        Err(error) => json!({ "failure": {
                            "code": error.code(), "message": error.message(), "transient": error.is_transient(),
                        } }),
                    },
                }));
            }
            "config" => return ctx.config::<Value>().map(Some),
            "apply" => {
                for i in 0..times(argument) {
                    self.facts.insert("i".to_owned(), i.to_string());
                    let object = expand::value(&step["apply"]["object"], &self.facts);
                    if argument["adopt"] == true {
                        ctx.adopt_child(&object)?;
                    } else {
                        ctx.apply_child(&object)?;
                    }
                }
            }
            "complete" => {
                self.complete = argument.as_bool();
                return Ok(None);
            }
            "status" => ctx.set_status(argument)?,
            "condition" => {
                let status = match text("status") {
                    "True" => ConditionStatus::True,
                    "False" => ConditionStatus::False,
                    _ => ConditionStatus::Unknown,
                };
                ctx.condition(text("type"), status, text("reason"), text("message"))?;
            }
            "event" => {
                let kind = if text("type") == "Warning" { EventKind::Warning } else { EventKind::Normal };
                let action = argument["action"].as_str().unwrap_or("Probe");
                for i in 0..times(argument) {
                    self.facts.insert("i".to_owned(), i.to_string());
                    let note = expand::text(step["event"]["note"].as_str().unwrap_or(""), &self.facts);
                    ctx.emit(kind, text("reason"), action, &note)?;
                }
            }
            "write" => ctx.write_raw(argument["id"].as_str(), &argument["request"])?,
            "wait" => {
                ctx.wait_for_raw(argument)?;
                self.comes_back = true;
            }
            "requeueAfterMs" => {
                ctx.requeue_after_raw(Duration::from_millis(argument.as_u64().unwrap_or(0)));
                self.comes_back = true;
                return Ok(None);
            }
            "fail" => return Err(failure(argument)),
            _ => {
                self.body(operation, argument, step)?;
                return Ok(None);
            }
        }
        Ok(Some(Value::Bool(true)))
    }

    /// What concerns the guest itself rather than the cluster.
    #[expect(clippy::panic, reason = "a scenario asks for it")]
    fn body(&mut self, operation: &str, argument: &Value, step: &Value) -> Result<(), Error> {
        let number = argument.as_u64().unwrap_or(0);
        match operation {
            "done" => {}
            "log" => {
                let level = match argument["level"].as_str() {
                    Some("trace") => Level::Trace,
                    Some("debug") => Level::Debug,
                    Some("warn") => Level::Warn,
                    Some("error") => Level::Error,
                    _ => Level::Info,
                };
                for i in 0..times(argument) {
                    self.facts.insert("i".to_owned(), i.to_string());
                    let message = expand::text(step["log"]["message"].as_str().unwrap_or(""), &self.facts);
                    log::write(level, &message, &[]);
                }
            }
            "spinMs" if argument.as_i64() == Some(-1) => spin_for_ever(),
            "spinMs" => {
                let until = Instant::now() + Duration::from_millis(number);
                while Instant::now() < until {}
            }
            "sleepMs" => std::thread::sleep(Duration::from_millis(number)),
            "spinUntilCancelled" => while !self.ctx.cancelled() {},
            "panic" => panic!("{}", argument.as_str().unwrap_or("asked to panic")),
            "allocMib" => {
                black_box(vec![1_u8; usize::try_from(number << 20).unwrap_or(usize::MAX)]);
            }
            "poll" => {
                for _ in 0..argument["hostCalls"].as_u64().unwrap_or(0) {
                    black_box(self.ctx.attempt());
                }
            }
            other => return Err(wrong(&self.facts, &format!("has the unknown operation {other:?}"))),
        }
        Ok(())
    }

    /// Whether all conditions of `when` hold.
    fn applies(&self, when: &Value) -> bool {
        let fact = |key: &str| self.facts.get(key).map_or("", String::as_str);
        let number = |key: &str| fact(key).parse::<u64>().unwrap_or(0);
        let reason = |expected: &Value| fact("reasons").split(',').any(|reason| *expected == *reason);
        when.as_object().into_iter().flatten().all(|(key, expected)| {
            let wanted = expected.as_u64().unwrap_or(0);
            match key.as_str() {
                "attemptBelow" => number("attempt") < wanted,
                "attemptIs" => number("attempt") == wanted,
                "runsBelow" => number("runs") < wanted,
                "generationIs" => number("generation") == wanted,
                "versionIs" => *expected == *fact("version"),
                "reason" => reason(expected),
                "notReason" => !reason(expected),
                _ => false,
            }
        })
    }
}

/// How often: `$(i)` counts from 0.
fn times(argument: &Value) -> u64 {
    argument["count"].as_u64().unwrap_or(1)
}

/// Burns CPU until the host ends it.
pub(crate) fn spin_for_ever() -> ! {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

fn seen(found: &Handle, argument: &Value) -> Result<Value, Error> {
    match argument["pointer"].as_str() {
        Some(pointer) => found.field::<Value>(pointer).map(Option::unwrap_or_default),
        None => Ok(json!({
            "resourceVersion": found.resource_version(),
            "uid": found.uid(),
            "generation": found.generation(),
            "deleting": found.deleting(),
        })),
    }
}

fn listed(found: &Handles, argument: &Value) -> Result<Value, Error> {
    let names: Vec<String> = found.iter().map(|each| each.name().to_string()).collect();
    let mut result = json!({ "count": found.len(), "names": names });
    if argument["pointer"].is_string() {
        let values: Vec<Value> = found.iter().map(|each| seen(&each, argument)).collect::<Result<_, _>>()?;
        result["values"] = Value::Array(values);
    }
    Ok(result)
}

fn failure(argument: &Value) -> Error {
    let text = |key: &str| argument[key].as_str().unwrap_or("");
    let error = Error::transient(text("code"), argument["message"].as_str().unwrap_or("asked to fail"));
    let error =
        if argument["transient"] == false { Error::permanent(error.code(), error.message()) } else { error };
    let error = match argument["category"].as_str() {
        Some(category) => error.category(Category::from_word(category)),
        None => error,
    };
    let severity = argument["severity"].as_u64().and_then(|severity| u8::try_from(severity).ok());
    let mut error = error.severity(severity.unwrap_or(3));
    if let Some(delay) = argument["retryAfterMs"].as_u64() {
        error = error.retry_after(Duration::from_millis(delay));
    }
    for (key, value) in argument["details"].as_object().into_iter().flatten() {
        error = error.detail(key, value.as_str().unwrap_or(""));
    }
    error
}

fn wrong(facts: &BTreeMap<String, String>, what: &str) -> Error {
    let step = facts.get("step").map_or("?", String::as_str);
    Error::permanent("INVALID_PROGRAM", format!("step {step} {what}")).category(Category::Validation)
}
