//! What goes over the wire: each test states its requests exactly.

#![expect(clippy::needless_pass_by_value, reason = "tables of values read better without borrows")]

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::failure::{Failure, Layer, code};
use reeve_core::grant::{Ceiling, Grant};
use reeve_core::gvk::Gvk;
use reeve_core::ids::{ObjectName, PluginName, ResourceVersion};
use reeve_core::leading::Leading;
use reeve_core::manifest::Manifest;
use reeve_core::object::SharedObject;
use reeve_core::plan::{Child, Condition, ConditionStatus, Event, Outcome, Plan, Usage, Write, WriteAction};
use reeve_core::queue::Ticket;
use serde_json::{Value, json};

use super::testing::{Fault, Rig, child, ticket};
use super::{CommitError, Committed, Committer, Unfinished, Work};

mod children;
mod failures;
mod primary;
mod writes;

const SITES: &str = "/apis/demo.reeve.dev/v1/namespaces/web/websites";
const MAPS: &str = "/api/v1/namespaces/web/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/web/deployments";
const SERVICES: &str = "/api/v1/namespaces/web/services";
const MEMORY: &str = "/api/v1/namespaces/host/configmaps/reeve-plugin-website";

fn site_kind() -> Gvk {
    Gvk::new("demo.reeve.dev", "v1", "Website")
}

fn map_kind() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

fn manifest(name: &str) -> Manifest {
    let manifest = json!({
        "name": name, "version": "1", "primary": {"apiVersion": "demo.reeve.dev/v1", "kind": "Website"},
        "watches": [
            {"apiVersion": "v1", "kind": "ConfigMap", "relation": "owned"},
            {"apiVersion": "v1", "kind": "Service", "relation": "owned"},
            {"apiVersion": "v1", "kind": "Secret", "relation": "owned"},
            {"apiVersion": "apps/v1", "kind": "Deployment", "relation": "owned"},
        ],
        "writes": [
            {"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["create", "apply", "patch", "delete"]},
            {"apiVersion": "v1", "kind": "ServiceAccount", "verbs": ["create"], "subresources": ["token"]},
            {"apiVersion": "demo.reeve.dev/v1", "kind": "Website", "verbs": ["patch"]},
        ],
    });
    Manifest::parse(&manifest.to_string()).unwrap()
}

fn grant(manifest: &Manifest) -> Grant {
    let rules = ["*/*"].map(|rule| rule.parse().unwrap()).to_vec();
    let ceiling = Ceiling { host_namespace: "host".into(), rules };
    Grant::effective(manifest, true, &ceiling).unwrap()
}

/// One plugin, one Website, one key in work.
struct Bench {
    rig: Rig,
    committer: Committer,
    manifest: Manifest,
    grant: Grant,
    ticket: Ticket,
    leading: Leading,
    site: ObjectName,
    /// Of the last commit that ended early.
    answers: Mutex<BTreeMap<String, Value>>,
}

impl Bench {
    async fn new() -> Self {
        Self::of("website", json!({"apiVersion": "demo.reeve.dev/v1", "kind": "Website", "metadata": {"name": "a"}, "spec": {"html": "x"}})).await
    }

    async fn of(plugin: &str, site: Value) -> Self {
        let kinds = [
            site_kind(),
            map_kind(),
            Gvk::new("", "v1", "Service"),
            Gvk::new("", "v1", "Secret"),
            Gvk::new("apps", "v1", "Deployment"),
        ];
        let rig = Rig::new(&kinds).await;
        let committer = Committer::new(rig.cluster.clone(), &rig.registry).unwrap();
        let manifest = manifest(plugin);
        let name = ObjectName::namespaced("web", "a");
        let mut bench = Self {
            rig,
            committer,
            grant: grant(&manifest),
            ticket: ticket(&manifest.name, &name).await,
            manifest,
            leading: Leading::solo(),
            site: name,
            answers: Mutex::default(),
        };
        let stored = bench.rig.api.put(SITES, site);
        bench.seen_site(&stored).await;
        bench
    }

    /// The object as the cache has it.
    #[track_caller]
    fn site(&self) -> SharedObject {
        self.rig.cluster.cache().get(&site_kind(), &self.site).unwrap()
    }

    async fn seen_site(&mut self, stored: &Value) {
        let version = stored["metadata"]["resourceVersion"].as_str();
        let name = self.site.clone();
        self.rig.seen(&site_kind(), &name, version).await;
    }

    async fn commit(&self, plan: Plan) -> Result<Committed, CommitError> {
        self.commit_from(&self.site(), outcome(plan, None)).await
    }

    async fn commit_from(&self, object: &SharedObject, outcome: Outcome) -> Result<Committed, CommitError> {
        let work = Work {
            manifest: &self.manifest,
            primary: &self.site,
            object: Some(object),
            outcome: &outcome,
            attempts: 1,
            stalled: false,
        };
        let committed = self.committer.commit(&self.leading, &self.ticket, &self.grant, work).await;
        committed.map_err(|unfinished| {
            *self.answers.lock() = unfinished.answers;
            unfinished.error
        })
    }

    async fn report(&self, failure: &Failure, stalled: bool) -> Result<Committed, CommitError> {
        self.committer
            .report(
                &self.leading,
                &self.ticket,
                &self.grant,
                &self.manifest,
                &self.site(),
                failure,
                1,
                stalled,
            )
            .await
    }

    /// Applies one ConfigMap, so that the memory of kinds is settled and the map is ours.
    async fn with_map(&self, data: Value) {
        self.commit(Plan { children: vec![map(data)], ..Plan::default() }).await.unwrap();
        self.rig.api.take_calls();
    }

    fn status(&self) -> Value {
        self.rig.api.object(SITES, "a").unwrap()["status"].clone()
    }

    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let families = self.rig.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let metrics = family.into_iter().flat_map(prometheus::proto::MetricFamily::get_metric);
        metrics
            .filter(|metric| {
                labels.iter().all(|(key, value)| {
                    metric.get_label().iter().any(|label| label.name() == *key && label.value() == *value)
                })
            })
            .map(|metric| format!("{:.0}", metric.get_counter().get_value()).parse::<u64>().unwrap())
            .sum()
    }
}

fn outcome(plan: Plan, failure: Option<(Layer, Failure)>) -> Outcome {
    Outcome { plan, failure, usage: Usage::default() }
}

fn map(data: Value) -> Child {
    child(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}))
}

fn deployment(replicas: u32) -> Child {
    child(
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": replicas}}),
    )
}

fn service() -> Child {
    child(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}),
    )
}

fn ready(status: ConditionStatus) -> Condition {
    Condition { kind: "Ready".to_owned(), status, reason: "R".to_owned(), message: "m".to_owned() }
}

/// What the Website plugin stages.
fn website(replicas: u32) -> Plan {
    Plan {
        children: vec![map(json!({"html": "x"})), deployment(replicas), service()],
        complete: true,
        status: serde_json::from_value(json!({"url": "http://a"})).unwrap(),
        conditions: vec![ready(ConditionStatus::True)],
        ..Plan::default()
    }
}
