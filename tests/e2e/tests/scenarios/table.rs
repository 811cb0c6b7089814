//! The table of scenarios in `tests/e2e/README.md`: made from the code, and checked against it.
//!
//! `UPDATE_EXPECT=1 cargo test -p reeve-e2e --test scenarios table` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use reeve_e2e::harness::runner::{Module, Server};

const BEGIN: &str = "<!-- scenarios: made by the test `table` -->";
const END: &str = "<!-- /scenarios -->";

/// Every scenario that has to be proven, and what it says. A number with `complaint` names a
/// complaint about another controller host that must not be made about this one.
const REQUIRED: &[(&str, &str)] = &[
    ("Q1", "create → one run with the right key"),
    ("Q2", "many changes while waiting → one run"),
    ("Q3", "changes while running → exactly one run more, never overlapping"),
    ("Q4", "failure → retry with growing delay; other keys go on"),
    ("Q5", "only success and requeue-after reset the back-off"),
    ("Q6", "permanent failure → no retry; the next event runs"),
    ("Q7", "requeue-after → once, not before, not rate limited"),
    ("Q9", "of two requeue-after the sooner wins"),
    ("Q10", "failure and requeue-after → the failure wins"),
    ("Q11", "high priority overtakes; raised, never lowered; survives a retry"),
    ("Q12", "delayed keys are not in the depth metric"),
    ("Q13", "stop with busy workers waits; what comes later is ignored"),
    ("Q14", "the concurrency is reached and never exceeded"),
    ("S1", "no run before all sources have their first list"),
    ("S2", "a source that never syncs is named"),
    ("S3", "stop while syncing is clean"),
    ("S4", "a second start (of a plugin name) is refused"),
    ("S5", "a watch added later is live and has what was there"),
    ("S6", "a plugin added to a running host starts"),
    ("W1", "list and watch come to rest"),
    ("W2", "410 in the stream → relist, only differences"),
    ("W3", "410 on the list → the newest"),
    ("W4", "too large resourceVersion → the newest"),
    ("W5", "429 with Retry-After → waits, no relist"),
    ("W6", "500 → retried, then listed"),
    ("W7", "connection refused → backoff 0.8 s to 30 s, reset after 2 min"),
    ("W8", "a bookmark moves the resourceVersion"),
    ("W13", "delete in a gap → tombstone"),
    ("W14", "made again in a gap → another UID"),
    ("W15", "wrong kind, Table, undecodable → skipped and counted"),
    ("C1", "get and list by namespace, label, owner, index"),
    ("C2", "a set of namespaces is all that is seen"),
    ("C3", "selectors per kind"),
    ("C4", "a namespace that is not watched → error, not empty"),
    ("C5", "an undeclared kind → error, no request"),
    ("C6", "a run sees one version of each thing"),
    ("C7", "a cluster-scoped key has no namespace"),
    ("H1", "controller only, or any owner; group and kind count, the version does not"),
    ("H2", "cluster-scoped owner"),
    ("H3", "old and new object are mapped, without duplicates"),
    ("H4", "predicates"),
    ("K1", "server-side apply: create, update, conflict, force"),
    ("K2", "conditional write → 409"),
    ("K3", "dry-run changes nothing"),
    ("K4", "status and spec are apart"),
    ("K5", "subresources: scale, token, eviction, approval"),
    ("K6", "what is equal is not sent"),
    ("K7", "owners: other namespace and second controller refused"),
    ("complaint 1", "a run reads its own writes; no duplicate creates"),
    ("complaint 3", "a status write does not trigger its plugin; a loop is slowed and named"),
    ("complaint 4", "an unchanged status is not written"),
    ("complaint 5", "finalizers of others are never lost"),
    ("complaint 13", "a kind may come and go"),
    ("complaint 17", "deletes missed over a relist run the owner"),
    ("complaint 18", "delete and recreate in a gap is noticed"),
    ("complaint 20", "a right that comes back is used, without a restart"),
    ("complaint 21", "a trap stays on its object"),
    ("complaint 22", "a hung run is ended at its deadline"),
    ("complaint 24", "deleting a parent is quiet"),
    ("complaint 25", "ten plugins share one watch"),
    ("complaint 27", "managedFields are not cached unless asked for"),
    ("complaint 30", "requeue-after: the failure wins, an event absorbs it, never early"),
    ("bad input: file", "refused with file, reason, remedy; the old version goes on"),
    ("bad input: object", "permanent failure with the path; others go on"),
    ("bad input: child", "the server's message with its field path is the condition"),
    ("bad input: server", "away → retried, no attempt counted, goes on by itself"),
    ("bad input: flags", "usage error with the nearest valid flag"),
];

