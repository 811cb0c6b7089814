//! Reads the events of a watch as they come.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;
use reeve_core::gvk::Gvk;
use reeve_core::ids::ResourceVersion;
use reeve_core::object::{Object, ParseObjectError};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use super::request::Status;
use super::state::Trouble;
use crate::cache::Flavour;

/// The most bytes of one event or item. The API server takes no object over 3 MiB; the rest is for
/// its managedFields and for other servers.
pub(super) const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// A server that sends bookmarks does so every minute; after one and a half without a byte the
/// connection is dead.
const SILENCE: Duration = Duration::from_secs(90);

/// What a server that sends no bookmarks may be late with ending the watch as it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// Marks the bookmark behind the initial events of a watch-list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An open watch.
pub(super) struct Events {
    body: Body,
    buffer: BytesMut,
    /// Up to here the buffer has no line end.
    scanned: usize,
    /// The rest of a line that is too long is thrown away.
    skipping: bool,
    /// How long nothing may come.
    patience: Duration,
    opened: Instant,
    /// How many events and bookmarks came.
    told: u64,
}

/// One line of a watch.
#[derive(Debug)]
pub(super) enum Event {
    /// `ADDED` or `MODIFIED`.
    Upsert(Object),
    /// `DELETED`, with the last state.
    Deleted(Object),
    /// `BOOKMARK`.
    Bookmark {
        version: ResourceVersion,
        /// All initial events were sent.
        initial_end: bool,
    },
    /// `ERROR`.
    Error(Box<Status>),
    /// No object of this kind.
    Unreadable(String),
}

// === impl Events ===

impl Events {
    /// `limit`: how long the server was asked to keep the watch open.
    pub(super) fn new(body: Body, limit: Duration) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            scanned: 0,
            skipping: false,
            patience: limit + GRACE,
            opened: Instant::now(),
            told: 0,
        }
    }

    /// The next line without its end; `None` when the server ended the watch. A line that is too
    /// long comes empty.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Trouble> {
        loop {
            if let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.scanned + end + 1).freeze();
                self.scanned = 0;
                self.told += 1;
                if std::mem::take(&mut self.skipping) {
                    return Ok(Some(Bytes::new()));
                }
                return Ok(Some(line.slice(..line.len() - 1)));
            }
            self.scanned = self.buffer.len();
            if self.scanned > MAX_EVENT_BYTES {
                self.skipping = true;
                self.buffer.clear();
                self.scanned = 0;
            }
            match timeout(self.patience, self.body.frame()).await {
                Err(_) => return Err(Trouble::Silent),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(super::text::broke(&error)),
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }

    /// The server sends bookmarks, so silence means something.
    pub(super) fn expect_bookmarks(&mut self) {
        self.patience = self.patience.min(SILENCE);
    }

    /// The watch was open for less than a second and told nothing.
    pub(super) fn too_short(&self) -> bool {
        self.told == 0 && self.opened.elapsed() < Duration::from_secs(1)
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("told", &self.told).finish_non_exhaustive()
    }
}

// === impl Event ===

/// The envelope of an event.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    what: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
struct BookmarkMetadata {
    #[serde(rename = "resourceVersion")]
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Event {
    /// Reads a line.
    pub(super) fn parse(line: &[u8], gvk: &Gvk, flavour: Flavour) -> Self {
        if line.is_empty() {
            return Self::Unreadable(format!("an event has more than {MAX_EVENT_BYTES} bytes"));
        }
        let envelope: Line<'_> = match serde_json::from_slice(line) {
            Ok(envelope) => envelope,
            Err(error) => return Self::Unreadable(format!("an event is not readable: {error}")),
        };
        let json = envelope.object.get();
        match &*envelope.what {
            "ADDED" | "MODIFIED" => {
                parse_object(gvk, json, flavour).map_or_else(Self::unreadable, Self::Upsert)
            }
            "DELETED" => parse_object(gvk, json, flavour).map_or_else(Self::unreadable, Self::Deleted),
            "BOOKMARK" => Self::bookmark(json),
            "ERROR" => match serde_json::from_str(json) {
                Ok(status) => Self::Error(Box::new(status)),
                Err(error) => Self::Unreadable(format!("an error event is not readable: {error}")),
            },
            _ => Self::Unreadable("an event is of no known type".to_owned()),
        }
    }

    /// The metric label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Upsert(_) => "upsert",
            Self::Deleted(_) => "deleted",
            Self::Bookmark { .. } => "bookmark",
            Self::Error(_) => "error",
            Self::Unreadable(_) => "unreadable",
        }
    }

    fn bookmark(json: &str) -> Self {
        let bookmark: Result<Bookmark, _> = serde_json::from_str(json);
        let read = bookmark.ok().and_then(|bookmark| {
            let version = ResourceVersion::parse(&bookmark.metadata.resource_version)?;
            let initial_end =
                bookmark.metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|end| end == "true");
            Some(Self::Bookmark { version, initial_end })
        });
        read.unwrap_or_else(|| Self::Unreadable("a bookmark has no usable resourceVersion".to_owned()))
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is the closure of a map_or_else")]
    fn unreadable(error: ParseObjectError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

/// Reads an object in the form in which it is kept.
pub(super) fn parse_object(gvk: &Gvk, json: &str, flavour: Flavour) -> Result<Object, ParseObjectError> {
    if flavour.metadata_only {
        // A server that cannot send metadata alone sends the whole object.
        Object::parse_metadata(gvk, json, flavour.managed).or_else(|error| {
            Object::parse(gvk, json, flavour.managed).map(|object| object.to_metadata(gvk)).map_err(|_| error)
        })
    } else {
        Object::parse(gvk, json, flavour.managed)
    }
}
