use std::fs;
use std::path::Path;

use clap::Parser as _;

use super::crds;

#[track_caller]
fn check_refused(path: &Path, expected: &str) {
    let error = format!("{:#}", super::toolchain::Crate::find(path, true).unwrap_err());
    assert!(error.contains(expected), "{error}");
}

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn what_is_no_plugin_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    check_refused(folder.path(), "make one with `reeve new NAME`");
    write(folder.path(), "Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"a\"]\n");
    write(
        folder.path(),
        "a/Cargo.toml",
        "[package]\nname = \"a\"\nversion = \"1.0.0\"\nedition = \"2024\"\n[lib]\ncrate-type = [\"cdylib\"]\n",
    );
    write(folder.path(), "a/src/lib.rs", "");
    check_refused(folder.path(), "give the folder of one of its plugins (a)");
    write(
        folder.path(),
        "a/Cargo.toml",
        "[package]\nname = \"a\"\nversion = \"1.0.0\"\nedition = \"2024\"\n",
    );
    check_refused(&folder.path().join("a"), "crate-type = [\"cdylib\"]");
}

#[test]
fn crds_are_read_in_order_and_carried() {
    let folder = tempfile::tempdir().unwrap();
    let crd = |name: &str| format!("kind: CustomResourceDefinition\nmetadata:\n  name: {name}\n");
    write(folder.path(), "b.yaml", &format!("# second\n---\n{}", crd("c.x")));
    write(folder.path(), "a.yml", &format!("{}---\n{}", crd("a.x"), crd("b.x")));
    write(folder.path(), "notes.txt", "no YAML");
    let read = crds::read(folder.path()).unwrap();
    assert_eq!(super::names(&read), "a.x, b.x, c.x");
    assert_eq!(crds::Crd::joined(&read).matches("\n---\n").count(), 2);
}

#[test]
fn a_folder_without_crds_changes_nothing() {
    let none = crds::read(Path::new("/nowhere")).unwrap();
    assert_eq!(crds::Crd::joined(&none), "");
}

/// A component of these custom sections.
fn component(sections: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    for (name, content) in sections {
        let length = u8::try_from(name.len() + content.len() + 1).unwrap();
        bytes.extend([0, length, u8::try_from(name.len()).unwrap()]);
        bytes.extend(name.bytes().chain(content.bytes()));
    }
    bytes
}

#[test]
fn a_component_gets_its_crds_and_loses_its_inner_names() {
    let before = component(&[("producers", "x"), ("component-name", "inner"), ("name", "y")]);
    let after = super::sections::finish(&before, "kind: X\n").unwrap();
    assert_eq!(after, component(&[("producers", "x"), ("name", "y"), ("reeve:crds", "kind: X\n")]));
    assert_eq!(super::sections::finish(&after, "").unwrap(), after);
}

#[test]
fn a_torn_component_is_refused() {
    let whole = component(&[("producers", "x")]);
    for length in [4, 9, 10, whole.len() - 1] {
        assert!(super::sections::finish(&whole[..length], "").is_err(), "{length}");
    }
}

#[test]
fn other_documents_are_refused_by_kind() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "x.yaml", "kind: Deployment\n");
    let error = format!("{:#}", crds::read(folder.path()).unwrap_err());
    assert!(error.contains("x.yaml") && error.contains("it holds a Deployment"), "{error}");
}

/// What `reeve new` makes is built by `reeve build` into a plugin of at most 150 KB.
#[test]
fn a_new_crate_builds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("target/plugins/new");
    let made = folder.join("hello-there");
    if made.exists() {
        fs::remove_dir_all(&made).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    let new = NewArguments::parse_from([
        "new",
        "hello-there",
        "--path",
        made.to_str().unwrap(),
        "--sdk-path",
        root.join("guest-sdk").to_str().unwrap(),
    ]);
    crate::new::run(&new.args).unwrap();
    // The versions that the plugins' workspace is locked to.
    fs::copy(root.join("plugins/Cargo.lock"), made.join("Cargo.lock")).unwrap();
    write(&made, ".cargo/config.toml", "[build]\ntarget-dir = \"../target\"\n");
    write(&made, "crds/a.yaml", "kind: CustomResourceDefinition\nmetadata:\n  name: a.x\n");
    let out = folder.join("hello-there.wasm");
    let build = Arguments::parse_from(["build", made.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    super::run(&build.args).unwrap();
    let component = fs::read(&out).unwrap();
    assert!(component.len() <= 150_000, "{} bytes", component.len());
    let text = String::from_utf8_lossy(&component);
    assert!(text.contains("name: a.x"));
    assert!(!text.contains(root.canonicalize().unwrap().to_str().unwrap()), "it names the builder's folders");
}

/// The arguments as the command line gives them.
#[derive(clap::Parser)]
struct NewArguments {
    #[command(flatten)]
    args: crate::new::NewArgs,
}

/// The arguments as the command line gives them.
#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    args: super::BuildArgs,
}
