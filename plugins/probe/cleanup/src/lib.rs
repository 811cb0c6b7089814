//! The probe with a cleanup, so that its objects have a finalizer.

use reeve_probe::block;
use reeve_sdk::prelude::*;

struct Probe;

static BLOCK: block::Block = block::with(block::DEFAULT);

impl Reconciler for Probe {
    type Object = Value;

    fn manifest() -> Manifest {
        block::manifest(&BLOCK)
    }

    fn reconcile(ctx: &Context, object: &Value) -> Result<Outcome, Error> {
        reeve_probe::reconcile(ctx, object, &BLOCK)
    }

    fn gone(ctx: &Context) -> Result<Outcome, Error> {
        Ok(reeve_probe::gone(ctx, &BLOCK))
    }
}

impl Cleanup for Probe {
    fn cleanup(ctx: &Context, object: &Value) -> Result<Outcome, Error> {
        reeve_probe::cleanup(ctx, object, &BLOCK)
    }
}

reeve_sdk::export!(Probe, cleanup);
