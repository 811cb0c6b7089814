//! What a sandboxed plugin may read: the one trait between `reeve-sandbox` and `reeve-cluster`.
//!
//! Invariant: no read touches the network. A reader may ask to wait only for a write of this host
//! whose outcome is unknown (feature B4).

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::gvk::Gvk;
use crate::ids::{ObjectName, Uid};
use crate::labels::Selector;
use crate::object::SharedObject;

/// The longest that a read is held for a write of unknown outcome (feature B4).
pub const HOLD_LIMIT: Duration = Duration::from_secs(5);

/// The cache as one plugin may see it. It checks the kinds that the plugin's grant allows.
pub trait Reader: Send + Sync {
    /// One object by name; `Ok(None)` when the cache is synced and has none.
    fn get(&self, gvk: &Gvk, name: &ObjectName) -> Result<Option<SharedObject>, ReadError>;

    /// A snapshot of a list, in order of namespace and name.
    fn list(&self, gvk: &Gvk, query: &Query) -> Result<Arc<[SharedObject]>, ReadError>;

    /// `Some` when an object of that kind (and name, where given) is held because a write of it
    /// has an unknown outcome; the future ends when it is known, at the latest after
    /// [`HOLD_LIMIT`].
    fn held(&self, gvk: &Gvk, name: Option<&ObjectName>) -> Option<BoxFuture<'static, ()>>;
}

/// Which objects of a kind; everything given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Query {
    /// Only this namespace.
    pub namespace: Option<Arc<str>>,
    /// Only these labels.
    pub labels: Option<Selector>,
    /// Only objects with this UID among their owners.
    pub owner: Option<Uid>,
    /// Only objects of this value in this declared index.
    pub index: Option<(Arc<str>, Arc<str>)>,
}

/// Why a read is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The manifest does not declare the kind.
    #[error("{0} is not declared in the plugin's manifest: add it to `watches`")]
    NotDeclared(Gvk),
    /// The kind is declared, but only with a namespace or ceiling that excludes this read.
    #[error("reading {0} in namespace {1:?} is outside of what this plugin's watch or grant covers")]
    OutOfScope(Gvk, String),
    /// The kind has no such index.
    #[error("{0} has no index {1:?}: add it to `indexes` in the manifest")]
    NoIndex(Gvk, String),
    /// The kind is not served, or its first list did not succeed yet.
    #[error("{0} is not in the cache yet: {1}")]
    NotSynced(Gvk, String),
}
