//! `reeve new NAME`: a plugin's crate that builds, with a test.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use reeve_core::ids::PluginName;

use crate::output;

/// What stands in the templates for the name.
const NAME: &str = "{{name}}";
/// What stands in the templates for the dependency on the SDK.
const SDK: &str = "{{sdk}}";

const FILES: [(&str, &str); 3] = [
    ("Cargo.toml", include_str!("new/Cargo.toml.template")),
    ("src/lib.rs", include_str!("new/lib.rs.template")),
    (".gitignore", "/target\n"),
];

/// Makes a plugin's crate that builds.
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// The plugin's name: a DNS label that begins with a letter. It is the plugin's identity.
    name: String,
    /// Where to make the crate; default is a folder of that name here.
    #[arg(long, value_name = "FOLDER")]
    path: Option<PathBuf>,
    /// Depends on the SDK in this folder rather than on the published one.
    #[arg(long, value_name = "FOLDER")]
    sdk_path: Option<PathBuf>,
}

/// Runs the sub-command.
pub(crate) fn run(args: &NewArgs) -> anyhow::Result<()> {
    let name: PluginName = args.name.parse()?;
    let name = name.to_string();
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        bail!("a crate's name cannot begin with a digit: give {name} another name");
    }
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(&name));
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is there and not empty: give another --path", folder.display());
    }
    let failed = || format!("failed to make the folder {}", folder.display());
    std::fs::create_dir_all(folder.join("src")).with_context(failed)?;
    let sdk = dependency(&folder, args.sdk_path.as_deref())?;
    for (file, template) in FILES {
        let path = folder.join(file);
        std::fs::write(&path, template.replace(NAME, &name).replace(SDK, &sdk))
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    let shown = folder.display();
    output::line(&format!("{shown}: a plugin that greets whoever a labelled ConfigMap names"));
    output::line("tests it without a cluster:");
    output::line(&format!("  cargo test --manifest-path {shown}/Cargo.toml"));
    output::line("makes the component:");
    output::line(&format!("  reeve build {shown}"));
    Ok(())
}

/// The right side of `reeve-sdk = …`.
fn dependency(folder: &Path, sdk: Option<&Path>) -> anyhow::Result<String> {
    let Some(sdk) = sdk else { return Ok(format!("{:?}", env!("CARGO_PKG_VERSION"))) };
    if !sdk.join("Cargo.toml").is_file() {
        bail!("{} has no Cargo.toml: give --sdk-path the folder of reeve-sdk", sdk.display());
    }
    let relative = relative(&folder.canonicalize()?, &sdk.canonicalize()?);
    Ok(format!("{{ path = {:?} }}", relative.display().to_string()))
}

/// The way from one absolute folder to another.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_sdk_is_relative() {
        let way = |from: &str, to: &str| relative(Path::new(from), Path::new(to)).display().to_string();
        assert_eq!(way("/a/hello", "/a/guest-sdk"), "../guest-sdk");
        assert_eq!(way("/a/b/c", "/x"), "../../../x");
        assert_eq!(way("/a", "/a/sdk"), "sdk");
    }

    #[track_caller]
    fn check_refused(name: &str, path: Option<&Path>, expected: &str) {
        let args = NewArgs { name: name.to_owned(), path: path.map(Path::to_path_buf), sdk_path: None };
        let error = run(&args).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_the_remedy() {
        let full = tempfile::tempdir().unwrap();
        std::fs::write(full.path().join("x"), "").unwrap();
        check_refused("Not A Name", None, "is not a DNS label");
        check_refused("1st", None, "cannot begin with a digit");
        check_refused("fine", Some(full.path()), "give another --path");
    }
}
