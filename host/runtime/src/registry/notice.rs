//! Events of the registry: about the ConfigMap that a plugin comes from, and about objects that a
//! plugin leaves behind. A plugin from a folder has no object; its log lines and metrics tell.

use reeve_cluster::events::{Events, Regarding};
use reeve_core::gvk::Gvk;
use reeve_core::leading::Leading;
use reeve_core::object::SharedObject;
use reeve_core::plan::Event;

use crate::source::SourceId;

/// Sends the registry's events.
pub(crate) struct Notices {
    events: Events,
    leading: Leading,
}

impl Notices {
    pub(crate) fn new(events: Events, leading: Leading) -> Self {
        Self { events, leading }
    }

    /// About the place where a plugin lies.
    pub(super) fn source(&self, source: &SourceId, warning: bool, reason: &str, note: &str) {
        let SourceId::ConfigMap(name) = source else { return };
        let gvk = Gvk::new("", "v1", "ConfigMap");
        let regarding = Regarding { gvk, name: name.clone(), uid: None, version: None };
        self.events.emit(&self.leading, None, regarding, event(warning, reason, "LoadPlugin", note));
    }

    /// About an object that keeps a finalizer.
    pub(super) fn finalizer_left(&self, gvk: &Gvk, object: &SharedObject, note: &str) {
        let meta = object.meta();
        let (uid, version) = (Some(meta.uid.clone()), Some(meta.resource_version));
        let regarding = Regarding { gvk: gvk.clone(), name: meta.name.clone(), uid, version };
        self.events.emit(&self.leading, None, regarding, event(true, "FinalizerLeft", "StopPlugin", note));
    }
}

fn event(warning: bool, reason: &str, action: &str, note: &str) -> Event {
    Event { warning, reason: reason.to_owned(), action: action.to_owned(), note: note.to_owned() }
}
