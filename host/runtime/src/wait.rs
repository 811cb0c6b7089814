//! Waiting for the state of another object (feature D5).
//!
//! What a run waits for is watched, whatever its kind, and the key is woken by the very change that
//! brings the state. A kind that cannot be watched is asked for periodically. A wait lives from the
//! first run that stages it until the first run that does not; its timeout counts from the first.
//!
//! Invariant: a wait wakes once per time that its state is reached, so a plugin that always stages
//! the same wait does not run for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_cluster::Cluster;
use reeve_cluster::cache::{View, ViewKind};
use reeve_cluster::watch::{Namespaces, StreamSpec, StreamState};
use reeve_core::change::Change;
use reeve_core::failure::{Failure, code};
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::labels::Selector;
use reeve_core::object::SharedObject;
use reeve_core::plan::{Wait, WaitTarget};
use reeve_core::queue::{Key, Priority, Push, Queue};
use reeve_core::read::{Query, Reader};
use reeve_core::reason::Reason;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fetch;
use crate::metrics::Metrics;

mod state;
mod until;

use state::{Entry, Phase, State};

/// The most waits of one object: each may hold a stream open.
pub const MAX_WAITS: usize = 32;
/// The longest pause between two polls of what cannot be watched.
const POLL_CAP: Duration = Duration::from_secs(30);
/// So many waits for single objects of one kind and namespace share one stream over all of them,
/// rather than each having its own.
const SHARE_STREAM: usize = 8;
/// The most polls on their way at once.
const POLLS: usize = 16;

/// Everything that is waited for. Cheap to clone.
#[derive(Clone)]
pub struct Waits(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    queue: Queue,
    metrics: Metrics,
    state: Mutex<State>,
    notify: Notify,
}

/// What a background step found.
enum Found {
    Stream(u64, StreamState),
    Poll(u64, Result<Vec<String>, fetch::FetchError>),
}

// === impl Waits ===

