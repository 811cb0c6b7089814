//! The CRDs beside a plugin's crate.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// One CRD as it was written.
#[derive(Debug)]
pub(super) struct Crd {
    /// Its `metadata.name`.
    pub(super) name: String,
    /// Its YAML.
    yaml: String,
}

impl Crd {
    /// Several CRDs as one YAML text; empty for none.
    pub(super) fn joined(crds: &[Self]) -> String {
        let documents: Vec<&str> = crds.iter().map(|crd| crd.yaml.trim_end()).collect();
        if documents.is_empty() { String::new() } else { documents.join("\n---\n") + "\n" }
    }
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
