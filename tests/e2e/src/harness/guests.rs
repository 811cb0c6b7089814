//! Plugins as bytes: built once, and probes made from them without a compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde_json::{Value, json};

/// What stands before the replaceable manifest (plugins/probe/README.md).
const MARKER: &[u8] = b"@reeve-probe-manifest@";
/// The block's size, with the marker.
const BLOCK: usize = 8192;

/// Which roles a probe exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    /// `reconcile` alone.
    Plain,
    /// With `cleanup`, so with a finalizer.
    Cleanup,
    /// With `map`.
    Mapping,
}

/// Builds the plugins of `plugins/` unless that was done, and returns the folder with them.
pub fn built() -> anyhow::Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|text| anyhow!("{text}"))
}

fn build() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("target/plugins");
    let output = Command::new("cargo")
        .args(["build", "--quiet", "--profile", "plugin", "--target", "wasm32-wasip2"])
        .arg("--manifest-path")
        .arg(root.join("plugins/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .output()
        .context("failed to run cargo")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let remedy = if errors.contains("can't find crate for `core`") {
        "\nremedy: `tests/setup` adds the guest target"
    } else {
        ""
    };
    ensure!(output.status.success(), "the plugins could not be built:\n{errors}{remedy}");
    Ok(target.join("wasm32-wasip2/plugin"))
}

/// The bytes of a plugin of `plugins/`, for example `website`.
pub fn plugin(name: &str) -> anyhow::Result<Vec<u8>> {
    let path = built()?.join(format!("{}.wasm", name.replace('-', "_")));
    std::fs::read(&path).with_context(|| format!("plugins/ has no plugin {}", path.display()))
}

/// A probe plugin whose manifest is this.
pub fn probe(kind: ProbeKind, manifest: &Value) -> anyhow::Result<Vec<u8>> {
    probe_text(kind, &manifest.to_string())
}

/// A probe plugin whose `describe` returns this text.
pub fn probe_text(kind: ProbeKind, text: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = plugin(match kind {
        ProbeKind::Plain => "reeve_probe_plain",
        ProbeKind::Cleanup => "reeve_probe_cleanup",
        ProbeKind::Mapping => "reeve_probe_mapping",
    })?;
    let places: Vec<usize> = find(&bytes, MARKER).collect();
    let [at] = places[..] else { bail!("the probe has {} manifest blocks instead of one", places.len()) };
    let room = BLOCK - MARKER.len();
    ensure!(text.len() <= room, "the manifest has {} bytes, the probe has room for {room}", text.len());
    let from = at + MARKER.len();
    bytes[from..from + text.len()].copy_from_slice(text.as_bytes());
    bytes[from + text.len()..from + room].fill(b' ');
    Ok(bytes)
}

/// These bytes with every occurrence of `from` replaced by `to`, which is as long.
pub fn replaced(bytes: &[u8], from: &str, to: &str) -> anyhow::Result<Vec<u8>> {
    ensure!(from.len() == to.len(), "{from:?} and {to:?} differ in length");
    let places: Vec<usize> = find(bytes, from.as_bytes()).collect();
    ensure!(!places.is_empty(), "{from:?} does not occur in the bytes");
    let mut out = bytes.to_vec();
    for at in places {
        out[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    Ok(out)
}

fn find<'a>(bytes: &'a [u8], what: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes.windows(what.len()).enumerate().filter(move |(_, window)| *window == what).map(|(at, _)| at)
}

/// A manifest for a probe over `test.reeve.dev/v1` `Probe` that owns ConfigMaps.
pub fn manifest(name: &str, version: &str) -> Value {
    json!({
        "name": name,
        "version": version,
        "primary": { "apiVersion": "test.reeve.dev/v1", "kind": "Probe" },
        "watches": [{ "apiVersion": "v1", "kind": "ConfigMap", "relation": "owned" }],
    })
}

/// The CRDs that the plugins of `plugins/` and the scenarios bring along, as JSON documents.
pub fn crds() -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins");
    for plugin in std::fs::read_dir(&plugins)? {
        let folder = plugin?.path().join("crds");
        if !folder.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(&folder)? {
            let path = file?.path();
            let text = std::fs::read_to_string(&path)?;
            for document in text.split("\n---\n").filter(|document| !document.trim().is_empty()) {
                let crd = serde_saphyr::from_str(document);
                found.push(crd.with_context(|| format!("{} is no YAML", path.display()))?);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_keeps_the_length_and_needs_a_place() {
        assert_eq!(replaced(b"aXbX", "X", "Y").unwrap(), b"aYbY");
        assert!(replaced(b"aXbX", "Z", "Y").unwrap_err().to_string().contains("does not occur"));
        assert!(replaced(b"aXbX", "X", "YY").is_err());
    }
}
