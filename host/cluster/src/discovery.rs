//! Which kinds the cluster serves.
//!
//! One request per group and version, shared by everyone who asks at the same time. Kinds come and
//! go (feature B5), so an answer is never kept for good: one that lacks the kind for
//! [`MISSING_FOR`], one that has it for [`KNOWN_FOR`] or until a request to it was answered 404.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use http::{Request, StatusCode};
use parking_lot::Mutex;
use reeve_core::gvk::{Gvk, Kind, Scope};
use serde::Deserialize;
use tokio::time::Instant;

use crate::connection::{Answer, Connection};
use crate::path;

/// How long a missing kind is believed to be missing: with the streams' own pause of 2 s a new CRD
/// is found well within the 5 s that users are promised.
pub const MISSING_FOR: Duration = Duration::from_secs(1);

/// How long a known kind is believed to be unchanged (a CRD may gain a status subresource).
pub const KNOWN_FOR: Duration = Duration::from_mins(5);

/// How long one discovery request may take; the document is small and served from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Resolves kinds. Cheap to clone.
#[derive(Clone)]
pub struct Discovery {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    /// One slot per group and version that was ever asked for: as many as there are manifests'
    /// kinds.
    slots: Mutex<HashMap<GroupVersion, Slot>>,
}

type GroupVersion = (Arc<str>, Arc<str>);
type Kinds = Arc<HashMap<Arc<str>, Arc<Kind>>>;
type Asking = Shared<BoxFuture<'static, Result<Kinds, DiscoveryError>>>;

enum Slot {
    /// A request is on its way.
    Asking(Asking),
    /// What it said; a group and version that is not served has no kinds.
    Known { kinds: Kinds, at: Instant },
}

/// Why a kind is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The cluster does not serve it.
    #[error(
        "the cluster does not serve {0}: apply its CustomResourceDefinition, or correct group, version and kind"
    )]
    NotServed(Gvk),
    /// The API server forbids discovery.
    #[error(
        "the API server forbids discovery (get {path}): bind the ClusterRole system:discovery, which every cluster has, to this host's account"
    )]
    Forbidden {
        /// What was asked for.
        path: String,
    },
    /// The API server cannot be reached, or is not ready, or the group's own server is not.
    #[error("failed to discover {path}: {reason}")]
    Unreachable {
        /// What was asked for.
        path: String,
        /// What happened.
        reason: String,
    },
    /// The answer is not usable.
    #[error("failed to discover {path}: the answer is no APIResourceList: {reason}")]
    Bad {
        /// What was asked for.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

// === impl Discovery ===

impl Discovery {
    /// Over a connection.
    pub fn new(connection: Connection) -> Self {
        Self { inner: Arc::new(Inner { connection, slots: Mutex::default() }) }
    }

    /// What the cluster says of a kind.
    pub async fn resolve(&self, gvk: &Gvk) -> Result<Arc<Kind>, DiscoveryError> {
        let kinds = match self.known_or_ask(gvk) {
            Ok(kinds) => kinds,
            Err(asking) => {
                let result = asking.clone().await;
                self.settle(gvk, &asking, result.as_ref().ok());
                result?
            }
        };
        kinds.get(&gvk.kind).cloned().ok_or_else(|| DiscoveryError::NotServed(gvk.clone()))
    }

    /// Forgets the kind's group and version: a request to it was answered 404.
    pub fn forget(&self, gvk: &Gvk) {
        self.inner.slots.lock().remove(&group_version(gvk));
    }

    fn known_or_ask(&self, gvk: &Gvk) -> Result<Kinds, Asking> {
        let mut slots = self.inner.slots.lock();
        let key = group_version(gvk);
        match slots.get(&key) {
            Some(Slot::Asking(asking)) => return Err(asking.clone()),
            Some(Slot::Known { kinds, at }) => {
                let limit = if kinds.contains_key(&gvk.kind) { KNOWN_FOR } else { MISSING_FOR };
                if at.elapsed() < limit {
                    return Ok(Arc::clone(kinds));
                }
            }
            None => {}
        }
        let asking = ask(self.inner.connection.clone(), gvk.clone()).boxed().shared();
        slots.insert(key, Slot::Asking(asking.clone()));
        Err(asking)
    }

    /// The first who sees the result of a request writes it down; a failure is not kept.
    fn settle(&self, gvk: &Gvk, asked: &Asking, kinds: Option<&Kinds>) {
        let mut slots = self.inner.slots.lock();
        let key = group_version(gvk);
        if !matches!(slots.get(&key), Some(Slot::Asking(asking)) if asking.ptr_eq(asked)) {
            return;
        }
        match kinds {
            Some(kinds) => slots.insert(key, Slot::Known { kinds: Arc::clone(kinds), at: Instant::now() }),
            None => slots.remove(&key),
        };
    }
}

fn group_version(gvk: &Gvk) -> GroupVersion {
    (Arc::clone(&gvk.group), Arc::clone(&gvk.version))
}

async fn ask(connection: Connection, gvk: Gvk) -> Result<Kinds, DiscoveryError> {
    let path = path::group_version(&gvk);
    let request = Request::get(&path)
        .header(http::header::ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(|error| DiscoveryError::Bad { path: path.clone(), reason: error.to_string() })?;
    match connection.request(request, TIMEOUT).await {
        Ok(answer) => read(&gvk, path, &answer),
        Err(error) => Err(DiscoveryError::Unreachable { path, reason: error.to_string() }),
    }
}

fn read(gvk: &Gvk, path: String, answer: &Answer) -> Result<Kinds, DiscoveryError> {
    match answer.status {
        StatusCode::OK => {
            let list = serde_json::from_slice::<ApiResourceList<'_>>(&answer.body)
                .map_err(|error| DiscoveryError::Bad { path, reason: error.to_string() })?;
            Ok(Arc::new(kinds(gvk, &list)))
        }
        // Neither the group nor this version of it.
        StatusCode::NOT_FOUND => Ok(Kinds::default()),
        StatusCode::FORBIDDEN => Err(DiscoveryError::Forbidden { path }),
        status => {
            let reason = format!("the API server answered {status}");
            Err(DiscoveryError::Unreachable { path, reason })
        }
    }
}

/// The part of an `APIResourceList` that counts.
#[derive(Deserialize)]
struct ApiResourceList<'a> {
    #[serde(borrow)]
    resources: Vec<ApiResource<'a>>,
}

#[derive(Deserialize)]
struct ApiResource<'a> {
    /// `deployments`, or `deployments/status` for a subresource.
    name: &'a str,
    kind: &'a str,
    #[serde(default)]
    namespaced: bool,
    #[serde(default, borrow)]
    verbs: Vec<&'a str>,
}

fn kinds(gvk: &Gvk, list: &ApiResourceList<'_>) -> HashMap<Arc<str>, Arc<Kind>> {
    let resources = list.resources.iter().filter(|resource| !resource.name.contains('/'));
    resources
        .map(|resource| {
            let subresources = list.resources.iter().filter_map(|other| {
                let (plural, subresource) = other.name.split_once('/')?;
                (plural == resource.name).then(|| subresource.into())
            });
            let kind = Kind {
                gvk: Gvk::new(&gvk.group, &gvk.version, resource.kind),
                plural: resource.name.into(),
                scope: if resource.namespaced { Scope::Namespaced } else { Scope::Cluster },
                verbs: resource.verbs.iter().map(|verb| (*verb).into()).collect(),
                subresources: subresources.collect(),
            };
            (Arc::clone(&kind.gvk.kind), Arc::new(kind))
        })
        .collect()
}

#[cfg(test)]
mod tests;
