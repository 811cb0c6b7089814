//! Whatever comes into the folder, in whatever order: a good version serves as soon as there was
//! one, and no key is ever worked on twice at once, also across versions.

use proptest::prelude::*;
use serde_json::json;

use crate::fixture::*;

/// One thing that happens.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A good version.
    Good(u8),
    /// Bytes that are refused.
    Bad(u8),
    /// A version whose kind is not served.
    Missing(u8),
    /// A version of another shape of roles.
    WithCleanup(u8),
    /// Objects change.
    Touch(u8),
    /// A moment passes.
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..4_u8).prop_map(Step::Good),
        2 => (0..3_u8).prop_map(Step::Bad),
        1 => (0..2_u8).prop_map(Step::Missing),
        1 => (0..2_u8).prop_map(Step::WithCleanup),
        3 => (0..3_u8).prop_map(Step::Touch),
        2 => Just(Step::Pause),
    ]
}

const OBJECTS: [&str; 3] = ["a", "b", "c"];

/// Installs what a step says; the version that must serve in the end, if it changes that.
fn install(fixture: &Fixture, plugin: &str, step: Step) -> Option<String> {
    let bytes = |kind, version: &str, change| probe(kind, &manifest(plugin, version, change));
    match step {
        Step::Good(number) => {
            let version = format!("1.0.{number}");
            fixture.install("p.wasm", &bytes(Probe::Plain, &version, json!({})));
            return Some(version);
        }
        Step::WithCleanup(number) => {
            let version = format!("2.0.{number}");
            fixture.install("p.wasm", &bytes(Probe::Cleanup, &version, json!({})));
            return Some(version);
        }
        Step::Bad(0) => fixture.install("p.wasm", b"nonsense"),
        Step::Bad(1) => fixture.install("p.wasm", &probe_text(Probe::Plain, "{\"name\": \"p\"}")),
        Step::Bad(_) => fixture.install("p.wasm", &probe_text(Probe::Plain, "!panic")),
        Step::Missing(number) => {
            let late = json!({"watches": [{"apiVersion": "never.reeve.dev/v1", "kind": "Never", "relation": "read"}]});
            fixture.install("p.wasm", &bytes(Probe::Plain, &format!("3.0.{number}"), late));
        }
        Step::Touch(_) | Step::Pause => {}
    }
    None
}

async fn check(plugin: &str, steps: &[Step]) {
    let fixture = Fixture::start().await;
    fixture.install("p.wasm", &probe(Probe::Plain, &manifest(plugin, "0.0.1", json!({}))));
    fixture.serving("p.wasm", "0.0.1").await;
    let spec = |n: usize| json!({"echo": true, "n": n, "steps": [{"sleepMs": 15}]});
    for name in OBJECTS {
        fixture.api.apply(object(name, spec(0)));
    }
    // What must serve in the end: the last bytes if they are good, else any good ones before.
    let (mut good, mut last_is_good) = (vec!["0.0.1".to_owned()], true);
    for (index, &step) in steps.iter().enumerate() {
        match (step, install(&fixture, plugin, step)) {
            (Step::Touch(name), _) => fixture.api.apply(object(OBJECTS[usize::from(name)], spec(index))),
            (Step::Pause, _) => tokio::time::sleep(std::time::Duration::from_millis(120)).await,
            (_, Some(version)) => {
                good.push(version);
                last_is_good = true;
            }
            (_, None) => last_is_good = false,
        }
        let place = fixture.place("p.wasm").unwrap();
        assert_eq!(place.state, "serving", "after {step:?}: {place:?}");
        assert!(good.contains(place.version.as_ref().unwrap()), "a bad version serves: {place:?}");
    }
    if last_is_good {
        fixture.serving("p.wasm", good.last().unwrap()).await;
    }
    for name in OBJECTS {
        fixture.api.apply(object(name, spec(1_000)));
    }
    for name in OBJECTS {
        soon("a run on the last state", || {
            let generation = fixture.api.get("probes", name)?["metadata"]["generation"].clone();
            let version = fixture.place("p.wasm")?.version?;
            let run = fixture.status(name, "/run")?;
            (run["generation"] == generation && run["version"] == version).then_some(())
        })
        .await;
        assert_eq!(runs(plugin, name).most, 1, "{name} was worked on twice at once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_good_version_always_serves_and_no_key_is_worked_on_twice(steps in proptest::collection::vec(step(), 1..14)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // Runs are told apart by the plugin's name.
        let plugin = format!("prop-{}", uuid::Uuid::new_v4().simple());
        runtime.block_on(check(&plugin, &steps));
        runtime.shutdown_background();
    }
}
