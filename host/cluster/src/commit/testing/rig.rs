//! What the tests need beside a server.

use reeve_core::gvk::Gvk;
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::labels::Selector;
use reeve_core::object::{ManagedFields, Object, SharedObject};
use reeve_core::queue::{Key, LaneConfig, Push, Queue, QueueMetrics, Ticket};
use reeve_core::reason::Reason;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::Api;
use crate::cluster::{Cluster, ClusterOptions};
use crate::connection::Connection;
use crate::watch::{Namespaces, StreamSpec, Subscription};

/// An object of its own kind.
#[track_caller]
pub(crate) fn object(value: &Value) -> SharedObject {
    let gvk = Gvk::from_api_version(value["apiVersion"].as_str().unwrap(), value["kind"].as_str().unwrap());
    SharedObject::new(Object::parse(&gvk, &value.to_string(), ManagedFields::Strip).unwrap())
}

/// A cluster over a server, with these kinds watched and synced.
pub(crate) struct Rig {
    pub(crate) api: Api,
    pub(crate) cluster: Cluster,
    pub(crate) registry: prometheus::Registry,
    pub(crate) changes: mpsc::Receiver<reeve_core::change::Change>,
    subscriptions: Vec<Subscription>,
}

impl Rig {
    pub(crate) async fn new(kinds: &[Gvk]) -> Self {
        let api = Api::default();
        let registry = prometheus::Registry::new();
        let connection = Connection::from_client(&api.client(), "https://api", &registry).unwrap();
        let options = ClusterOptions { watch_list: false };
        let (cluster, changes) = Cluster::new(connection, &options, &registry).unwrap();
        let mut rig = Self { api, cluster, registry, changes, subscriptions: Vec::new() };
        for gvk in kinds {
            rig.watch(gvk, Selector::everything()).await;
        }
        rig
    }

    pub(crate) async fn watch(&mut self, gvk: &Gvk, labels: Selector) {
        let spec = StreamSpec {
            gvk: gvk.clone(),
            namespaces: Namespaces::All,
            labels,
            fields: None,
            metadata_only: false,
            managed_fields: false,
        };
        let subscription = self.cluster.watch(&spec);
        subscription.synced().await;
        self.subscriptions.push(subscription);
    }

    /// Waits until the cache has seen a version of an object, or its end.
    pub(crate) async fn seen(&mut self, gvk: &Gvk, name: &ObjectName, version: Option<&str>) {
        loop {
            let cached =
                self.cluster.cache().get(gvk, name).map(|object| object.meta().resource_version.to_string());
            if cached.as_deref() == version {
                return;
            }
            self.changes.recv().await.unwrap();
        }
    }
}

/// The right to work on a key.
pub(crate) async fn ticket(plugin: &PluginName, name: &ObjectName) -> Ticket {
    let queue = Queue::new(QueueMetrics::new(&prometheus::Registry::new()).unwrap());
    let config = LaneConfig { concurrency: 4, weight: 1, retry: reeve_core::manifest::Retry::default() };
    queue.open(plugin, config);
    queue.push(Key { plugin: plugin.clone(), name: name.clone() }, Push::now(Reason::Updated));
    queue.next().await.unwrap()
}

/// A child as a plan has it.
pub(crate) fn child(body: Value) -> reeve_core::plan::Child {
    let Value::Object(body) = body else { panic!("no object") };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let gvk = Gvk::from_api_version(&text(&body["apiVersion"]), &text(&body["kind"]));
    let meta: &Map<String, Value> = body["metadata"].as_object().unwrap();
    let name = ObjectName {
        namespace: meta.get("namespace").map(|namespace| text(namespace).into()),
        name: text(&meta["name"]).into(),
    };
    reeve_core::plan::Child { gvk, name, body, adopt: false }
}
