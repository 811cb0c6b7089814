//! Compiled code on disk.
//!
//! Compiled code is native code, so the directory is the host's own: nobody else may enter it, and
//! an entry is used only if its checksum is the one that was written down when it was made. A key
//! is the digest of the delivered bytes, what the engine is built and set up like, and the version
//! of this crate; nothing else can ever be taken for it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use reeve_core::ids::Digest;
use serde::{Deserialize, Serialize};
use wasmtime::Engine;

use crate::config::MAX_CACHE_BYTES;
use crate::sandbox::SandboxError;

/// The private directory.
#[derive(Debug)]
pub(crate) struct CodeCache {
    directory: PathBuf,
    /// What all keys of this host end with.
    suffix: String,
}

/// What stands beside the code.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    /// Of the code.
    checksum: String,
    /// What `describe` returned.
    manifest: String,
}

/// An entry that may be used.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) code: PathBuf,
    pub(crate) manifest: String,
}

impl CodeCache {
    /// Opens the directory, which is made if it is missing. One that anybody else could write to
    /// or read from is refused.
    pub(crate) fn open(directory: &Path, engine: &Engine) -> Result<Self, SandboxError> {
        let refuse = |reason: String| SandboxError::CacheDirectory { path: directory.to_owned(), reason };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| refuse(format!("cannot be made: {error}")))?;
        let metadata = fs::symlink_metadata(directory).map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_dir() {
            return Err(refuse("is no directory (or a link to one)".to_owned()));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(refuse(format!("has mode {:04o}, others may enter it", metadata.mode() & 0o7777)));
        }
        // A file that is made here belongs to whom this process runs as.
        let probe = tempfile::tempfile_in(directory)
            .and_then(|file| file.metadata())
            .map_err(|error| refuse(format!("cannot be written to: {error}")))?;
        if probe.uid() != metadata.uid() {
            return Err(refuse(format!(
                "belongs to user {}, this host runs as user {}",
                metadata.uid(),
                probe.uid()
            )));
        }
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let suffix = format!("{:016x}-{}", hasher.finish(), env!("CARGO_PKG_VERSION"));
        Ok(Self { directory: directory.to_owned(), suffix })
    }

    /// The entry for a component, if there is one and it is as it was written.
    pub(crate) fn find(&self, digest: &Digest) -> Option<Entry> {
        let (code, label) = (self.path(digest, "cwasm"), self.path(digest, "json"));
        let label = fs::read(label).ok()?;
        let entry =
            serde_json::from_slice::<Label>(&label).map_err(|error| error.to_string()).and_then(|label| {
                let bytes = fs::read(&code).map_err(|error| error.to_string())?;
                if Digest::of(&bytes).to_string() == label.checksum {
                    Ok(Entry { code: code.clone(), manifest: label.manifest })
                } else {
                    Err("its checksum is another one".to_owned())
                }
            });
        match entry {
            Ok(entry) => {
                // The age of an entry is that of its last use. Not to be able to say so only
                // makes it go earlier.
                let touched = fs::File::options().append(true).open(self.path(digest, "json"));
                if let Err(error) = touched.and_then(|file| file.set_modified(SystemTime::now())) {
                    tracing::debug!(%error, "the age of a cache entry stays as it was");
                }
                Some(entry)
            }
            Err(reason) => {
                tracing::warn!(code = %code.display(), reason, "a cache entry is damaged and is made again");
                self.remove(digest);
                None
            }
        }
    }

    /// Writes code down. It is no entry before [`CodeCache::complete`].
    pub(crate) fn put(&self, digest: &Digest, code: &[u8]) -> io::Result<PathBuf> {
        let path = self.path(digest, "cwasm");
        self.write(&path, code)?;
        Ok(path)
    }

    /// Makes code an entry: its checksum and what its `describe` returned.
    pub(crate) fn complete(&self, digest: &Digest, code: &[u8], manifest: &str) -> io::Result<()> {
        let label = Label { checksum: Digest::of(code).to_string(), manifest: manifest.to_owned() };
        self.write(&self.path(digest, "json"), &serde_json::to_vec(&label)?)?;
        self.evict()
    }

    /// Forgets an entry. Code that is in use stays so: it is mapped.
    pub(crate) fn remove(&self, digest: &Digest) {
        for kind in ["json", "cwasm"] {
            let path = self.path(digest, kind);
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "failed to remove a cache entry");
            }
        }
    }

    fn path(&self, digest: &Digest, kind: &str) -> PathBuf {
        self.directory.join(format!("{}-{}.{kind}", digest.hex(), self.suffix))
    }

    /// All or nothing, also when the machine stops in between.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    }

    /// Removes the entries that were not used for longest, until the rest is within bounds.
    fn evict(&self) -> io::Result<()> {
        let mut files = Vec::new();
        let mut total = 0;
        for file in fs::read_dir(&self.directory)? {
            let file = file?;
            // A file that another host removed meanwhile needs no removing.
            let Ok(metadata) = file.metadata() else { continue };
            total += metadata.len();
            files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), file.path()));
        }
        files.sort();
        for (_, size, path) in files {
            if total <= MAX_CACHE_BYTES {
                break;
            }
            fs::remove_file(&path)?;
            total -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
