//! Kubernetes Events (feature C8): best effort, beside the commits, but counted.
//!
//! Emitting never waits: events go through a bounded queue to [`Events::run`], which sends them as
//! `events.k8s.io/v1`. The rules of the correlator: the same event again raises the count of a
//! series; one object's events are limited as client-go limits them; the last one always gets
//! through. Like every write, an event leaves only while the host may write.

mod correlate;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use reeve_core::change::Origin;
use reeve_core::gvk::{Gvk, Kind, Scope};
use reeve_core::ids::{ObjectName, PluginName, ResourceVersion, Uid};
use reeve_core::leading::Leading;
use reeve_core::plan::Event;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::correlate::{Correlator, Order};
use crate::commit::request::{Action, Door, Pass, Right, Send, WriteError};

/// How many events wait to be sent. A burst beyond it is dropped and counted: events are not worth
/// the memory of more, nor a plugin's wait.
const QUEUE: usize = 1_024;
/// How long events that are still waiting are sent at the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// What the API allows: reason and action, then note, in bytes.
const MAX_WORD: usize = 128;
const MAX_NOTE: usize = 1_024;
/// The plugin's place in metrics of the host's own events.
const HOST: &str = "reeve";

/// Sends events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    inner: Arc<Inner>,
}

struct Inner {
    door: Arc<Door>,
    queue: mpsc::Sender<Emission>,
    /// Taken by the first `run`.
    receiver: Mutex<Option<mpsc::Receiver<Emission>>>,
    instance: Mutex<String>,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// Its kind.
    pub gvk: Gvk,
    /// Its name.
    pub name: ObjectName,
    /// Its life, where known.
    pub uid: Option<Uid>,
    /// The version that it speaks of, where known.
    pub version: Option<ResourceVersion>,
}

/// An event on its way.
#[derive(Debug, Clone)]
pub(crate) struct Emission {
    leading: Leading,
    /// `None` for the host's own.
    plugin: Option<PluginName>,
    regarding: Regarding,
    event: Event,
    at: Timestamp,
}

// === impl Events ===

