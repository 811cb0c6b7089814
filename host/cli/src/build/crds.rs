//! The CRDs beside a plugin's crate, and the section of the component that carries them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// The custom section, as the host reads it.
const SECTION: &str = "reeve:crds";

/// One CRD as it was written.
#[derive(Debug)]
pub(super) struct Crd {
    /// Its `metadata.name`.
    pub(super) name: String,
    /// Its YAML.
    yaml: String,
}

/// Reads the documents of `*.yaml` and `*.yml` in a folder, in the order of their names; none
/// where there is no folder.
pub(super) fn read(folder: &Path) -> anyhow::Result<Vec<Crd>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let failed = || format!("failed to read the folder {}", folder.display());
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(path);
        }
    }
    files.sort();
    let mut crds = Vec::new();
    for file in files {
        let place = || file.display().to_string();
        let text = std::fs::read_to_string(&file).with_context(place)?;
        for document in documents(&text) {
            crds.push(crd(document).with_context(place)?);
        }
    }
    Ok(crds)
}

/// The component with the CRDs in a custom section at its end.
pub(super) fn embed(mut component: Vec<u8>, crds: &[Crd]) -> Vec<u8> {
    if crds.is_empty() {
        return component;
    }
    let yaml: Vec<&str> = crds.iter().map(|crd| crd.yaml.trim_end()).collect();
    let text = yaml.join("\n---\n") + "\n";
    let mut section = leb128(SECTION.len());
    section.extend_from_slice(SECTION.as_bytes());
    section.extend_from_slice(text.as_bytes());
    component.push(0);
    component.extend(leb128(section.len()));
    component.extend(section);
    component
}

fn documents(text: &str) -> impl Iterator<Item = String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.into_iter().filter(|document| {
        document.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    })
}

fn crd(yaml: String) -> anyhow::Result<Crd> {
    let document: Value = serde_saphyr::from_str(&yaml).context("it is no YAML")?;
    if document["kind"] != "CustomResourceDefinition" {
        bail!(
            "it holds a {}, and a plugin carries only CustomResourceDefinitions: move it out of `crds`",
            document["kind"].as_str().unwrap_or("document without a kind")
        );
    }
    let Some(name) = document["metadata"]["name"].as_str() else {
        bail!("a CustomResourceDefinition has no metadata.name");
    };
    Ok(Crd { name: name.to_owned(), yaml })
}

/// An unsigned LEB128 number, as WebAssembly writes lengths.
fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        // The low seven bits always fit.
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}
