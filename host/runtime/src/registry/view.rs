//! What the registry tells the admin API: one immutable picture after each change.

use std::sync::Arc;

use arc_swap::ArcSwap;
use reeve_core::ids::PluginName;
use serde::Serialize;

use super::place::{Next, Place};
use crate::roster::{Roster, Slot};
use crate::source::SourceId;

/// The latest picture. Cheap to clone.
#[derive(Clone, Default)]
pub struct Views(Arc<ArcSwap<Published>>);

/// The registry at one moment.
#[derive(Debug, Default)]
pub struct Published {
    /// Every place where a plugin lies.
    pub places: Vec<PlaceView>,
    /// Every source has looked at everything once.
    pub listed: bool,
    /// Nothing is on its way that does not say what it waits for.
    pub settled: bool,
}

/// One place.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaceView {
    /// File or ConfigMap.
    pub source: String,
    /// The plugin's name, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginName>,
    /// `serving`, `loading`, `pending`, `rejected` or `failed`: of what is in service, or else of
    /// what is on its way.
    pub state: &'static str,
    /// Of the version in service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Of the version in service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What the version in service may do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grant: Vec<String>,
    /// What is on its way, or was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<NextView>,
    /// Why the latest bytes are not in service, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What is on its way, or was refused.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NextView {
    /// `loading`, `pending` or `rejected`.
    pub state: &'static str,
    /// The version, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Of its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl Views {
    /// The latest picture.
    pub fn load(&self) -> Arc<Published> {
        self.0.load_full()
    }

    pub(super) fn publish(&self, published: Published) {
        self.0.store(Arc::new(published));
    }
}

impl Place {
    pub(super) fn view(&self, source: &SourceId, roster: &Roster) -> PlaceView {
        let (next, error, on_its_way) = match &self.next {
            Next::Nothing => (None, None, None),
            Next::Loading(way) => (
                Some(NextView { state: "loading", version: None, digest: Some(way.digest.to_string()) }),
                None,
                None,
            ),
            Next::Admitting { way, plugin, version, waits } => {
                let state = if waits.is_empty() { "loading" } else { "pending" };
                let digest = Some(way.digest.to_string());
                let next = NextView { state, version: Some(version.clone()), digest };
                (Some(next), Some(waits.join("; ")).filter(|why| !why.is_empty()), Some(plugin.clone()))
            }
            Next::Rejected { digest, reason, blocked_by } => {
                let digest = digest.map(|digest| digest.to_string());
                (
                    Some(NextView { state: "rejected", version: None, digest }),
                    Some(reason.clone()),
                    blocked_by.clone(),
                )
            }
        };
        let error = error.or_else(|| self.fetch_error.clone());
        let registration = self.serving.as_ref().and_then(|(plugin, _)| match roster.slot(plugin) {
            Some(Slot::Serving(registration)) => Some(registration),
            _ => None,
        });
        let state = match (registration, &next) {
            (Some(_), _) => "serving",
            (None, Some(next)) => next.state,
            (None, None) => "failed",
        };
        PlaceView {
            source: source.to_string(),
            plugin: registration.map(|registration| registration.name().clone()).or(on_its_way),
            state,
            version: registration.map(|registration| registration.manifest().version.clone()),
            digest: registration.map(|registration| registration.digest().to_string()),
            grant: registration.map(|registration| registration.grant().lines()).unwrap_or_default(),
            next,
            error,
        }
    }
}