impl Events {
    pub(crate) fn new(door: Arc<Door>) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let instance = Mutex::new(HOST.to_owned());
        Self { inner: Arc::new(Inner { door, queue, receiver: Mutex::new(Some(receiver)), instance }) }
    }

    /// Says which host reports (`reportingInstance`), for example the pod's name.
    pub fn name_instance(&self, instance: &str) {
        cut(instance, MAX_WORD).clone_into(&mut self.inner.instance.lock());
    }

    /// Emits an event; `plugin` is `None` for the host's own. Never waits: when the queue is full
    /// the event is dropped and counted.
    pub fn emit(&self, leading: &Leading, plugin: Option<&PluginName>, regarding: Regarding, event: Event) {
        let emission = Emission {
            leading: leading.clone(),
            plugin: plugin.cloned(),
            regarding,
            event,
            at: Timestamp::now(),
        };
        if let Err(refused) = self.inner.queue.try_send(emission) {
            self.drop_one(&refused.into_inner(), "queue");
        }
    }

    /// Sends what is emitted until it is cancelled, then what still waits, for 2 s at most. Only
    /// the first call does anything.
    pub async fn run(&self, shutdown: CancellationToken) {
        let Some(mut receiver) = self.inner.receiver.lock().take() else { return };
        let mut correlator = Correlator::default();
        loop {
            let due = correlator.next_due();
            let orders = tokio::select! {
                emission = receiver.recv() => match emission {
                    Some(emission) => correlator.take(emission, tokio::time::Instant::now()),
                    None => break,
                },
                () = wait_until(due) => correlator.due(tokio::time::Instant::now()),
                () = shutdown.cancelled() => break,
            };
            self.carry_out(&mut correlator, orders).await;
        }
        let farewell = async {
            receiver.close();
            while let Ok(emission) = receiver.try_recv() {
                let orders = correlator.take(emission, tokio::time::Instant::now());
                self.carry_out(&mut correlator, orders).await;
            }
            let orders = correlator.flush();
            self.carry_out(&mut correlator, orders).await;
        };
        // What is cut off here was best effort; the objects' conditions say the same.
        tokio::time::timeout(FAREWELL, farewell).await.ok();
    }

    async fn carry_out(&self, correlator: &mut Correlator, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Create { name, emission } => self.create(&name, &emission).await,
                Order::Count { name, count, emission } => {
                    if !self.count(&name, count, &emission).await {
                        // The server forgets events after an hour; then it is a new one.
                        correlator.forget(&emission);
                        self.create(&name, &emission).await;
                    }
                }
                Order::Merged(emission) => {
                    self.inner.door.metrics.events_merged.with_label_values(&[plugin_label(&emission)]).inc();
                }
                Order::Drop(emission) => self.drop_one(&emission, "limit"),
            }
        }
    }

    async fn create(&self, name: &ObjectName, emission: &Emission) {
        let body = body(name, emission, &self.inner.instance.lock());
        self.send(name, emission, Action::Create { body: &body, generate: false }).await;
    }

    /// `false` when the event is not there any more.
    async fn count(&self, name: &ObjectName, count: u32, emission: &Emission) -> bool {
        let body = json!({"series": {"count": count, "lastObservedTime": micro(emission.at)}});
        self.send(name, emission, Action::Merge(&body)).await
    }

    async fn send(&self, name: &ObjectName, emission: &Emission, action: Action<'_>) -> bool {
        let plugin = emission.plugin.clone().or_else(|| HOST.parse().ok());
        let Some(plugin) = plugin else { return true };
        let origin = Origin { plugin, primary: emission.regarding.name.clone() };
        let pass = Pass::new(&emission.leading, None, &origin);
        let kind = events();
        let send = Send { right: Right::Host, kind: &kind, name, subresource: None, action, dry_run: false };
        match self.inner.door.write(&pass, &send).await {
            Ok(_) => self.inner.door.metrics.events_sent.with_label_values(&[plugin_label(emission)]).inc(),
            Err(WriteError::Refused(refusal, _))
                if refusal.is_not_found() && matches!(action, Action::Merge(_)) =>
            {
                return false;
            }
            Err(WriteError::Lost(_)) => self.drop_one(emission, "lost"),
            Err(
                WriteError::Refused(_, failure) | WriteError::Unusable(failure) | WriteError::Outage(failure),
            ) => {
                self.drop_one(emission, "refused");
                tracing::debug!(object = %emission.regarding.name, reason = %emission.event.reason, "an event was not sent: {}", failure.message);
            }
            Err(WriteError::Denied(_)) => self.drop_one(emission, "refused"),
        }
        true
    }

    fn drop_one(&self, emission: &Emission, reason: &str) {
        self.inner.door.metrics.events_dropped.with_label_values(&[plugin_label(emission), reason]).inc();
    }
}

fn plugin_label(emission: &Emission) -> &str {
    emission.plugin.as_ref().map_or(HOST, PluginName::as_str)
}

async fn wait_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn body(name: &ObjectName, emission: &Emission, instance: &str) -> Value {
    let Emission { plugin, regarding, event, at, .. } = emission;
    let word = |text: &str, empty: &str| cut(if text.is_empty() { empty } else { text }, MAX_WORD).to_owned();
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": &*name.name, "namespace": name.namespace},
        "eventTime": micro(*at),
        "reportingController": plugin.as_ref().map_or_else(|| "reeve.dev".to_owned(), PluginName::field_manager),
        "reportingInstance": instance,
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": word(&event.reason, "Unknown"),
        "action": word(&event.action, "Reconcile"),
        "note": cut(&event.note, MAX_NOTE),
        "regarding": {
            "apiVersion": regarding.gvk.api_version(), "kind": &*regarding.gvk.kind,
            "name": &*regarding.name.name, "namespace": regarding.name.namespace,
            "uid": regarding.uid.as_ref().map(Uid::as_str),
            "resourceVersion": regarding.version.map(|version| version.to_string()),
        },
    })
}

/// `metav1.MicroTime`.
fn micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

fn events() -> Kind {
    Kind {
        gvk: Gvk::new("events.k8s.io", "v1", "Event"),
        plural: "events".into(),
        scope: Scope::Namespaced,
        verbs: Vec::new(),
        subresources: Vec::new(),
    }
}
