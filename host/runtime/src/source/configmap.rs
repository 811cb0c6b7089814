//! ConfigMaps that carry a plugin: label `reeve.dev/plugin`, `binaryData["plugin.wasm"]`, and the
//! annotation `reeve.dev/digest` that the bytes must match.
//!
//! The digest makes torn and half-edited writes harmless: bytes and digest come from one GET, and
//! bytes that do not match are not loaded. Only metadata is watched, and the object is read when
//! its version changes: so the bytes do not stay in memory beside the compiled code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use parking_lot::Mutex;
use reeve_cluster::Cluster;
use reeve_cluster::cache::{View, ViewKind};
use reeve_cluster::watch::{Namespaces, StreamSpec, StreamState};
use reeve_core::change::Change;
use reeve_core::gvk::Gvk;
use reeve_core::ids::{Digest, ObjectName, PluginName, ResourceVersion};
use reeve_core::object::Object;
use reeve_core::read::{Query, Reader};
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{Again, Artifact, SourceEvent, SourceId};
use crate::fetch;

/// The label that makes a ConfigMap without a controller a plugin; its value is free.
pub const LABEL: &str = "reeve.dev/plugin";
/// The annotation that says which bytes are meant.
pub const DIGEST: &str = "reeve.dev/digest";
/// The key below `binaryData`.
pub const KEY: &str = "plugin.wasm";
/// The first and the longest pause before a failed read is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Labelled ConfigMaps as a source.
pub struct ConfigMapSource {
    cluster: Cluster,
    namespaces: BTreeSet<Arc<str>>,
    max_bytes: usize,
    gone_after: Duration,
    again: Again,
    touched: Touched,
    known: BTreeMap<ObjectName, Known>,
}

/// Where the router leaves the names of ConfigMaps that changed.
#[derive(Debug, Clone)]
pub struct Touched(Arc<TouchedState>);

#[derive(Debug)]
struct TouchedState {
    namespaces: BTreeSet<Arc<str>>,
    names: Mutex<BTreeSet<ObjectName>>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Known {
    seen: Option<ResourceVersion>,
    told: Option<Told>,
    missing_since: Option<Instant>,
    retry: Option<(Instant, Duration)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Bytes(Digest),
    Refused(String),
    Failed(String),
}

fn config_map() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

/// Whether a ConfigMap is meant as a plugin. The children of plugins carry the same label, with the
/// name of the plugin that made them: they have a controller, and are none.
fn is_plugin(object: &Object) -> bool {
    object.meta().label(LABEL).is_some() && object.meta().controller().is_none()
}

// === impl Touched ===

impl Touched {
    /// Takes note of a change of a ConfigMap that is or was a plugin.
    pub fn note(&self, change: &Change) {
        if &*change.gvk.kind != "ConfigMap" || !change.gvk.group.is_empty() {
            return;
        }
        let labelled = [&change.old, &change.new].into_iter().flatten().any(|object| is_plugin(object));
        if let Some(name) = change.name()
            && labelled
            && name.namespace.as_ref().is_some_and(|namespace| self.0.namespaces.contains(namespace))
        {
            self.0.names.lock().insert(name.clone());
            self.0.notify.notify_one();
        }
    }
}

// === impl ConfigMapSource ===

impl std::fmt::Debug for ConfigMapSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigMapSource").field("namespaces", &self.namespaces).finish_non_exhaustive()
    }
}

impl ConfigMapSource {
    /// A source over these namespaces; more than `max_bytes` are refused. The router must
    /// [`Touched::note`] every change.
    pub fn new(
        cluster: Cluster,
        namespaces: &BTreeSet<String>,
        max_bytes: usize,
        gone_after: Duration,
        again: Again,
    ) -> (Self, Touched) {
        let namespaces: BTreeSet<Arc<str>> = namespaces.iter().map(|name| name.as_str().into()).collect();
        let state =
            TouchedState { namespaces: namespaces.clone(), names: Mutex::default(), notify: Notify::new() };
        let touched = Touched(Arc::new(state));
        let known = BTreeMap::new();
        (Self { cluster, namespaces, max_bytes, gone_after, again, touched: touched.clone(), known }, touched)
    }