/// The place of the tests that prove a scenario, by its name.
type Proofs = BTreeMap<String, BTreeSet<String>>;

/// Compares the table with the code.
pub(crate) fn check(modules: &[Module]) -> Result<()> {
    let mut upper = Proofs::new();
    for (module, scenarios) in modules {
        for scenario in *scenarios {
            for name in scenario.proves {
                upper.entry((*name).to_owned()).or_default().insert(format!("`{module}::{}`", scenario.name));
            }
        }
    }
    let known: BTreeSet<&str> = REQUIRED.iter().map(|(name, _)| *name).collect();
    for name in upper.keys() {
        ensure!(known.contains(name.as_str()) || extra(name), "{name:?} is no scenario of the table");
    }
    let lower = lower_proofs()?;
    let servers: Vec<_> = Server::ALL.iter().map(|server| server.name()).collect();
    let mut table =
        format!("| scenario | what holds | on {} | below |\n|---|---|---|---|\n", servers.join(", "));
    let cell = |proofs: &Proofs, name: &str| {
        let found: Vec<_> = proofs.get(name).into_iter().flatten().cloned().collect();
        found.join("<br>")
    };
    for (name, says) in REQUIRED {
        let (on_servers, below) = (cell(&upper, name), cell(&lower, name));
        ensure!(!on_servers.is_empty(), "{name} ({says}) has no test on {}", servers.join(", "));
        writeln!(table, "| {name} | {says} | {on_servers} | {below} |")?;
    }
    compare(&table)
}

/// Scenarios beyond the table: of the harness, of `deploy/`, and complaints that are not required.
fn extra(name: &str) -> bool {
    matches!(name, "harness" | "deploy") || name.starts_with("complaint ")
}

#[expect(clippy::disallowed_methods, reason = "UPDATE_EXPECT is how a test is told to write")]
fn compare(table: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (head, rest) = text.split_once(BEGIN).context("README.md has no place for the table")?;
    let (found, tail) = rest.split_once(END).context("README.md has no end of the table")?;
    if found.trim() == table.trim() {
        return Ok(());
    }
    if std::env::var_os("UPDATE_EXPECT").is_none() {
        bail!(
            "the table in tests/e2e/README.md is stale: \
             run UPDATE_EXPECT=1 cargo test -p reeve-e2e --test scenarios table"
        );
    }
    std::fs::write(&path, format!("{head}{BEGIN}\n{table}{END}{tail}"))?;
    Ok(())
}

/// The tests in the host's crates whose names begin with scenarios: `fn q1_…`, `fn w13_w17_…`,
/// `fn complaint_5_…`.
fn lower_proofs() -> Result<Proofs> {
    let mut proofs = Proofs::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join("host")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                take_proofs(&root, &path, &mut proofs)?;
            }
        }
    }
    Ok(proofs)
}

fn take_proofs(root: &Path, path: &PathBuf, proofs: &mut Proofs) -> Result<()> {
    let text = std::fs::read_to_string(path)?;
    for line in text.lines() {
        let line = line.trim_start().trim_start_matches("async ");
        let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split_once('(')).map(|(name, _)| name)
        else {
            continue;
        };
        let place = format!("`{name}` in {}", path.strip_prefix(root)?.display());
        for scenario in scenarios_of(name) {
            proofs.entry(scenario).or_default().insert(place.clone());
        }
    }
    Ok(())
}

/// The scenarios that a test's name begins with.
fn scenarios_of(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = name.split('_').peekable();
    while let Some(word) = words.next() {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if word == "complaint" && words.peek().is_some_and(|next| number(next)) {
            found.push(format!("complaint {}", words.next().unwrap_or_default()));
            continue;
        }
        let (letter, rest) = word.split_at(usize::from(word.starts_with(['q', 's', 'w', 'c', 'h', 'k'])));
        if letter.is_empty() || !number(rest) {
            break;
        }
        // The queue's tests number the one complaint that is about it like a scenario.
        found.push(if word == "c30" { "complaint 30".to_owned() } else { word.to_uppercase() });
    }
    found
}
