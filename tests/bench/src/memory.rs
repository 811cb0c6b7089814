//! What this process takes of the machine.

use anyhow::Context as _;

/// Resident memory now, in MiB.
pub(crate) fn resident() -> anyhow::Result<f64> {
    field("VmRSS:")
}

/// The most resident memory so far, in MiB.
pub(crate) fn peak() -> anyhow::Result<f64> {
    field("VmHWM:")
}

/// Lets [`peak`] begin anew.
pub(crate) fn forget_peak() -> anyhow::Result<()> {
    std::fs::write("/proc/self/clear_refs", "5").context("failed to reset the peak of memory")
}

fn field(name: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("this bench needs Linux's /proc")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