    /// Watches, reads, tells; ends when the registry went.
    pub(crate) async fn run(mut self, events: mpsc::Sender<SourceEvent>) {
        let Some((spec, reader)) = self.spec_and_reader() else { return };
        let subscription = self.cluster.watch(&spec);
        let mut state = subscription.changed();
        let mut asked = self.again.asked();
        if first_state(&mut state).await {
            self.enumerate(&*reader);
        }
        let mut listed = false;
        loop {
            let names = std::mem::take(&mut *self.touched.0.names.lock());
            for name in names {
                if self.look(&name, &*reader, &events).await.is_none() {
                    return;
                }
            }
            if self.tell_missing(&events).await.is_none() {
                return;
            }
            if !listed && events.send(SourceEvent::Listed).await.is_err() {
                return;
            }
            listed = true;
            tokio::select! {
                () = self.touched.0.notify.notified() => {}
                Ok(()) = asked.changed() => {}
                Ok(()) = state.changed() => if *state.borrow_and_update() == StreamState::Live { self.enumerate(&*reader) },
                () = sleep_until(self.next_due()) => self.wake_due(),
            }
            for source in self.again.take(|place| matches!(place, SourceId::ConfigMap(_))) {
                if let SourceId::ConfigMap(name) = source {
                    self.known.remove(&name);
                    self.touched.0.names.lock().insert(name);
                }
            }
        }
    }

    fn spec_and_reader(&self) -> Option<(StreamSpec, Arc<dyn Reader>)> {
        let plugin: PluginName = "reeve".parse().ok()?;
        let spec = StreamSpec {
            gvk: config_map(),
            namespaces: Namespaces::Only(self.namespaces.clone()),
            labels: LABEL.parse().ok()?,
            fields: None,
            metadata_only: true,
            managed_fields: false,
        };
        let kind = ViewKind { specs: vec![spec.clone()], indexes: BTreeMap::new() };
        let reader = self.cluster.reader(View { plugin, kinds: [(config_map(), kind)].into() });
        Some((spec, reader))
    }

    /// Marks everything that is in the cache, and everything that was known, to be looked at.
    fn enumerate(&self, reader: &dyn Reader) {
        let mut names = self.touched.0.names.lock();
        names.extend(self.known.keys().cloned());
        for namespace in &self.namespaces {
            let query = Query {
                namespace: Some(Arc::clone(namespace)),
                labels: LABEL.parse().ok(),
                ..Query::default()
            };
            match reader.list(&config_map(), &query) {
                Ok(list) => names.extend(
                    list.iter().filter(|object| is_plugin(object)).map(|object| object.meta().name.clone()),
                ),
                Err(error) => {
                    tracing::debug!(%namespace, %error, "ConfigMaps with plugins cannot be listed yet");
                }
            }
        }
    }

    /// Looks at one ConfigMap. `None` when the registry went.
    async fn look(
        &mut self,
        name: &ObjectName,
        reader: &dyn Reader,
        events: &mpsc::Sender<SourceEvent>,
    ) -> Option<()> {
        let cached = match reader.get(&config_map(), name) {
            Ok(cached) => cached.filter(|object| is_plugin(object)),
            // Not synced is no removal: the plugin goes on.
            Err(_) => return Some(()),
        };
        let Some(cached) = cached else {
            if let Some(known) = self.known.get_mut(name) {
                known.missing_since.get_or_insert_with(Instant::now);
            }
            return Some(());
        };
        let version = cached.meta().resource_version;
        let known = self.known.entry(name.clone()).or_default();
        known.missing_since = None;
        if known.seen == Some(version) {
            return Some(());
        }
        let (told, event) = match fetch::object(&self.cluster, &config_map(), name).await {
            Ok(Some(object)) => {
                known.seen = Some(version);
                known.retry = None;
                self.read(name, &object)
            }
            // Gone meanwhile: the watch tells.
            Ok(None) => return Some(()),
            Err(error) => {
                let pause = known.retry.map_or(RETRY.0, |(_, pause)| (pause * 2).min(RETRY.1));
                known.retry = Some((Instant::now() + pause, pause));
                let source = SourceId::ConfigMap(name.clone());
                let reason = error.to_string();
                (Told::Failed(reason.clone()), SourceEvent::FetchFailed { source, reason })
            }
        };
        let known = self.known.entry(name.clone()).or_default();
        if known.told.as_ref() == Some(&told) {
            return Some(());
        }
        known.told = Some(told);
        events.send(event).await.ok()
    }

    fn read(&self, name: &ObjectName, object: &Value) -> (Told, SourceEvent) {
        let source = SourceId::ConfigMap(name.clone());
        match plugin_of(name, object, self.max_bytes) {
            Ok((bytes, digest)) => {
                let artifact = Artifact { source, bytes: bytes.into(), digest };
                (Told::Bytes(digest), SourceEvent::Found(artifact))
            }
            Err(reason) => (Told::Refused(reason.clone()), SourceEvent::Refused { source, reason }),
        }
    }

