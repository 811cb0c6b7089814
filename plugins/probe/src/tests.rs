use reeve_sdk::testing::{Case, Run, logs};

use super::*;

struct Probe;

static BLOCK: Block = block::with(block::DEFAULT_MAPPING);

impl Reconciler for Probe {
    type Object = Value;

    fn manifest() -> Manifest {
        block::manifest(&BLOCK)
    }

    fn reconcile(ctx: &Context, object: &Value) -> Result<Outcome, Error> {
        super::reconcile(ctx, object, &BLOCK)
    }
}

impl Mapper for Probe {
    fn map(watch: &str, changed: &Handle) -> Result<Vec<ObjectName>, Error> {
        super::map(watch, changed, &BLOCK)
    }
}

fn case(spec: &Value) -> Case {
    Case::new(json!({
        "metadata": { "name": "p", "namespace": "web", "generation": 2, "uid": "u" },
        "spec": spec, "status": { "runs": 3 },
    }))
}

#[expect(clippy::needless_pass_by_value, reason = "programs are literals")]
fn run(spec: Value) -> Run {
    case(&spec).run::<Probe>()
}

#[test]
fn the_default_manifest_is_described() {
    assert_eq!(Probe::manifest().fields()["name"], "probe");
    assert_eq!(Probe::manifest().fields()["watches"][2]["name"], "secrets");
}

#[test]
fn a_run_is_logged_counted_and_echoed() {
    logs();
    let run = run(json!({ "count": true, "echo": true, "steps": [] }));
    assert_eq!(run.plan().status("runs"), 4);
    assert_eq!(run.plan().status("run")["version"], "1.0.0");
    let line = &logs()[0];
    assert_eq!(line.message, "probe run");
    assert!(line.fields.contains(&("reasons".to_owned(), "created".to_owned())));
    assert!(run.plan().complete);
}

#[test]
fn reads_are_recorded_and_refusals_too() {
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "m", "namespace": "web" }, "data": { "k": "v" } });
    let get =
        |name: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "pointer": "/data/k" });
    let program = json!({ "steps": [
        { "as": "there", "get": get("m") },
        { "as": "missing", "get": get("x") },
        { "as": "refused", "get": { "apiVersion": "v1", "kind": "Pod", "name": "x" } },
        { "as": "list", "list": { "apiVersion": "v1", "kind": "ConfigMap", "pointer": "/data/k" } },
        { "as": "mine", "children": { "apiVersion": "v1", "kind": "ConfigMap" } },
    ] });
    let run = case(&program).object(map).run::<Probe>();
    let results = run.plan().status("results");
    assert_eq!(results["there"], "v");
    assert_eq!(results["missing"], "null");
    assert_eq!(results["refused"]["failure"]["code"], "NOT_DECLARED");
    assert_eq!(results["list"], json!({ "count": 1, "names": ["web/m"], "values": ["v"] }));
    assert_eq!(results["mine"]["count"], 0);
}

#[test]
fn children_are_counted_and_filled_in() {
    let run = run(json!({ "steps": [{ "apply": { "count": 2, "object": {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "$(name)-$(i)" },
        "data": { "runs": "$(runs)" },
    } } }, { "complete": false }] }));
    assert_eq!(run.plan().child("ConfigMap", "p-0")["data"]["runs"], "3");
    assert_eq!(run.plan().child("ConfigMap", "p-1")["data"]["runs"], "3");
    assert!(!run.plan().complete);
}

#[test]
fn conditions_of_steps_choose() {
    let program = json!({ "steps": [
        { "when": { "attemptBelow": 2 }, "fail": { "code": "FLAKY", "retryAfterMs": 5, "details": { "a": "b" } } },
        { "when": { "reason": "created", "runsBelow": 9, "generationIs": 2, "versionIs": "1.0.0" }, "status": { "a": 1 } },
        { "when": { "notReason": "created" }, "status": { "b": 1 } },
        { "done": true },
        { "panic": "never" },
    ] });
    let failed = run(program.clone());
    assert_eq!(failed.error().code(), "FLAKY");
    assert_eq!(failed.error().delay(), Some(Duration::from_millis(5)));
    let ok = case(&program).attempt(2).run::<Probe>();
    assert_eq!(ok.plan().status("a"), 1);
    assert_eq!(ok.plan().status("b"), &Value::Null);
}

#[test]
fn a_run_that_comes_back_completes_nothing() {
    let wait = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "$(name)", "exists": true });
    let run = run(json!({ "steps": [{ "requeueAfterMs": 300 }, { "wait": wait }] }));
    assert_eq!(run.plan().requeue_after, Some(Duration::from_millis(300)));
    assert_eq!(run.plan().waits[0]["name"], "p");
    assert!(!run.plan().complete);
}

#[test]
fn a_failure_after_a_requeue_keeps_both() {
    let run =
        run(json!({ "steps": [{ "requeueAfterMs": 300 }, { "fail": { "code": "X", "transient": false } }] }));
    assert!(!run.error().is_transient());
    assert_eq!(run.staged().requeue_after, Some(Duration::from_millis(300)));
}

#[test]
fn programs_also_stand_in_data_and_annotations() {
    let program = json!({ "steps": [{ "status": { "seen": "$(name)" } }] }).to_string();
    let metadata = json!({ "name": "p", "namespace": "web" });
    let run = Case::new(json!({ "metadata": metadata, "data": { "probe": program } })).run::<Probe>();
    assert_eq!(run.plan().status("seen"), "p");
    let metadata = json!({ "name": "p", "namespace": "web", "annotations": { ANNOTATION: program } });
    let run = Case::new(json!({ "metadata": metadata })).run::<Probe>();
    assert_eq!(run.plan().status("seen"), "p");
}

#[test]
fn a_mistaken_program_is_named() {
    assert_eq!(
        run(json!({ "steps": [{ "jump": 1 }] })).error().message(),
        "step 0 has the unknown operation \"jump\""
    );
    assert_eq!(run(json!({ "steps": [{}] })).error().message(), "step 0 needs exactly one operation");
}

#[test]
fn changes_map_by_annotation() {
    let secret =
        |to: &str| json!({ "metadata": { "name": "s", "namespace": "web", "annotations": { MAPS_TO: to } } });
    let names = Case::map::<Probe>("secrets", secret("web/a,b")).unwrap();
    assert_eq!(names, [ObjectName::namespaced("web", "a"), ObjectName::cluster("b")]);
    assert_eq!(Case::map::<Probe>("secrets", secret("!fail")).unwrap_err().code(), "MAP_FAILED");
    assert!(Case::map::<Probe>("secrets", json!({ "metadata": { "name": "s" } })).unwrap().is_empty());
}
