//! Reading everything: a page of a list, or the initial events of a watch.

use std::time::Duration;

use http_body_util::BodyExt as _;
use reeve_core::ids::ResourceVersion;
use serde::Deserialize;

use tokio::time::timeout;

use super::events::{Event, Events, parse_object};
use super::follow::{Follower, watch_limit};
use super::list::{ListReader, Piece};
use super::state::{Found, Freshness, Trouble};
use super::text;

/// How long a list may pause between two chunks, and a watch-list before it says that the initial
/// events are all.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// What stands around the items of a page.
#[derive(Deserialize)]
struct ListMetadata {
    #[serde(rename = "resourceVersion", default)]
    resource_version: String,
    #[serde(rename = "continue", default)]
    next: String,
}

// === impl Follower ===

impl Follower {
    /// Reads one page; its version and where the next one is.
    pub(super) async fn page(
        &mut self,
        from: Freshness,
        next: Option<&str>,
        found: &mut Found,
    ) -> Result<(ResourceVersion, Option<String>), Trouble> {
        let request = self.target()?.list(from, next)?;
        let mut body = self.send("list", request).await?.into_body();
        let mut reader = ListReader::default();
        let mut metadata = None;
        loop {
            while let Some(piece) = reader
                .next()
                .map_err(|error| Trouble::Bad(format!("a list is not readable: {error}").into()))?
            {
                match piece {
                    Piece::Metadata(bytes) => metadata = serde_json::from_slice::<ListMetadata>(&bytes).ok(),
                    Piece::Item(bytes) => {
                        let text = std::str::from_utf8(&bytes).map_err(|error| error.to_string());
                        let gvk = &self.stream.key.gvk;
                        match text.and_then(|text| {
                            parse_object(gvk, text, self.stream.key.flavour)
                                .map_err(|error| error.to_string())
                        }) {
                            Ok(object) => self.find(found, object),
                            Err(error) => self.skip(&error),
                        }
                    }
                    Piece::End => {
                        // Read to its end, the connection serves the next page too.
                        while let Ok(Some(Ok(_))) = timeout(CHUNK_TIMEOUT, body.frame()).await {}
                        return self.end_of_page(metadata);
                    }
                }
            }
            match timeout(CHUNK_TIMEOUT, body.frame()).await {
                Err(_) => return Err(Trouble::Unreachable("a list stopped in its middle".into())),
                Ok(None) => return Err(Trouble::Unreachable("a list broke off".into())),
                Ok(Some(Err(error))) => return Err(text::broke(&error)),
                Ok(Some(Ok(frame))) => reader.feed(frame.data_ref().map_or(&[], |data| &data[..])),
            }
        }
    }

    fn end_of_page(
        &self,
        metadata: Option<ListMetadata>,
    ) -> Result<(ResourceVersion, Option<String>), Trouble> {
        let metadata = metadata.ok_or_else(|| Trouble::Bad("a list has no metadata".into()))?;
        let version = ResourceVersion::parse(&metadata.resource_version)
            .ok_or_else(|| Trouble::Bad("a list has no usable resourceVersion".into()))?;
        let kind = self.stream.key.gvk.to_string();
        self.metrics.lists.with_label_values(&[kind.as_str(), "page"]).inc();
        Ok((version, Some(metadata.next).filter(|next| !next.is_empty())))
    }

    /// Opens a watch-list and reads its initial events.
    pub(super) async fn initial(&mut self, from: Freshness) -> Result<(ResourceVersion, Events), Trouble> {
        let limit = watch_limit();
        let request = self.target()?.stream(from, limit)?;
        let mut events = self.open(request, limit).await?;
        let mut found = Found::new();
        loop {
            let line = match timeout(CHUNK_TIMEOUT, events.next()).await {
                Ok(line) => line?,
                Err(_) => return Err(Trouble::Endless),
            };
            let Some(line) = line else {
                return Err(Trouble::Unreachable("a watch ended within its initial events".into()));
            };
            match self.event(&line) {
                Event::Upsert(object) => self.find(&mut found, object),
                Event::Deleted(object) => {
                    found.remove(&object.meta().name);
                }
                Event::Bookmark { version, initial_end: true } => {
                    self.replace(from, found, version);
                    events.expect_bookmarks();
                    return Ok((version, events));
                }
                // A server that does not know watch-list takes this for a usual watch.
                Event::Bookmark { .. } => return Err(Trouble::Endless),
                Event::Error(status) => return Err(self.target()?.trouble("watch", &status, None)),
                Event::Unreadable(error) => self.skip(&error),
            }
        }
    }
}
