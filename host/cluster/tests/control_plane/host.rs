//! One host in miniature, and what its plugin stages.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    reason = "all of this is a test, also its helpers"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use reeve_cluster::cache::{View, ViewKind};
use reeve_cluster::watch::{Namespaces, StreamSpec, Subscription};
use reeve_cluster::{
    Cluster, ClusterOptions, CommitError, Committed, Committer, ConnectOptions, Connection, Work,
};
use reeve_core::change::Change;
use reeve_core::grant::{Ceiling, Grant};
use reeve_core::gvk::Gvk;
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::labels::Selector;
use reeve_core::leading::Leading;
use reeve_core::manifest::{Manifest, Retry};
use reeve_core::object::SharedObject;
use reeve_core::plan::{Child, Condition, ConditionStatus, Outcome, Plan, Usage};
use reeve_core::queue::{Key, LaneConfig, Push, Queue, QueueMetrics, Ticket};
use reeve_core::read::Reader;
use reeve_core::reason::Reason;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// How long a change may take to come through the watch.
const PATIENCE: Duration = Duration::from_secs(20);

/// One host in miniature: a cluster with its watches, and a committer for one plugin.
pub(crate) struct Host {
    pub(crate) connection: Connection,
    pub(crate) cluster: Cluster,
    pub(crate) changes: mpsc::Receiver<Change>,
    pub(crate) reader: Arc<dyn Reader>,
    pub(crate) committer: Committer,
    pub(crate) manifest: Manifest,
    pub(crate) grant: Grant,
    pub(crate) namespace: String,
    /// Held, so that the streams stay open.
    watches: Vec<Subscription>,
}

/// `None`, with a note, where there is no control plane.
#[expect(clippy::print_stderr, reason = "a skipped test has to be seen")]
pub(crate) fn kubeconfig(test: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("REEVE_TEST_KUBECONFIG");
    if path.is_none() {
        eprintln!(
            "SKIPPED {test}: set REEVE_TEST_KUBECONFIG to the kubeconfig of a disposable cluster to run it"
        );
    }
    path.map(Into::into)
}

pub(crate) fn manifest(plugin: &str, kind: &str) -> Manifest {
    let owned = |api: &str, kind: &str| json!({"apiVersion": api, "kind": kind, "relation": "owned"});
    let manifest = json!({
        "name": plugin, "version": "1", "primary": {"apiVersion": "committest.reeve.dev/v1", "kind": kind},
        "watches": [owned("v1", "ConfigMap"), owned("v1", "Service"), owned("apps/v1", "Deployment")],
        "writes": [
            {"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["create", "apply", "patch", "delete"]},
            {"apiVersion": "v1", "kind": "ServiceAccount", "verbs": ["create"], "subresources": ["token"]},
            {"apiVersion": "apps/v1", "kind": "Deployment", "verbs": ["patch"], "subresources": ["scale"]},
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "verbs": ["create"]},
        ],
    });
    Manifest::parse(&manifest.to_string()).unwrap()
}

pub(crate) fn grant(manifest: &Manifest) -> Grant {
    let rules = vec!["*/*".parse().unwrap()];
    Grant::effective(manifest, true, &Ceiling { host_namespace: "default".into(), rules }).unwrap()
}

