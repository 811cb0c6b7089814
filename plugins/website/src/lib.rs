//! Website: a page of HTML becomes a ConfigMap, a Deployment and a Service.
//!
//! The example of a whole controller: a custom resource with status and conditions, three
//! children, a wait until the Deployment is available, configuration, and a cleanup.

mod site;

use reeve_sdk::prelude::*;
use site::{Edition, Site};

struct Website;

const EDITION: Edition = Edition { version: env!("CARGO_PKG_VERSION"), footer: "" };

impl Reconciler for Website {
    type Object = Site;

    fn manifest() -> Manifest {
        site::manifest(&EDITION)
    }

    fn reconcile(ctx: &Context, site: &Site) -> Result<Outcome, Error> {
        site::reconcile(ctx, site, &EDITION)
    }
}

impl Cleanup for Website {
    fn cleanup(ctx: &Context, site: &Site) -> Result<Outcome, Error> {
        site::cleanup(ctx, site)
    }
}

reeve_sdk::export!(Website, cleanup);

#[cfg(test)]
mod tests;
