//! A plugin that does whatever a host must survive, on demand: the sandbox's test body.
//!
//! The primary is a `Mishap`: `spec.mode` says what to do and `spec.amount` (`n` below and in
//! README.md) how much. README.md lists the modes; an unknown one is the permanent failure
//! `UNKNOWN_MODE`.

mod body;
mod stage;

use reeve_sdk::prelude::*;
use reeve_sdk::{Category, Verb};

/// What to do.
#[derive(Debug, Deserialize)]
struct Mishap {
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Spec {
    mode: String,
    #[serde(default)]
    amount: u64,
}

struct Misbehaving;

impl Reconciler for Misbehaving {
    type Object = Mishap;

    fn manifest() -> Manifest {
        Manifest::new("misbehaving", env!("CARGO_PKG_VERSION"), "test.reeve.dev/v1", "Mishap")
            .description("Does what a host must survive")
            .owns("v1", "ConfigMap")
            .reads("v1", "Node")
            .writes("v1", "ConfigMap", &[Verb::Create, Verb::Patch])
    }

    fn reconcile(ctx: &Context, object: &Mishap) -> Result<Outcome, Error> {
        let Spec { mode, amount: n } = &object.spec;
        if let Some(outcome) = fail_or_end(ctx, mode, *n) {
            return outcome;
        }
        if body::misbehave(ctx, mode, *n) || stage::misbehave(ctx, mode, *n)? {
            return Ok(Outcome::done());
        }
        Err(Error::permanent("UNKNOWN_MODE", format!("there is no mode {mode:?}")))
    }
}

/// The modes that are a result.
fn fail_or_end(ctx: &Context, mode: &str, n: u64) -> Option<Result<Outcome, Error>> {
    let after = Duration::from_millis(n);
    Some(match mode {
        "ok" => Ok(Outcome::done()),
        "requeue" => Ok(Outcome::requeue_after(after)),
        "fail-transient" => Err(Error::transient("ASKED", "asked to fail")),
        "fail-permanent" => Err(Error::permanent("ASKED", "asked to fail")),
        "fail-retry-after" => Err(Error::transient("ASKED", "asked to fail").retry_after(after)),
        "fail-full" => Err(Error::transient("DB_CONN_TIMEOUT", "the database did not answer")
            .category(Category::Network)
            .severity(5)
            .retry_after(after)
            .detail("host", "db-0")
            .detail("port", 5432)),
        "fail-huge" => {
            let huge = "x".repeat(usize::try_from(n).unwrap_or(usize::MAX));
            let error = Error::transient(huge.clone(), huge.clone()).category(Category::Other(huge.clone()));
            Err((0..64).fold(error, |error, i| error.detail(format!("key-{i}"), &huge)))
        }
        "fail-after-staging" => stage::everything(ctx).and(Err(Error::transient("ASKED", "asked to fail"))),
        "trap-after-staging" => match stage::everything(ctx) {
            Ok(()) => std::process::abort(),
            Err(error) => Err(error),
        },
        "hot-status" => {
            ctx.set_status(&json!({ "nanos": nanos(ctx) })).map(|()| Outcome::requeue_after(Duration::ZERO))
        }
        "hot-child" => stage::child(ctx, "hot", &json!({ "nanos": nanos(ctx) })).map(|()| Outcome::done()),
        "wait-never" => Ok(Outcome::wait_for(Wait::on("v1", "Node", "never").exists().timeout(after))),
        "wait-now" => Ok(Outcome::wait_for(Wait::on("v1", "Node", "never").gone().timeout(after))),
        _ => return None,
    })
}

fn nanos(ctx: &Context) -> String {
    let since = ctx.now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}

reeve_sdk::export!(Misbehaving);

#[cfg(test)]
mod tests;
