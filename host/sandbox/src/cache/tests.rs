use std::os::unix::fs::PermissionsExt;

use super::*;

fn engine() -> Engine {
    Engine::default()
}

fn refused(path: &Path, part: &str) {
    let text = CodeCache::open(path, &engine()).expect_err("it was taken").to_string();
    assert!(text.contains(part) && text.contains("0700"), "{text}");
}

#[test]
fn a_directory_that_others_may_enter_is_refused() {
    let parent = tempfile::tempdir().expect("a directory");
    let path = parent.path().join("code");
    CodeCache::open(&path, &engine()).expect("it is made");
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o700);
    for mode in [0o750, 0o701, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        refused(&path, &format!("mode {mode:04o}"));
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    refused(&link, "link");
    let file = parent.path().join("file");
    fs::write(&file, "").expect("a file");
    refused(&file, "cannot be made");
}

#[test]
fn a_directory_of_somebody_else_is_refused() {
    let parent = tempfile::tempdir().expect("a directory");
    let path = parent.path().join("code");
    CodeCache::open(&path, &engine()).expect("it is made");
    match std::os::unix::fs::chown(&path, Some(12_345), None) {
        Ok(()) => refused(&path, "belongs to user 12345"),
        // Only root can give a directory away; nobody else can make files in one that is not
        // theirs and has mode 0700, which is refused as well.
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
    }
}

#[test]
fn code_is_an_entry_once_it_is_complete_and_as_long_as_it_is_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = CodeCache::open(&directory.path().join("code"), &engine()).expect("it is made");
    let digest = Digest::of(b"component");
    cache.put(&digest, b"native").expect("written");
    assert!(cache.find(&digest).is_none(), "not described yet");
    cache.complete(&digest, b"native", "manifest").expect("written");
    let entry = cache.find(&digest).expect("an entry");
    assert_eq!(
        (fs::read(&entry.code).expect("code"), entry.manifest.as_str()),
        (b"native".to_vec(), "manifest")
    );
    assert!(cache.find(&Digest::of(b"another")).is_none());

    for damage in ["nativE", "", "native and more"] {
        cache.put(&digest, damage.as_bytes()).expect("written");
        assert!(cache.find(&digest).is_none(), "{damage:?} was trusted");
        assert!(!entry.code.exists(), "what is damaged does not stay");
        cache.put(&digest, b"native").expect("written");
        cache.complete(&digest, b"native", "manifest").expect("written");
    }
    fs::write(cache.path(&digest, "json"), "{").expect("written");
    assert!(cache.find(&digest).is_none());
}

/// What another engine compiled is never found: its key is another one.
#[test]
fn a_key_holds_what_the_engine_is_like() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("code");
    let mut other = wasmtime::Config::new();
    other.epoch_interruption(true);
    let other = Engine::new(&other).expect("an engine");
    let digest = Digest::of(b"component");
    let paths: Vec<_> = [&engine(), &other]
        .map(|engine| CodeCache::open(&path, engine).expect("it opens").path(&digest, "cwasm"))
        .into();
    assert_ne!(paths[0], paths[1]);
}
