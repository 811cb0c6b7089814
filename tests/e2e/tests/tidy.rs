//! Rules of the repository that a compiler does not check.
//!
//! `UPDATE_EXPECT=1 cargo test -p reeve-e2e --test tidy` writes what is generated.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "all of this is a test, also its helpers"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The most lines of a source file that is one concept with its short tests.
const LONG: usize = 400;
/// The most lines of any source file.
const TOO_LONG: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file that git tracks or would track, relative to the root.
fn files(endings: &[&str]) -> Vec<String> {
    let output = std::process::Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "git ls-files failed: the tests run in a checkout");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter(|file| endings.iter().any(|ending| file.ends_with(ending)) && root().join(file).is_file())
        .map(str::to_owned)
        .collect()
}

/// Compares a generated text with its place, or writes it there.
fn expect(path: &str, actual: &str, wanted: &str) {
    if actual == wanted {
        return;
    }
    assert!(
        std::env::var_os("UPDATE_EXPECT").is_some(),
        "{path} is stale: run UPDATE_EXPECT=1 cargo test -p reeve-e2e --test tidy"
    );
    fs::write(root().join(path), wanted).unwrap();
}

#[test]
fn source_files_stay_readable() {
    let files = files(&[".rs", ".go"]);
    assert!(files.len() > 50, "only {} source files found", files.len());
    let lengths: Vec<_> = files.iter().map(|file| (read(file).lines().count(), file)).collect();
    let long: Vec<_> = lengths.iter().filter(|(lines, _)| *lines > LONG).collect();
    let too_long: Vec<_> = lengths.iter().filter(|(lines, _)| *lines > TOO_LONG).collect();
    assert!(too_long.is_empty(), "over {TOO_LONG} lines, split them: {too_long:?}");
    assert!(long.len() * 20 <= lengths.len(), "more than one in twenty is over {LONG} lines: {long:?}");
}

#[test]
fn lines_end_clean() {
    for file in files(&[".rs", ".go", ".md", ".toml", ".wit", ".yaml", "Makefile"]) {
        let text = read(&file);
        let bad = text.lines().position(|line| line.ends_with(' ') || line.ends_with('\t'));
        assert_eq!(bad.map(|line| line + 1), None, "{file}: white space at the end of this line");
        assert!(text.is_empty() || text.ends_with('\n'), "{file}: no line break at the end");
    }
}

#[test]
fn the_architecture_lists_the_modules_that_there_are() {
    let mut list = String::new();
    for (name, path) in [
        ("reeve-core", "host/core"),
        ("reeve-sandbox", "host/sandbox"),
        ("reeve-cluster", "host/cluster"),
        ("reeve-runtime", "host/runtime"),
        ("reeve-sdk", "guest-sdk"),
    ] {
        let modules: Vec<_> = read(&format!("{path}/src/lib.rs"))
            .lines()
            .filter_map(|line| {
                let declared = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "))?;
                Some(declared.strip_suffix(';')?.to_owned())
            })
            .filter(|module| module != "tests")
            .collect();
        assert!(!modules.is_empty(), "{path}/src/lib.rs declares no module");
        writeln!(list, "- `{name}`: {}", modules.join(", ")).unwrap();
    }
    let text = read("ARCHITECTURE.md");
    let (before, rest) = text.split_once("<!-- modules:").unwrap();
    let (marker, rest) = rest.split_once("-->").unwrap();
    let (_, after) = rest.split_once("<!-- /modules -->").unwrap();
    let wanted = format!("{before}<!-- modules:{marker}-->\n\n{list}\n<!-- /modules -->{after}");
    expect("ARCHITECTURE.md", &text, &wanted);
}

#[test]
fn only_its_owner_depends_on_a_boundary_crate() {
    let depends = |manifest: &str, name: &str| {
        read(manifest)
            .split("[dev-dependencies]")
            .next()
            .unwrap()
            .lines()
            .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', ' ', '='])))
    };
    let crates = ["core", "sandbox", "cluster", "runtime", "cli"];
    for (dependency, owners) in [
        ("wasmtime", &["sandbox"][..]),
        ("wasmtime-wasi", &["sandbox"]),
        ("wit-component", &["sandbox"]),
        ("kube", &["cluster"]),
        ("k8s-openapi", &["cluster"]),
        ("notify", &["runtime"]),
        ("axum", &["runtime"]),
        ("clap", &["cli"]),
        ("reeve-sandbox", &["runtime", "cli"]),
        ("reeve-cluster", &["runtime", "cli"]),
    ] {
        let users: BTreeSet<_> = crates
            .into_iter()
            .filter(|name| depends(&format!("host/{name}/Cargo.toml"), dependency))
            .collect();
        let allowed: BTreeSet<_> = owners.iter().copied().collect();
        assert!(
            users.is_subset(&allowed),
            "{dependency} is the business of {allowed:?}, but {users:?} depend on it"
        );
    }
    assert!(!read("guest-sdk/Cargo.toml").contains("reeve-core"), "the guest SDK does not know the host");
}

#[test]
fn the_deployed_crd_is_the_plugins() {
    let wanted = read("plugins/website/crds/website.yaml");
    let path = "deploy/base/crd-website.yaml";
    let actual = fs::read_to_string(root().join(path)).unwrap_or_default();
    expect(path, &actual, &wanted);
}

#[test]
fn every_dependency_has_a_licence_that_we_take() {
    let deny = read("deny.toml");
    let (_, list) = deny.split_once("allow = [").unwrap();
    let allowed: BTreeSet<_> =
        list.split(']').next().unwrap().split('"').skip(1).step_by(2).map(str::to_owned).collect();
    let rustc = std::process::Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(rustc.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform", host])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100);
    for package in packages {
        let expression = package["license"].as_str().unwrap_or("none").replace('/', " OR ");
        let taken = expression.split(" OR ").any(|alternative| {
            alternative
                .trim_matches(['(', ')', ' '])
                .split(" AND ")
                .all(|licence| allowed.contains(licence.trim_matches(['(', ')', ' '])))
        });
        assert!(taken, "{}: licence {expression:?} is not in deny.toml", package["name"]);
    }
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    for manifest in files(&["Cargo.toml"]) {
        if manifest != "Cargo.toml" && !manifest.starts_with("plugins/") {
            assert!(
                read(&manifest).contains("[lints]\nworkspace = true"),
                "{manifest} has no workspace lints"
            );
        }
    }
}
