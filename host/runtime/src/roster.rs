//! The roster: which version of which plugin serves, as one immutable snapshot.
//!
//! It is the only place where the swap line and the straight line meet. Invariant: whoever holds an
//! [`Arc<Registration>`] has a whole version of a plugin: code, grant, synced watches. The old
//! version's watches close when its last holder drops it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use reeve_cluster::cache::IndexHold;
use reeve_cluster::watch::Subscription;
use reeve_core::grant::Grant;
use reeve_core::gvk::{Gvk, Scope};
use reeve_core::ids::{Digest, PluginName};
use reeve_core::manifest::Manifest;
use reeve_core::read::Reader;
use reeve_sandbox::Plugin;

use crate::metrics::Alive;
use crate::registry::Former;
use crate::router::{Route, RouteTable};
use crate::source::SourceId;

/// The snapshot that everybody looks at.
pub type SharedRoster = Arc<ArcSwap<Roster>>;

/// All plugins by name, and where changes go.
#[derive(Clone, Default)]
pub struct Roster {
    slots: BTreeMap<PluginName, Slot>,
    routes: RouteTable,
}

/// What there is under one plugin's name.
#[derive(Clone)]
pub enum Slot {
    /// Its first version waits for its kinds; nothing runs yet.
    Waiting {
        /// A sentence for people.
        why: Arc<str>,
    },
    /// A version that runs.
    Serving(Arc<Registration>),
}

/// One version of a plugin with everything that it needs to run.
pub struct Registration {
    /// The compiled and linked component.
    pub code: Plugin,
    /// Where it came from.
    pub source: SourceId,
    /// Counts the versions of this host's life, from 1.
    pub number: u64,
    /// The kind that is reconciled.
    pub primary: Gvk,
    /// Where its objects live.
    pub scope: Scope,
    /// The cache, as this plugin may see it.
    pub reader: Arc<dyn Reader>,
    /// The configuration, one JSON value.
    pub config: Arc<str>,
    /// Where changes go.
    pub routes: Vec<Arc<Route>>,
    /// Kept open as long as a run of this version is in work.
    pub watches: Vec<Subscription>,
    /// Watches of kinds whose children an older version left behind.
    pub former: Mutex<Vec<Former>>,
    /// As the watches.
    pub indexes: Vec<IndexHold>,
    /// Tells the metrics when the last holder is gone.
    pub alive: Alive,
}

impl Registration {
    /// What the plugin says of itself.
    pub fn manifest(&self) -> &Arc<Manifest> {
        self.code.manifest()
    }

    /// What it may do.
    pub fn grant(&self) -> &Arc<Grant> {
        self.code.grant()
    }

    /// Of its bytes.
    pub fn digest(&self) -> Digest {
        self.code.inspection().digest
    }

    /// Its name.
    pub fn name(&self) -> &PluginName {
        &self.manifest().name
    }
}

impl Roster {
    /// The version that serves under a name.
    pub fn serving(&self, plugin: &PluginName) -> Option<&Arc<Registration>> {
        match self.slots.get(plugin)? {
            Slot::Serving(registration) => Some(registration),
            Slot::Waiting { .. } => None,
        }
    }

    /// What there is under a name.
    pub fn slot(&self, plugin: &PluginName) -> Option<&Slot> {
        self.slots.get(plugin)
    }

    /// Everything that serves.
    pub fn all_serving(&self) -> impl Iterator<Item = &Arc<Registration>> {
        self.slots.values().filter_map(|slot| match slot {
            Slot::Serving(registration) => Some(registration),
            Slot::Waiting { .. } => None,
        })
    }

    /// Where changes go.
    pub fn routes(&self) -> &RouteTable {
        &self.routes
    }

    /// This roster with another slot.
    #[must_use]
    pub fn with(&self, plugin: &PluginName, slot: Slot) -> Self {
        let mut slots = self.slots.clone();
        slots.insert(plugin.clone(), slot);
        Self::of(slots)
    }

    /// This roster without a plugin.
    #[must_use]
    pub fn without(&self, plugin: &PluginName) -> Self {
        let mut slots = self.slots.clone();
        slots.remove(plugin);
        Self::of(slots)
    }

    fn of(slots: BTreeMap<PluginName, Slot>) -> Self {
        let mut roster = Self { slots, routes: RouteTable::default() };
        roster.routes = RouteTable::new(
            roster.all_serving().flat_map(|registration| registration.routes.iter().cloned()),
        );
        roster
    }
}
