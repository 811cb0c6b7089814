//! What ends a run from inside: memory, tables, and countable things.

use wasmtime::ResourceLimiter;

use crate::config::MAX_TABLE_ELEMENTS;

/// A limit or deadline that ended a run. It travels as the error of a host call or a memory growth
/// and is found again by its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ended {
    #[error("it wanted {wanted} bytes of memory, its limit is {limit} (`limits.memoryMib` in the manifest)")]
    Memory { wanted: usize, limit: usize },
    #[error("it used more than {limit} {what}{place}")]
    Limit { what: &'static str, limit: u64, place: &'static str },
    #[error("it was ended at its deadline")]
    Deadline,
    #[error("it used a context outside of a run")]
    OutOfPlace,
    #[error("it does not export {0}")]
    NoRole(&'static str),
}

/// Watches over one store's memory and tables.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    limit: usize,
    /// Linear memories of one store share the limit.
    used: usize,
    peak: usize,
}

impl MemoryLimit {
    pub(crate) fn new(mib: u32) -> Self {
        Self { limit: (mib as usize) << 20, used: 0, peak: 0 }
    }

    /// The most linear memory so far, in bytes.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let wanted = self.used.saturating_add(desired.saturating_sub(current));
        if wanted > self.limit {
            // An error rather than `false`: the guest ends where it asked, with a clear reason,
            // and not later by an `unreachable` of its allocator.
            return Err(Ended::Memory { wanted, limit: self.limit }.into());
        }
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.used = wanted;
        self.peak = self.peak.max(wanted);
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > MAX_TABLE_ELEMENTS {
            return Err(
                Ended::Limit { what: "table elements", limit: MAX_TABLE_ELEMENTS as u64, place: "" }.into()
            );
        }
        Ok(true)
    }
}
