//! What a [`Context`](crate::Context) stands on: the host when the plugin runs as a component, a
//! fake in native tests.
//!
//! Objects, lists and staged documents are JSON text here, exactly as they cross the contract.

use std::time::SystemTime;

use crate::error::Error;
use crate::object::ObjectName;

/// A kind as the contract names it: group, version, kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gvk {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

#[cfg(target_arch = "wasm32")]
pub(crate) use crate::role::{HostContext as CallImpl, HostList as ListImpl, HostObject as ObjectImpl};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::testing::fake::{FakeCall as CallImpl, FakeList as ListImpl, FakeObject as ObjectImpl};

/// One call of the host. Bound at compile time, so that a component holds no code for calls that
/// its author does not make.
pub(crate) trait Backend {
    fn name(&self) -> ObjectName;
    fn primary(&self) -> Option<ObjectImpl>;
    fn reasons(&self) -> Vec<String>;
    fn attempt(&self) -> u32;
    fn remaining_ms(&self) -> u64;
    fn cancelled(&self) -> bool;
    fn config(&self) -> String;
    fn now(&self) -> SystemTime;

    fn get(&self, kind: &Gvk, name: &ObjectName) -> Result<Option<ObjectImpl>, Error>;
    fn list(&self, kind: &Gvk, filters: &[(String, String)]) -> Result<ListImpl, Error>;
    fn children(&self, kind: &Gvk) -> Result<ListImpl, Error>;
    fn answer(&self, id: &str) -> Option<String>;

    fn apply_child(&self, object: &str, options: &[(String, String)]) -> Result<(), Error>;
    fn children_complete(&self);
    fn set_status(&self, status: &str) -> Result<(), Error>;
    fn set_condition(&self, kind: &str, status: &str, reason: &str, message: &str) -> Result<(), Error>;
    fn emit_event(&self, kind: &str, reason: &str, action: &str, note: &str) -> Result<(), Error>;
    fn write(&self, id: Option<&str>, request: &str) -> Result<(), Error>;
    fn wait_for(&self, request: &str) -> Result<(), Error>;
    fn requeue_after(&self, ms: u64);
}

/// One version of one object.
pub(crate) trait Item {
    fn raw(&self) -> String;
    fn get(&self, pointer: &str) -> Option<String>;
    fn get_many(&self, pointers: &[String]) -> Vec<Option<String>>;
    fn name(&self) -> ObjectName;
    fn uid(&self) -> String;
    fn resource_version(&self) -> String;
    fn generation(&self) -> u64;
    fn deleting(&self) -> bool;
}

/// A snapshot of a list.
pub(crate) trait Items {
    fn len(&self) -> u32;
    fn raw(&self, index: u32) -> Option<String>;
    fn at(&self, index: u32) -> Option<ObjectImpl>;
    fn get_many(&self, index: u32, pointers: &[String]) -> Vec<Option<String>>;
}

impl Gvk {
    /// Reads `v1` or `apps/v1`.
    pub(crate) fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }
}