impl Waits {
    /// Nothing is waited for.
    pub fn new(cluster: Cluster, queue: Queue, metrics: Metrics) -> Self {
        let (state, notify) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { cluster, queue, metrics, state, notify }))
    }

    /// Replaces what a key waits for; a wait that stays keeps its time.
    pub fn set(&self, key: &Key, waits: &[Wait]) {
        let mut state = self.0.state.lock();
        let before = state.by_key.remove(key).unwrap_or_default();
        let mut now = Vec::new();
        for wait in waits.iter().take(MAX_WAITS) {
            let same = |id: &&u64| state.entries.get(id).is_some_and(|entry| same(&entry.wait, wait));
            match before.iter().find(same) {
                Some(&id) if !now.contains(&id) => now.push(id),
                Some(_) => {}
                None => now.push(self.add(&mut state, key, wait)),
            }
        }
        for id in before {
            if !now.contains(&id) {
                state.remove(id);
            }
        }
        if !now.is_empty() {
            state.by_key.insert(key.clone(), now);
        }
        self.0.metrics.waits.set(i64::try_from(state.entries.len()).unwrap_or(i64::MAX));
        drop(state);
        self.0.notify.notify_one();
    }

    /// The failure of a run that stages these waits, if the time of one has passed without its
    /// state or there are too many.
    pub fn refuse(&self, key: &Key, waits: &[Wait]) -> Option<Failure> {
        if waits.len() > MAX_WAITS {
            let text = format!("the run waits for {} things, at most {MAX_WAITS} are allowed", waits.len());
            return Some(Failure::permanent(code::LIMIT_EXCEEDED, "quota", text));
        }
        let state = self.0.state.lock();
        let ids = state.by_key.get(key)?;
        let now = Instant::now();
        let late = ids.iter().filter_map(|id| state.entries.get(id)).find(|entry| {
            entry.deadline <= now
                && entry.phase != Phase::Met
                && waits.iter().any(|wait| same(wait, &entry.wait))
        })?;
        self.0.metrics.wait_timeouts.with_label_values(&[key.plugin.as_str()]).inc();
        let text = format!("{} within {} s", until::describe(&late.wait), late.wait.timeout.as_secs_f64());
        Some(Failure::transient(code::WAIT_TIMEOUT, "timeout", text))
    }

    /// The key waits for nothing more.
    pub fn forget(&self, key: &Key) {
        self.set(key, &[]);
    }

    /// No key of this plugin waits for anything more.
    pub fn forget_plugin(&self, plugin: &PluginName) {
        let keys: Vec<_> =
            self.0.state.lock().by_key.keys().filter(|key| key.plugin == *plugin).cloned().collect();
        for key in keys {
            self.forget(&key);
        }
    }

    /// Wakes the keys that wait for this change.
    pub fn note(&self, change: &Change) {
        let mut state = self.0.state.lock();
        if state.entries.is_empty() {
            return;
        }
        let name = change.name().map(|name| (change.gvk.clone(), name.clone()));
        let named = name.and_then(|name| state.named.get(&name)).cloned().unwrap_or_default();
        let selected = state.selected.get(&change.gvk).cloned().unwrap_or_default();
        for id in named {
            let Some(entry) = state.entries.get_mut(&id) else { continue };
            let holds =
                until::holds(&entry.wait.until, change.new.as_deref().map(reeve_core::object::Object::json));
            self.judge(entry, holds);
        }
        for id in selected {
            let Some(entry) = state.entries.get_mut(&id) else { continue };
            let touches = |object: &SharedObject| {
                let namespace = entry.wait.namespace.as_deref();
                object.meta().name.namespace.as_deref() == namespace
                    && entry.selector.as_ref().is_some_and(|selector| selector.matches(object.meta()))
            };
            if change.old.iter().chain(&change.new).any(touches)
                && let Some(holds) = self.look(entry)
            {
                self.judge(entry, holds);
            }
        }
    }

    /// Runs timeouts, polls and first looks until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut steps: JoinSet<Found> = JoinSet::new();
        loop {
            let due = self.start_steps(&mut steps);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.0.notify.notified() => {}
                () = sleep_until(due) => {}
                Some(Ok(found)) = steps.join_next(), if !steps.is_empty() => self.finish_step(found, &mut steps),
            }
        }
    }

    fn add(&self, state: &mut State, key: &Key, wait: &Wait) -> u64 {
        let id = state.next_id;
        state.next_id += 1;
        let beside = state
            .entries
            .values()
            .filter(|other| other.wait.gvk == wait.gvk && other.wait.namespace == wait.namespace);
        let spec = spec(wait, beside.take(SHARE_STREAM).count() == SHARE_STREAM);
        let selector = match &wait.target {
            WaitTarget::Labels(labels) => labels.parse().ok(),
            WaitTarget::Name(name) => {
                let name = ObjectName {
                    namespace: wait.namespace.as_deref().map(Into::into),
                    name: name.as_str().into(),
                };
                state.named.entry((wait.gvk.clone(), name)).or_default().push(id);
                None
            }
        };
        if selector.is_some() {
            state.selected.entry(wait.gvk.clone()).or_default().push(id);
        }
        let subscription = self.0.cluster.watch(&spec);
        let deadline = Instant::now() + wait.timeout;
        let (key, wait, phase) = (key.clone(), wait.clone(), Phase::Waiting);
        state.timers.insert((deadline, id));
        state
            .entries
            .insert(id, Entry { key, wait, selector, spec, deadline, phase, poll: None, subscription });
        state.fresh.push(id);
        id
    }

    /// Whether the state holds by what the cache has; `None` when it has nothing to say.
    fn look(&self, entry: &Entry) -> Option<bool> {
        let reader = self.reader(entry);
        let namespace: Option<Arc<str>> = entry.wait.namespace.as_deref().map(Into::into);
        match (&entry.wait.target, &entry.selector) {
            (WaitTarget::Name(name), _) => {
                let name = ObjectName { namespace, name: name.as_str().into() };
                let object = reader.get(&entry.wait.gvk, &name).ok()?;
                Some(until::holds(&entry.wait.until, object.as_deref().map(reeve_core::object::Object::json)))
            }
            (WaitTarget::Labels(_), Some(selector)) => {
                let query = Query { namespace, labels: Some(selector.clone()), ..Query::default() };
                let list = reader.list(&entry.wait.gvk, &query).ok()?;
                Some(until::any_holds(&entry.wait.until, list.iter().map(|object| object.json())))
            }
            (WaitTarget::Labels(_), None) => None,
        }
    }

    fn reader(&self, entry: &Entry) -> Arc<dyn Reader> {
        let kind = ViewKind { specs: vec![entry.spec.clone()], indexes: BTreeMap::new() };
        let kinds = [(entry.wait.gvk.clone(), kind)].into();
        self.0.cluster.reader(View { plugin: entry.key.plugin.clone(), kinds })
    }

    fn judge(&self, entry: &mut Entry, holds: bool) {
        match (holds, entry.phase) {
            (true, Phase::Waiting | Phase::TimedOut) => {
                entry.phase = Phase::Met;
                self.wake(&entry.key);
            }
            (false, Phase::Met) => entry.phase = Phase::Waiting,
            _ => {}
        }
    }

    fn wake(&self, key: &Key) {
        let push = Push { after: Duration::ZERO, priority: Priority::NORMAL, reason: Reason::Wait };
        self.0.queue.push(key.clone(), push);
    }

    /// Starts first looks and due polls, tells timeouts; gives the next moment of interest.
    fn start_steps(&self, steps: &mut JoinSet<Found>) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        for id in std::mem::take(&mut state.fresh) {
            if let Some(entry) = state.entries.get(&id) {
                let mut stream = entry.subscription.changed();
                steps.spawn(async move {
                    let known = stream.wait_for(|state| !matches!(state, StreamState::Listing)).await;
                    Found::Stream(id, known.map_or(StreamState::Listing, |known| known.clone()))
                });
            }
        }
        while let Some(&(due, id)) = state.timers.first() {
            if due > now {
                return Some(due);
            }
            state.timers.pop_first();
            let Some(entry) = state.entries.get_mut(&id) else { continue };
            if entry.deadline <= now && entry.phase == Phase::Waiting {
                entry.phase = Phase::TimedOut;
                self.wake(&entry.key);
            }
            if let Some((at, pause)) = entry.poll
                && at <= now
            {
                let again = now + pause;
                if steps.len() < POLLS {
                    let (cluster, wait) = (self.0.cluster.clone(), entry.wait.clone());
                    steps.spawn(async move { Found::Poll(id, poll(&cluster, &wait).await) });
                }
                entry.poll = Some((again, (pause * 2).min(POLL_CAP)));
                state.timers.insert((again, id));
            }
        }
        None
    }

    fn finish_step(&self, found: Found, steps: &mut JoinSet<Found>) {
        let mut state = self.0.state.lock();
        match found {
            Found::Stream(id, StreamState::Live) => {
                let Some(entry) = state.entries.get_mut(&id) else { return };
                entry.poll = None;
                if let Some(holds) = self.look(entry) {
                    self.judge(entry, holds);
                }
            }
            Found::Stream(id, stream) => {
                let Some(entry) = state.entries.get_mut(&id) else { return };
                if matches!(stream, StreamState::Broken { .. }) && entry.poll.is_none() {
                    let due = Instant::now();
                    entry.poll = Some((due, entry.wait.poll.max(Duration::from_millis(100))));
                    state.timers.insert((due, id));
                    self.0.notify.notify_one();
                }
                let Some(entry) = state.entries.get(&id) else { return };
                let (mut changed, before) = (entry.subscription.changed(), stream);
                steps.spawn(async move {
                    let known =
                        changed.wait_for(|state| *state != before && *state != StreamState::Listing).await;
                    // An error means that the subscription went with its entry.
                    Found::Stream(id, known.map_or(StreamState::Listing, |known| known.clone()))
                });
            }
            Found::Poll(id, Ok(objects)) => {
                let Some(entry) = state.entries.get_mut(&id) else { return };
                let holds = until::any_holds(&entry.wait.until, objects.iter().map(String::as_str));
                self.judge(entry, holds);
            }
            Found::Poll(id, Err(error)) => {
                if let Some(entry) = state.entries.get(&id) {
                    tracing::debug!(plugin = %entry.key.plugin, object = %entry.key.name, %error, "failed to poll for what the object waits for");
                }
            }
        }
    }
}

