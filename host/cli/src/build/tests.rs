use std::fs;
use std::path::Path;

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
    let component = crds::embed(b"\0asm\x0d\0\x01\0".to_vec(), &read);
    let section = String::from_utf8_lossy(&component);
    assert!(section.contains("reeve:crds"));
    assert_eq!(section.matches("\n---\n").count(), 2);
}

#[test]
fn a_folder_without_crds_changes_nothing() {
    let none = crds::read(Path::new("/nowhere")).unwrap();
    assert!(none.is_empty());
    assert_eq!(crds::embed(vec![1, 2], &none), [1, 2]);
}

#[test]
fn other_documents_are_refused_by_kind() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "x.yaml", "kind: Deployment\n");
    let error = format!("{:#}", crds::read(folder.path()).unwrap_err());
    assert!(error.contains("x.yaml") && error.contains("it holds a Deployment"), "{error}");
}
