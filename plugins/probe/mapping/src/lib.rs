//! The probe that maps changed objects to primaries.

use reeve_probe::block;
use reeve_sdk::prelude::*;

struct Probe;

static BLOCK: block::Block = block::with(block::DEFAULT_MAPPING);

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

impl Mapper for Probe {
    fn map(watch: &str, changed: &Handle) -> Result<Vec<ObjectName>, Error> {
        reeve_probe::map(watch, changed, &BLOCK)
    }
}

reeve_sdk::export!(Probe, map);