/// Whether two waits are for the same thing, whatever their times.
fn same(a: &Wait, b: &Wait) -> bool {
    a.gvk == b.gvk && a.namespace == b.namespace && a.target == b.target && a.until == b.until
}

fn namespaces(wait: &Wait) -> Namespaces {
    match &wait.namespace {
        Some(namespace) => Namespaces::Only([Arc::from(namespace.as_str())].into()),
        None => Namespaces::All,
    }
}

fn spec(wait: &Wait, share: bool) -> StreamSpec {
    let (labels, fields) = match &wait.target {
        // The sandbox has checked it; a selector that is none is for nothing, and says so on the server.
        WaitTarget::Labels(labels) => (labels.parse().unwrap_or_default(), None),
        WaitTarget::Name(_) if share => (Selector::everything(), None),
        WaitTarget::Name(name) => (Selector::everything(), Some(format!("metadata.name={name}").into())),
    };
    StreamSpec {
        gvk: wait.gvk.clone(),
        namespaces: namespaces(wait),
        labels,
        fields,
        metadata_only: false,
        managed_fields: false,
    }
}

async fn poll(cluster: &Cluster, wait: &Wait) -> Result<Vec<String>, fetch::FetchError> {
    let objects = match &wait.target {
        WaitTarget::Name(name) => {
            let namespace = wait.namespace.as_deref().map(Into::into);
            let name = ObjectName { namespace, name: name.as_str().into() };
            fetch::object(cluster, &wait.gvk, &name).await?.into_iter().collect()
        }
        WaitTarget::Labels(labels) => {
            fetch::list(cluster, &wait.gvk, wait.namespace.as_deref(), labels).await?
        }
    };
    Ok(objects.iter().map(ToString::to_string).collect())
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
