//! A folder whose `*.wasm` files are plugins.
//!
//! File events only say "look again": what counts is the digest of what is read. So a mounted
//! ConfigMap (whose `..data` link is swapped), a copy in pieces and an editor's rename are all one
//! case. A rescan finds what no event told. Files are followed through links; names that begin
//! with a dot are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::Watcher as _;
use reeve_core::ids::Digest;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{Again, Artifact, SourceEvent, SourceId};
use crate::config::Pace;

/// Every so many rescans the bytes are hashed although size and times did not change.
const REHASH_EVERY: u32 = 10;

/// A folder as a source.
#[derive(Debug)]
pub struct DirSource {
    path: PathBuf,
    max_bytes: usize,
    pace: Pace,
    again: Again,
    known: BTreeMap<PathBuf, Known>,
}

/// What is known of one file.
#[derive(Debug)]
struct Known {
    stamp: Option<Stamp>,
    told: Told,
    missing_since: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Bytes(Digest),
    Refused(String),
    Failed(String),
}

/// What changes when a file is written, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What one look at a file gave.
enum Look {
    Same,
    Bytes { stamp: Stamp, bytes: Arc<[u8]>, digest: Digest },
    TooLarge { stamp: Stamp, length: u64 },
    Moving,
    Missing,
    Failed(std::io::Error),
}

impl DirSource {
    /// A source over this folder, which need not exist yet. Files over `max_bytes` are refused.
    pub fn new(path: PathBuf, max_bytes: usize, pace: Pace, again: Again) -> Self {
        Self { path, max_bytes, pace, again, known: BTreeMap::new() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks, tells, waits; ends when the registry went.
    pub(crate) async fn run(mut self, events: mpsc::Sender<SourceEvent>) {
        let touched = Arc::new(Notify::new());
        let mut watcher = FolderWatch::new(&self.path, &touched);
        let mut asked = self.again.asked();
        let mut rescans = 0_u32;
        if self.scan(&events, false).await.is_none() || events.send(SourceEvent::Listed).await.is_err() {
            return;
        }
        loop {
            let wake_missing = self.known.values().filter_map(|known| known.missing_since).min();
            let missing_due = wake_missing.map(|since| since + self.pace.gone_after);
            let rehash = tokio::select! {
                () = touched.notified() => { self.settle_down(&touched).await; false }
                Ok(()) = asked.changed() => false,
                () = sleep_until(missing_due) => false,
                () = tokio::time::sleep(self.pace.rescan) => {
                    rescans = rescans.wrapping_add(1);
                    rescans.is_multiple_of(REHASH_EVERY)
                }
            };
            for source in self
                .again
                .take(|place| matches!(place, SourceId::File(path) if path.parent() == Some(&self.path)))
            {
                if let SourceId::File(path) = source {
                    self.known.remove(&path);
                }
            }
            watcher.renew(&self.path, &touched);
            match self.scan(&events, rehash).await {
                None => return,
                // A file that was written to while it was read is looked at again.
                Some(true) => touched.notify_one(),
                Some(false) => {}
            }
        }
    }

    /// Waits until nothing has happened for a while, at most for the longest wait.
    async fn settle_down(&self, touched: &Notify) {
        let end = Instant::now() + self.pace.longest;
        loop {
            let quiet = (Instant::now() + self.pace.quiet).min(end);
            tokio::select! {
                () = touched.notified() => if Instant::now() >= end { return },
                () = tokio::time::sleep_until(quiet) => return,
            }
        }
    }

    /// One look at the folder. `None` when the registry went, `Some(true)` when a file is in motion.
    async fn scan(&mut self, events: &mpsc::Sender<SourceEvent>, rehash: bool) -> Option<bool> {
        let found = match plugin_files(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => {
                // An unreadable folder is no removal of its plugins: they go on.
                tracing::warn!(folder = %self.path.display(), %error, "failed to read the plugin folder, trying again");
                return Some(false);
            }
        };
        let mut moving = false;
        for path in &found {
            let stamp = self.known.get(path).and_then(|known| known.stamp).filter(|_| !rehash);
            let (file, max_bytes) = (path.clone(), self.max_bytes);
            let look = tokio::task::spawn_blocking(move || look(&file, stamp, max_bytes)).await;
            let look = look.unwrap_or_else(|error| Look::Failed(std::io::Error::other(error)));
            match self.tell(path, look, events).await {
                Telling::Gone => return None,
                Telling::Moving => moving = true,
                Telling::Done => {}
            }
        }
        self.tell_missing(&found, events).await?;
        Some(moving)
    }

    async fn tell(&mut self, path: &Path, look: Look, events: &mpsc::Sender<SourceEvent>) -> Telling {
        let source = SourceId::File(path.to_owned());
        let (stamp, told, event) = match look {
            Look::Same => {
                if let Some(known) = self.known.get_mut(path) {
                    known.missing_since = None;
                }
                return Telling::Done;
            }
            Look::Missing => return Telling::Done,
            Look::Moving => return Telling::Moving,
            Look::Bytes { stamp, bytes, digest } => {
                (Some(stamp), Told::Bytes(digest), SourceEvent::Found(Artifact { source, bytes, digest }))
            }
            Look::TooLarge { stamp, length } => {
                let reason = format!(
                    "{source} has {length} bytes, more than the {} allowed: make it smaller (`reeve build` strips it), or raise --max-plugin-bytes",
                    self.max_bytes
                );
                (Some(stamp), Told::Refused(reason.clone()), SourceEvent::Refused { source, reason })
            }
            Look::Failed(error) => {
                let reason = format!(
                    "{source} cannot be read: {error}; it is tried again every {} s",
                    self.pace.rescan.as_secs()
                );
                (None, Told::Failed(reason.clone()), SourceEvent::FetchFailed { source, reason })
            }
        };
        let known = Known { stamp, told, missing_since: None };
        let same = self.known.get(path).is_some_and(|before| before.told == known.told);
        self.known.insert(path.to_owned(), known);
        if same || events.send(event).await.is_ok() { Telling::Done } else { Telling::Gone }
    }

    /// Tells which files have been missing long enough. `None` when the registry went.
    async fn tell_missing(
        &mut self,
        found: &BTreeSet<PathBuf>,
        events: &mpsc::Sender<SourceEvent>,
    ) -> Option<()> {
        let now = Instant::now();
        let mut gone = Vec::new();
        for (path, known) in &mut self.known {
            if found.contains(path) {
                known.missing_since = None;
            } else if now.saturating_duration_since(*known.missing_since.get_or_insert(now))
                >= self.pace.gone_after
            {
                gone.push(path.clone());
            }
        }
        for path in gone {
            self.known.remove(&path);
            events.send(SourceEvent::Gone(SourceId::File(path))).await.ok()?;
        }
        Some(())
    }
}

/// How telling went.
enum Telling {
    Done,
    Moving,
    Gone,
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The plugin files of a folder by name, links included.
fn plugin_files(folder: &Path) -> std::io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let wasm = path.extension().is_some_and(|extension| extension == "wasm");
        if wasm && !hidden && std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            files.insert(path);
        }
    }
    Ok(files)
}

