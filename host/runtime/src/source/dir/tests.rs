use std::time::Duration;

use super::*;

const MAX: usize = 1000;

/// A source that runs over a temporary folder. Real time: the operating system's events have no other.
struct Fixture {
    folder: tempfile::TempDir,
    events: mpsc::Receiver<SourceEvent>,
    again: Again,
    task: tokio::task::JoinHandle<()>,
}

impl Fixture {
    #[expect(clippy::disallowed_methods, reason = "the test owns the task and ends it")]
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (sender, events) = mpsc::channel(super::super::EVENTS);
        let pace = Pace {
            gone_after: Duration::from_millis(300),
            rescan: Duration::from_hours(1),
            ..Pace::default()
        };
        let again = Again::default();
        let source = DirSource::new(folder.path().to_owned(), MAX, pace, again.clone());
        let task = tokio::spawn(source.run(sender));
        let mut fixture = Self { folder, events, again, task };
        assert_eq!(fixture.next().await, "listed");
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &str) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    async fn next(&mut self) -> String {
        let event = tokio::time::timeout(Duration::from_secs(10), self.events.recv()).await;
        let name = |source: SourceId| {
            let SourceId::File(path) = source else { panic!("a file was expected") };
            path.file_name().unwrap().to_string_lossy().into_owned()
        };
        match event.expect("no event came").expect("the source ended") {
            SourceEvent::Found(artifact) => {
                assert_eq!(artifact.digest, Digest::of(&artifact.bytes));
                format!("found {} {}", name(artifact.source), String::from_utf8_lossy(&artifact.bytes))
            }
            SourceEvent::Refused { source, .. } => format!("refused {}", name(source)),
            SourceEvent::FetchFailed { source, .. } => format!("failed {}", name(source)),
            SourceEvent::Gone(source) => format!("gone {}", name(source)),
            SourceEvent::Listed => "listed".to_owned(),
        }
    }

    /// Nothing was told before a marker file is.
    async fn quiet(&mut self, marker: &str) {
        self.write(marker, marker);
        assert_eq!(self.next().await, format!("found {marker} {marker}"));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_file_is_told_once_per_content() {
    let mut fixture = Fixture::start().await;
    fixture.write("a.wasm", "one");
    assert_eq!(fixture.next().await, "found a.wasm one");
    fixture.write("a.wasm", "one");
    fixture.write("notes.txt", "no plugin");
    fixture.write(".hidden.wasm", "no plugin");
    fixture.quiet("m.wasm").await;
    fixture.write("a.wasm", "two");
    assert_eq!(fixture.next().await, "found a.wasm two");
}

#[tokio::test]
async fn a_mounted_configmap_is_followed_through_its_links() {
    let mut fixture = Fixture::start().await;
    let root = fixture.folder.path().to_owned();
    let version = |number: &str, bytes: &str| {
        let folder = root.join(format!("..{number}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("a.wasm"), bytes).unwrap();
        let link = root.join("..data_tmp");
        std::os::unix::fs::symlink(folder.file_name().unwrap(), &link).unwrap();
        std::fs::rename(&link, root.join("..data")).unwrap();
    };
    version("1", "one");
    std::os::unix::fs::symlink("..data/a.wasm", fixture.path("a.wasm")).unwrap();
    assert_eq!(fixture.next().await, "found a.wasm one");
    version("2", "two");
    assert_eq!(fixture.next().await, "found a.wasm two");
}

#[tokio::test]
async fn a_copy_in_pieces_ends_with_the_whole() {
    use std::io::Write as _;
    let mut fixture = Fixture::start().await;
    let mut file = std::fs::File::create(fixture.path("a.wasm")).unwrap();
    for piece in 0..10 {
        write!(file, "{piece}").unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(file);
    while fixture.next().await != "found a.wasm 0123456789" {}
    fixture.quiet("m.wasm").await;
}

#[tokio::test]
async fn a_large_file_is_refused_and_a_smaller_one_taken() {
    let mut fixture = Fixture::start().await;
    fixture.write("a.wasm", &"x".repeat(MAX + 1));
    assert_eq!(fixture.next().await, "refused a.wasm");
    fixture.write("a.wasm", "small");
    assert_eq!(fixture.next().await, "found a.wasm small");
}

#[tokio::test]
async fn a_missing_file_is_gone_only_after_a_while() {
    let mut fixture = Fixture::start().await;
    fixture.write("a.wasm", "one");
    assert_eq!(fixture.next().await, "found a.wasm one");
    std::fs::remove_file(fixture.path("a.wasm")).unwrap();
    fixture.quiet("m.wasm").await;
    fixture.write("a.wasm", "one");
    fixture.quiet("n.wasm").await;
    let removed = Instant::now();
    std::fs::remove_file(fixture.path("a.wasm")).unwrap();
    assert_eq!(fixture.next().await, "gone a.wasm");
    assert!(removed.elapsed() >= Duration::from_millis(290));
    fixture.write("a.wasm", "one");
    assert_eq!(fixture.next().await, "found a.wasm one");
}

#[tokio::test]
async fn bytes_are_offered_again_when_asked() {
    let mut fixture = Fixture::start().await;
    fixture.write("a.wasm", "one");
    assert_eq!(fixture.next().await, "found a.wasm one");
    fixture.again.ask(SourceId::File(fixture.path("a.wasm")));
    assert_eq!(fixture.next().await, "found a.wasm one");
}

#[tokio::test]
async fn a_folder_that_is_made_again_is_watched_again() {
    let mut fixture = Fixture::start().await;
    fixture.write("a.wasm", "one");
    assert_eq!(fixture.next().await, "found a.wasm one");
    let folder = fixture.folder.path().to_owned();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(fixture.next().await, "gone a.wasm");
    std::fs::create_dir(&folder).unwrap();
    fixture.again.ask(SourceId::File(fixture.path("x.wasm")));
    fixture.write("b.wasm", "two");
    assert_eq!(fixture.next().await, "found b.wasm two");
    fixture.write("b.wasm", "three");
    assert_eq!(fixture.next().await, "found b.wasm three");
}
