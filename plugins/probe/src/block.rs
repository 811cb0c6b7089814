//! The manifest that tests replace in the compiled bytes.

use reeve_sdk::Manifest;
use reeve_sdk::prelude::Value;

/// The length of the block, marker included.
const SIZE: usize = 8_192;
/// The length of the marker `@reeve-probe-manifest@`. The marker itself stands only in the block,
/// so that it is found once.
const MARKER: usize = 22;

/// The marker, the text of the manifest, and spaces.
pub type Block = [u8; SIZE];

/// The manifest of the builds `plain` and `cleanup` as they are compiled.
pub const DEFAULT: &str = concat!(
    r#"@reeve-probe-manifest@{"name":"probe","version":"1.0.0","#,
    r#""primary":{"apiVersion":"test.reeve.dev/v1","kind":"Probe"},"watches":["#,
    r#"{"apiVersion":"v1","kind":"ConfigMap","relation":"owned"},"#,
    r#"{"apiVersion":"apps/v1","kind":"Deployment","relation":"owned"}]}"#
);

/// The manifest of the build `mapping` as it is compiled.
pub const DEFAULT_MAPPING: &str = concat!(
    r#"@reeve-probe-manifest@{"name":"probe","version":"1.0.0","#,
    r#""primary":{"apiVersion":"test.reeve.dev/v1","kind":"Probe"},"watches":["#,
    r#"{"apiVersion":"v1","kind":"ConfigMap","relation":"owned"},"#,
    r#"{"apiVersion":"apps/v1","kind":"Deployment","relation":"owned"},"#,
    r#"{"name":"secrets","apiVersion":"v1","kind":"Secret","relation":"map"}]}"#
);

/// A block with a marker and a manifest.
pub const fn with(text: &str) -> Block {
    let mut block = [b' '; SIZE];
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        block[at] = bytes[at];
        at += 1;
    }
    block
}

/// What `describe` returns.
///
/// # Panics
/// If the text is `!panic`.
#[expect(clippy::panic, reason = "a scenario asks for it")]
pub fn manifest(block: &'static Block) -> Manifest {
    let text = text(block);
    match text {
        _ if text.starts_with("!panic") => panic!("asked to panic in describe"),
        _ if text.starts_with("!loop") => crate::steps::spin_for_ever(),
        _ => Manifest::from_text(text),
    }
}

/// The version that the manifest states.
pub(crate) fn version(block: &'static Block) -> String {
    let manifest: Value = reeve_sdk::json::from_str(text(block)).unwrap_or_default();
    manifest["version"].as_str().unwrap_or("").to_owned()
}

/// The text as it stands in memory: the compiler must not know it.
fn text(block: &'static Block) -> &'static str {
    let bytes = std::hint::black_box(block);
    std::str::from_utf8(&bytes[MARKER..]).unwrap_or("").trim_ascii_end()
}
