//! The next version of the website plugin, to be swapped in while the old one works: the same
//! code, and a footer below every page.

#[path = "../../website/src/site.rs"]
mod site;

use reeve_sdk::prelude::*;
use site::{Edition, Site};

struct Website;

const EDITION: Edition =
    Edition { version: env!("CARGO_PKG_VERSION"), footer: "<footer>Served by Reeve</footer>" };

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
mod tests {
    use reeve_sdk::testing::Case;

    use super::*;

    #[test]
    fn pages_have_a_footer() {
        let site = json!({ "metadata": { "name": "a", "namespace": "web" }, "spec": { "html": "x" } });
        let run = Case::new(site).run::<Website>();
        let page = &run.plan().child("ConfigMap", "a-html")["data"]["index.html"];
        assert_eq!(page, "x<footer>Served by Reeve</footer>");
    }
}