fn look(path: &Path, known: Option<Stamp>, max_bytes: usize) -> Look {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Look::Missing,
        Err(error) => return Look::Failed(error),
    };
    let before = match file.metadata() {
        Ok(metadata) => Stamp::of(&metadata),
        Err(error) => return Look::Failed(error),
    };
    if known == Some(before) {
        return Look::Same;
    }
    if before.length > max_bytes as u64 {
        return Look::TooLarge { stamp: before, length: before.length };
    }
    let mut bytes = Vec::with_capacity(usize::try_from(before.length).unwrap_or(0));
    // One more than the limit, so that a file that grows meanwhile is noticed and not read whole.
    if let Err(error) = file.by_ref().take(max_bytes as u64 + 1).read_to_end(&mut bytes) {
        return Look::Failed(error);
    }
    match file.metadata() {
        Ok(metadata) if Stamp::of(&metadata) == before && bytes.len() as u64 == before.length => {
            let digest = Digest::of(&bytes);
            Look::Bytes { stamp: before, bytes: bytes.into(), digest }
        }
        Ok(_) => Look::Moving,
        Err(error) => Look::Failed(error),
    }
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The operating system's watch on a folder. Without one (no folder yet, no inotify watches left)
/// the rescan is what remains, and the watch is tried again with it.
struct FolderWatch {
    watcher: Option<notify::RecommendedWatcher>,
    folder: Option<(u64, u64)>,
    warned: bool,
}

impl FolderWatch {
    fn new(path: &Path, touched: &Arc<Notify>) -> Self {
        let mut watch = Self { watcher: None, folder: None, warned: false };
        watch.renew(path, touched);
        watch
    }

    /// Watches again when there is no watch, or when another folder has taken the path.
    fn renew(&mut self, path: &Path, touched: &Arc<Notify>) {
        let folder = std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if self.watcher.is_some() && self.folder == folder {
            return;
        }
        self.watcher = None;
        self.folder = folder;
        if folder.is_none() {
            return;
        }
        let touched = Arc::clone(touched);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading a file tells "access", which is no news and would never end.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                touched.notify_one();
            }
        });
        let watching = watcher.and_then(|mut watcher| {
            watcher.watch(path, notify::RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match watching {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => {
                if !self.warned {
                    tracing::warn!(folder = %path.display(), %error, "failed to watch the plugin folder; it is looked at periodically instead");
                }
                self.warned = true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