impl Host {
    /// Makes a kind and a namespace of this test's name.
    pub(crate) async fn new(test: &str, status: Value) -> Option<Self> {
        let path = kubeconfig(test)?;
        // A second run on the same cluster meets nothing of the first.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let test = &format!("{test}-{:x}", now.as_millis());
        let kind = format!("{}{}", test[..1].to_uppercase(), test[1..].replace('-', ""));
        let host = Self::connect(&path, test, &kind, test).await;
        host.post("/api/v1/namespaces", &json!({"metadata": {"name": test}})).await;
        let plural = format!("{}s", kind.to_lowercase());
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.committest.reeve.dev")},
            "spec": {"group": "committest.reeve.dev", "scope": "Namespaced", "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}, "status": status}}}}]}
        });
        host.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await;
        Some(host.watching().await)
    }

    pub(crate) async fn connect(path: &std::path::Path, plugin: &str, kind: &str, namespace: &str) -> Self {
        let registry = prometheus::Registry::new();
        let options = ConnectOptions { kubeconfig: Some(path.to_owned()), ..ConnectOptions::default() };
        let connection = Connection::open(&options, &registry).await.unwrap();
        let (cluster, changes) =
            Cluster::new(connection.clone(), &ClusterOptions::default(), &registry).unwrap();
        let manifest = manifest(plugin, kind);
        let specs: BTreeMap<Gvk, ViewKind> = manifest
            .read_kinds()
            .map(|gvk| {
                (gvk.clone(), ViewKind { specs: vec![spec(gvk, namespace)], indexes: BTreeMap::new() })
            })
            .collect();
        let reader = cluster.reader(View { plugin: manifest.name.clone(), kinds: specs });
        let committer = Committer::new(cluster.clone(), &registry).unwrap().in_namespace(namespace);
        let grant = grant(&manifest);
        let namespace = namespace.to_owned();
        Self {
            connection,
            cluster,
            changes,
            reader,
            committer,
            manifest,
            grant,
            namespace,
            watches: Vec::new(),
        }
    }

    pub(crate) async fn watching(mut self) -> Self {
        for gvk in self.manifest.read_kinds().collect::<BTreeSet<_>>() {
            let subscription = self.cluster.watch(&spec(gvk, &self.namespace));
            tokio::time::timeout(PATIENCE, subscription.synced()).await.expect("the watch syncs");
            self.watches.push(subscription);
        }
        self
    }

    /// The same plugin, as after a restart of the host.
    pub(crate) async fn restarted(&self) -> Self {
        let path = kubeconfig("restart").unwrap();
        let kind = self.manifest.primary.kind.clone();
        Self::connect(&path, self.manifest.name.as_str(), &kind, &self.namespace).await.watching().await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        let request = request.body(body.to_string().into_bytes()).unwrap();
        let answer = self.connection.request(request, PATIENCE).await.unwrap();
        (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send("POST", path, "application/json", body).await;
        assert!(status == 201 || status == 409, "{status} {answer}");
        answer
    }

    /// Another writer changes something.
    pub(crate) async fn merge(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send("PATCH", path, "application/merge-patch+json", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) async fn read(&self, path: &str) -> Option<Value> {
        let (status, answer) = self.send("GET", path, "application/json", &Value::Null).await;
        (status == 200).then_some(answer)
    }

    pub(crate) fn primaries(&self) -> String {
        let plural = format!("{}s", self.manifest.primary.kind.to_lowercase());
        format!("/apis/committest.reeve.dev/v1/namespaces/{}/{plural}", self.namespace)
    }

    pub(crate) fn path(&self, api: &str, plural: &str, name: &str) -> String {
        format!("/{api}/namespaces/{}/{plural}/{name}", self.namespace)
    }

    pub(crate) fn name(&self, name: &str) -> ObjectName {
        ObjectName::namespaced(&self.namespace, name)
    }

    pub(crate) async fn create(&mut self, name: &str) -> SharedObject {
        let gvk = self.manifest.primary.gvk();
        let body = json!({"apiVersion": gvk.api_version(), "kind": &*gvk.kind, "metadata": {"name": name}, "spec": {"n": 1}});
        // The kind may be served a moment before its objects can be made.
        let path = self.primaries();
        for _ in 0..50 {
            let (status, answer) = self.send("POST", &path, "application/json", &body).await;
            if status == 201 {
                return self.cached(name, |_| true).await;
            }
            assert_eq!(status, 404, "{answer}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{path} does not come up");
    }

    /// The primary as the cache has it, once that is so.
    pub(crate) async fn cached(
        &mut self,
        name: &str,
        wanted: impl Fn(&SharedObject) -> bool,
    ) -> SharedObject {
        let gvk = self.manifest.primary.gvk();
        self.cached_of(&gvk, name, wanted).await
    }

    pub(crate) async fn cached_of(
        &mut self,
        gvk: &Gvk,
        name: &str,
        wanted: impl Fn(&SharedObject) -> bool,
    ) -> SharedObject {
        let name = self.name(name);
        let wait = async {
            loop {
                if let Some(object) = self.reader.get(gvk, &name).unwrap().filter(&wanted) {
                    return object;
                }
                self.changes.recv().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the change comes through the watch")
    }

    pub(crate) async fn seen(&mut self, gvk: &Gvk, stored: &Value) {
        let version = stored["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        let name = stored["metadata"]["name"].as_str().unwrap().to_owned();
        self.cached_of(gvk, &name, move |object| object.meta().resource_version.0 >= version).await;
    }

    pub(crate) async fn ticket(&self, name: &str) -> Ticket {
        ticket(&self.manifest.name, &self.name(name)).await
    }

    pub(crate) async fn commit(&self, object: &SharedObject, plan: Plan) -> Result<Committed, CommitError> {
        self.commit_outcome(object, Outcome { plan, failure: None, usage: Usage::default() }).await
    }

    pub(crate) async fn commit_outcome(
        &self,
        object: &SharedObject,
        outcome: Outcome,
    ) -> Result<Committed, CommitError> {
        let name = object.meta().name.clone();
        let ticket = self.ticket(&name.name).await;
        let work = Work {
            manifest: &self.manifest,
            primary: &name,
            object: Some(object),
            outcome: &outcome,
            attempts: 1,
            stalled: false,
        };
        self.committer.commit(&Leading::solo(), &ticket, &self.grant, work).await.map_err(|ended| ended.error)
    }
}

pub(crate) fn spec(gvk: Gvk, namespace: &str) -> StreamSpec {
    let namespaces = Namespaces::Only(BTreeSet::from([namespace.into()]));
    StreamSpec {
        gvk,
        namespaces,
        labels: Selector::everything(),
        fields: None,
        metadata_only: false,
        managed_fields: false,
    }
}

pub(crate) async fn ticket(plugin: &PluginName, name: &ObjectName) -> Ticket {
    let queue = Queue::new(QueueMetrics::new(&prometheus::Registry::new()).unwrap());
    queue.open(plugin, LaneConfig { concurrency: 4, weight: 1, retry: Retry::default() });
    queue.push(Key { plugin: plugin.clone(), name: name.clone() }, Push::now(Reason::Updated));
    queue.next().await.unwrap()
}

pub(crate) fn child(namespace: &str, body: Value) -> Child {
    let Value::Object(body) = body else { panic!("no object") };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let gvk = Gvk::from_api_version(&text(&body["apiVersion"]), &text(&body["kind"]));
    let name = ObjectName::namespaced(namespace, &text(&body["metadata"]["name"]));
    Child { gvk, name, body, adopt: false }
}

pub(crate) fn map(namespace: &str, data: Value) -> Child {
    child(
        namespace,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}),
    )
}

/// With values that the server writes in another way, and everything that it defaults.
pub(crate) fn deployment(namespace: &str, replicas: i32) -> Child {
    let resources = json!({"requests": {"cpu": "0.1", "memory": "1024Mi"}, "limits": {"cpu": 1}});
    child(
        namespace,
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [
                {"name": "web", "image": "web:1", "ports": [{"containerPort": 80}], "resources": resources,
                 "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "html", "mountPath": "/html"}]}],
                "volumes": [{"name": "html", "configMap": {"name": "a"}}]}}}}),
    )
}

pub(crate) fn service(namespace: &str) -> Child {
    child(
        namespace,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"selector": {"app": "a"}, "ports": [{"port": 80, "targetPort": 80}]}}),
    )
}

pub(crate) fn ready(status: ConditionStatus) -> Condition {
    Condition { kind: "Ready".to_owned(), status, reason: "R".to_owned(), message: "m".to_owned() }
}

pub(crate) fn website(namespace: &str, replicas: i32) -> Plan {
    Plan {
        children: vec![
            map(namespace, json!({"html": "x"})),
            deployment(namespace, replicas),
            service(namespace),
        ],
        complete: true,
        status: serde_json::from_value(json!({"url": "u"})).unwrap(),
        conditions: vec![ready(ConditionStatus::True)],
        ..Plan::default()
    }
}

/// The schema of a status that keeps everything.
pub(crate) fn open_status() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
