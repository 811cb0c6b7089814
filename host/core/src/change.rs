//! What a watch tells the router: one object changed.

use crate::gvk::Gvk;
use crate::ids::{ObjectName, PluginName};
use crate::object::SharedObject;

/// One change of one object. The cache holds `new` before the change is told.
#[derive(Debug, Clone)]
pub struct Change {
    /// The kind of the stream that told it.
    pub gvk: Gvk,
    /// What the cache held before; `None` for an object that is new to it.
    pub old: Option<SharedObject>,
    /// What it holds now; `None` when the object is gone.
    pub new: Option<SharedObject>,
    /// How the change became known.
    pub cause: Cause,
}

/// How a change became known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The first list of a stream. Requests from it have low priority.
    Initial,
    /// A watch event.
    Watch,
    /// A relist after a gap found it. A delete found this way is a tombstone: the last known
    /// state stands in `old`, and the object may have lived on unseen for a while.
    Relist,
    /// The answer of a write that this host made for a plugin; the watch event that follows with
    /// the same resourceVersion tells nothing again.
    Write(Origin),
}

/// Who made a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// For which plugin.
    pub plugin: PluginName,
    /// While working on which primary.
    pub primary: ObjectName,
}

impl Change {
    /// The object's name, from whichever side there is.
    pub fn name(&self) -> Option<&ObjectName> {
        self.new.as_ref().or(self.old.as_ref()).map(|object| &object.meta().name)
    }

    /// The same name, another UID: the old object went and a new one came unseen.
    pub fn replaced(&self) -> bool {
        matches!((&self.old, &self.new), (Some(old), Some(new)) if old.meta().uid != new.meta().uid)
    }
}