    async fn tell_missing(&mut self, events: &mpsc::Sender<SourceEvent>) -> Option<()> {
        let now = Instant::now();
        let due = |known: &Known| {
            known.missing_since.is_some_and(|since| now.saturating_duration_since(since) >= self.gone_after)
        };
        let gone: Vec<_> =
            self.known.iter().filter(|(_, known)| due(known)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.known.remove(&name);
            events.send(SourceEvent::Gone(SourceId::ConfigMap(name))).await.ok()?;
        }
        Some(())
    }

    fn next_due(&self) -> Option<Instant> {
        let due = |known: &Known| {
            let missing = known.missing_since.map(|since| since + self.gone_after);
            missing.into_iter().chain(known.retry.map(|(at, _)| at)).min()
        };
        self.known.values().filter_map(due).min()
    }

    fn wake_due(&mut self) {
        let now = Instant::now();
        let mut names = self.touched.0.names.lock();
        for (name, known) in &mut self.known {
            if known.retry.is_some_and(|(at, _)| at <= now) {
                names.insert(name.clone());
            }
        }
    }
}

/// Waits for the first state that says something; true when the first list is there.
async fn first_state(state: &mut tokio::sync::watch::Receiver<StreamState>) -> bool {
    let known = state.wait_for(|state| !matches!(state, StreamState::Listing)).await;
    match known.as_deref() {
        Ok(StreamState::Live) => true,
        Ok(StreamState::Pending { why } | StreamState::Broken { why }) => {
            tracing::warn!(%why, "failed to watch ConfigMaps with plugins; it is tried again, and all else goes on");
            false
        }
        _ => false,
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The bytes and their digest, or why they are not taken.
fn plugin_of(name: &ObjectName, object: &Value, max_bytes: usize) -> Result<(Vec<u8>, Digest), String> {
    let text = object["binaryData"][KEY]
        .as_str()
        .ok_or_else(|| format!("ConfigMap {name} has the label {LABEL}, but no binaryData[{KEY:?}]: add the component's bytes there, or remove the label"))?;
    if text.len() / 4 * 3 > max_bytes.saturating_add(2) {
        return Err(format!(
            "ConfigMap {name}: binaryData[{KEY:?}] is larger than the {max_bytes} bytes allowed: make the component smaller"
        ));
    }
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|error| format!("ConfigMap {name}: binaryData[{KEY:?}] is no base64: {error}"))?;
    let actual = Digest::of(&bytes);
    let wanted = object["metadata"]["annotations"][DIGEST].as_str().ok_or_else(|| {
        format!(
            "ConfigMap {name} has no annotation {DIGEST}, which must name its bytes: add `{DIGEST}: {actual}`"
        )
    })?;
    match wanted.parse::<Digest>() {
        Ok(wanted) if wanted == actual => Ok((bytes, actual)),
        Ok(wanted) => Err(format!(
            "ConfigMap {name}: the bytes of binaryData[{KEY:?}] have the digest {actual}, but the annotation {DIGEST} says {wanted}: write both in one change"
        )),
        Err(error) => Err(format!("ConfigMap {name}: annotation {DIGEST}: {error}; the bytes have {actual}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(object: &Value, expect: &str) {
        let name = ObjectName::namespaced("web", "plugin");
        match plugin_of(&name, object, 100) {
            Ok((bytes, digest)) => {
                assert_eq!(format!("{digest} {}", String::from_utf8_lossy(&bytes)), expect);
            }
            Err(reason) => assert!(reason.contains(expect) && reason.contains("web/plugin"), "{reason}"),
        }
    }

    #[test]
    fn bytes_are_taken_only_with_their_digest() {
        let digest = Digest::of(b"component");
        let other = Digest::of(b"another");
        let object = |annotation: &str| json!({"metadata": {"annotations": {DIGEST: annotation}}, "binaryData": {KEY: "Y29tcG9uZW50"}});
        check(&object(&digest.to_string()), &format!("{digest} component"));
        check(
            &object(&other.to_string()),
            &format!("have the digest {digest}, but the annotation {DIGEST} says {other}"),
        );
        check(&object("sha256:12"), "is not \"sha256:\" and 64 hex digits");
        check(&json!({"binaryData": {KEY: "Y29tcG9uZW50"}}), &format!("add `{DIGEST}: {digest}`"));
        check(&json!({"data": {}}), "no binaryData");
        check(&json!({"binaryData": {KEY: "%%"}}), "is no base64");
        check(&json!({"binaryData": {KEY: "AAAA".repeat(40)}}), "larger than the 100 bytes");
    }
}
