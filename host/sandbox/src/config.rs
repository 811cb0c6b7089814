//! What a sandbox is built from, and the bounds that are not per plugin.

use std::path::PathBuf;
use std::time::Duration;

/// How a [`crate::Sandbox`] is set up.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Threads that run guest code; 0 counts as 1. The default is one per core.
    pub threads: usize,
    /// How many instances may live at once, in all plugins together. A run waits for a free one
    /// before its deadline begins. The default, 256, is also what the pool reserves.
    pub max_instances: u32,
    /// Where compiled code is kept: a directory that only this user can enter (mode 0700). It is
    /// made when it is missing. `None`: each start compiles again.
    pub cache_dir: Option<PathBuf>,
    /// The largest component that is looked at, in bytes; 32 MiB.
    pub max_component_bytes: usize,
    /// The most linear memory that any manifest may ask for, in MiB; at most 512.
    pub max_memory_mib: u32,
}

/// The largest linear memory that the pool has room for. The manifest's own limit ends there too.
pub(crate) const POOL_MEMORY_MIB: u32 = 512;

/// Instances beside `max_instances`, for `describe` and probes: loading never waits for runs.
pub(crate) const LOAD_INSTANCES: u32 = 4;

/// What `describe` may use, whatever the manifest says (nobody has read it yet).
pub(crate) const DESCRIBE_MEMORY_MIB: u32 = 64;

/// How long `describe` may take. It only returns a constant; a second is for slow machines.
pub(crate) const DESCRIBE_DEADLINE: Duration = Duration::from_secs(1);

/// How long `map` may take: it holds up the changes of its plugin.
pub(crate) const MAP_DEADLINE: Duration = Duration::from_secs(1);

/// The step of the epoch clock: the slice of a guest before it yields its thread, and the error
/// of a deadline. 10 ms costs 100 wake-ups a second and keeps "free within 20 ms".
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// After so many slices in one run (50 ms of computing) a run counts as heavy and shares the
/// threads that heavy runs may use, all but one.
pub(crate) const HEAVY_AFTER_SLICES: u32 = 5;

/// How long a run goes on after it was told to stop, so that it can see `cancelled()` and return.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// The part of the deadline after which `cancelled()` says true, in percent.
pub(crate) const SOFT_DEADLINE_PERCENT: u32 = 80;

/// Live handles of one run, guest and host side alike. A list is one handle, so this is plenty.
pub(crate) const MAX_HANDLES: usize = 4_096;

/// Bytes that one `get-many` may look through, pointers times the size of the object. It bounds
/// what it returns as well, and how long it holds its thread: some 30 ms.
pub(crate) const MAX_SCAN: usize = 32 * 1024 * 1024;

/// Bytes of one staged document. An API server takes requests of 3 MiB.
pub(crate) const MAX_DOCUMENT: usize = 3 * 1024 * 1024;

/// Bytes of a namespace, a name, or a part of a kind, as Kubernetes has it.
pub(crate) const MAX_NAME: usize = 253;

/// Bytes of all filters of one list.
pub(crate) const MAX_FILTERS: usize = 16 * 1024;

/// Different lists that one run may read.
pub(crate) const MAX_LISTS: usize = 1_000;

/// Primaries that one changed object may concern.
pub(crate) const MAX_MAPPED: usize = 10_000;

/// Objects that one run may read, in lists and by name, each counted as often as it is read from
/// the cache. About 100 bytes each are kept of it for the length of the run.
pub(crate) const MAX_PINNED: usize = 250_000;

/// Elements of one table of a guest; JavaScript and Python runtimes need tens of thousands.
pub(crate) const MAX_TABLE_ELEMENTS: usize = 100_000;

/// Bytes of log lines of one run, of all sources together.
pub(crate) const MAX_LOG_BYTES: usize = 256 * 1024;

/// Bytes of one log line; the rest is cut.
pub(crate) const MAX_LOG_LINE: usize = 8 * 1024;

/// Bytes of a guest's last words that go into the failure of a trap.
pub(crate) const MAX_LAST_WORDS: usize = 1_024;

/// Frames of a guest's stack that go into the failure of a trap.
pub(crate) const MAX_FRAMES: usize = 6;

/// Bytes that one host call may carry beside what may be staged at all.
pub(crate) const HOST_CALL_SLACK: usize = 1024 * 1024;

/// Random bytes that one WASI call may ask for.
pub(crate) const MAX_RANDOM_BYTES: u64 = 64 * 1024;

/// Bytes of compiled code in the cache directory; the least recently used goes first.
pub(crate) const MAX_CACHE_BYTES: u64 = 1024 * 1024 * 1024;

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_instances: 256,
            cache_dir: None,
            max_component_bytes: 32 * 1024 * 1024,
            max_memory_mib: POOL_MEMORY_MIB,
        }
    }
}
