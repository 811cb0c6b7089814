//! The body that `make bench` measures: three lazy reads of the primary, and one child.

use reeve_sdk::prelude::*;
use serde::de::IgnoredAny;

struct Measured;

impl Reconciler for Measured {
    type Object = IgnoredAny;

    fn manifest() -> Manifest {
        Manifest::new("measured", env!("CARGO_PKG_VERSION"), "test.reeve.dev/v1", "Measured")
            .owns("v1", "ConfigMap")
    }

    fn reconcile(ctx: &Context, _: &IgnoredAny) -> Result<Outcome, Error> {
        let Some(primary) = ctx.primary() else { return Ok(Outcome::done()) };
        let read = primary.fields(&["/spec/title", "/spec/replicas", "/status/phase"]);
        let text = |index: usize| read.get(index).and_then(Option::as_deref).unwrap_or("null");
        ctx.apply_child(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": ctx.name() },
            "data": { "title": text(0), "replicas": text(1), "phase": text(2) },
        }))?;
        Ok(Outcome::done())
    }
}

reeve_sdk::export!(Measured);
