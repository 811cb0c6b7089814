use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Case, World, logs};
use crate::{
    Cleanup, Context, Error, EventKind, Handle, Manifest, Mapper, ObjectName, Outcome, Reconciler, Verb,
    Wait, Write,
};

/// Does what its spec says, so that each test is a few lines of data.
struct Scripted;

#[derive(Deserialize)]
struct Script {
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    children: Vec<String>,
    outcome: String,
    fail: Option<bool>,
    undeclared: bool,
}

impl Reconciler for Scripted {
    type Object = Script;

    fn manifest() -> Manifest {
        Manifest::new("scripted", "1", "x.dev/v1", "Script")
            .owns("v1", "ConfigMap")
            .reads("v1", "Node")
            .watch_label("v1", "Secret", "x.dev/script")
            .index("by-node", "v1", "Node", "/spec/taints/*/key")
            .writes("v1", "Pod", &[Verb::Delete])
            .when_gone()
    }

    fn reconcile(ctx: &Context, object: &Script) -> Result<Outcome, Error> {
        ctx.set_status(&json!({ "attempt": ctx.attempt() }))?;
        for name in &object.spec.children {
            ctx.apply_child(
                &json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } }),
            )?;
        }
        if let Some(transient) = object.spec.fail {
            ctx.condition("Ready", false, "Failed", "as asked")?;
            return Err(if transient { Error::transient("T", "t") } else { Error::permanent("P", "p") });
        }
        if object.spec.undeclared {
            ctx.find("apps/v1", "DaemonSet", "x")?;
        }
        Ok(match object.spec.outcome.as_str() {
            "requeue" => Outcome::requeue_after(Duration::from_secs(10)),
            "wait" => match ctx.find("v1", "Node", "n")?.and_then(|node| node.condition("Ready")) {
                Some(ready) if ready.holds() => Outcome::done(),
                _ => Outcome::wait_for(Wait::on("v1", "Node", "n").condition("Ready")),
            },
            "complete wait" => Outcome::wait_for(Wait::on("v1", "Node", "n").exists()).children_complete(),
            "incomplete" => Outcome::done().children_incomplete(),
            _ => Outcome::done(),
        })
    }

    fn gone(ctx: &Context) -> Result<Outcome, Error> {
        crate::info!("{} is gone", ctx.key());
        Ok(Outcome::done())
    }
}

impl Cleanup for Scripted {
    fn cleanup(ctx: &Context, _: &Script) -> Result<Outcome, Error> {
        if ctx.find("v1", "Node", "holder")?.is_some() {
            return Ok(Outcome::wait_for(Wait::on("v1", "Node", "holder").gone()));
        }
        ctx.emit(EventKind::Normal, "Released", "Cleanup", "done")?;
        Ok(Outcome::done())
    }
}

impl Mapper for Scripted {
    fn map(_: &str, changed: &Handle) -> Result<Vec<ObjectName>, Error> {
        Ok(changed
            .field::<Vec<String>>("/spec/for")?
            .unwrap_or_default()
            .into_iter()
            .map(ObjectName::cluster)
            .collect())
    }
}

fn script(spec: &Value) -> Value {
    json!({ "metadata": { "name": "s", "namespace": "web" }, "spec": spec })
}

#[track_caller]
fn check_complete(outcome: &str, expected: bool) {
    let run = Case::new(script(&json!({ "outcome": outcome }))).run::<Scripted>();
    assert_eq!(run.plan().complete, expected, "{outcome}");
}

#[test]
fn only_done_completes_the_children_unless_the_author_says_so() {
    check_complete("done", true);
    check_complete("requeue", false);
    check_complete("wait", false);
    check_complete("complete wait", true);
    check_complete("incomplete", false);
    let run = Case::new(script(&json!({ "fail": true }))).run::<Scripted>();
    assert!(!run.staged().complete);
    let run = Case::new(script(&json!({}))).cleanup::<Scripted>();
    assert!(!run.plan().complete, "a cleanup leaves the children to the garbage collector");
}

#[test]
fn an_object_of_another_shape_is_a_permanent_failure_with_its_path() {
    let run = Case::new(script(&json!({ "children": ["a", 7] }))).run::<Scripted>();
    assert_eq!(
        run.error().to_string(),
        "INVALID_OBJECT: spec.children[1]: invalid type: integer, expected a string"
    );
    assert!(!run.error().is_transient());
    assert_eq!(run.staged(), &super::Plan::default());
}

#[test]
fn an_object_that_is_being_deleted_is_not_reconciled() {
    let mut object = script(&json!({ "children": ["a"] }));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let run = Case::new(object).run::<Scripted>();
    assert_eq!(run.plan(), &super::Plan::default());
}

#[test]
fn kinds_that_the_manifest_does_not_declare_are_refused_by_name() {
    let run = Case::new(script(&json!({ "undeclared": true }))).run::<Scripted>();
    assert_eq!(run.error().code(), "NOT_DECLARED");
    assert!(run.error().message().contains("DaemonSet"));
}

#[test]
fn gone_runs_without_an_object() {
    logs();
    Case::new(script(&json!({}))).gone::<Scripted>().plan();
    assert_eq!(logs()[0].message, "web/s is gone");
}

#[test]
fn map_reads_the_changed_object() {
    let names =
        Case::map::<Scripted>("Node", json!({ "metadata": { "name": "n" }, "spec": { "for": ["a"] } }));
    assert_eq!(names.unwrap(), [ObjectName::cluster("a")]);
}

#[test]
fn lists_are_filtered() {
    struct Lister;
    impl Reconciler for Lister {
        type Object = Value;
        fn manifest() -> Manifest {
            Scripted::manifest()
        }
        fn reconcile(ctx: &Context, _: &Value) -> Result<Outcome, Error> {
            let nodes = ctx.list("v1", "Node").labels("zone in (a)").index("by-node", "gpu").handles()?;
            let names: Vec<String> = nodes.iter().map(|node| node.name().to_string()).collect();
            ctx.set_status(&json!({ "nodes": names, "fields": nodes.fields(0, &["/metadata/name", "/x"]) }))?;
            let missing = ctx.list("v1", "Node").index("none", "x").handles();
            assert_eq!(missing.unwrap_err().code(), "NOT_DECLARED");
            ctx.write(&Write::delete("v1", "Pod", "p").if_uid("u"))?;
            assert_eq!(ctx.write(&Write::delete("v1", "Secret", "p")).unwrap_err().code(), "NOT_DECLARED");
            Ok(Outcome::done())
        }
    }
    let node = |name: &str, zone: &str, taint: &str| {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "zone": zone } },
            "spec": { "taints": [{ "key": taint }, { "key": "other" }] } })
    };
    let run = Case::new(script(&json!({})))
        .object(node("n1", "a", "gpu"))
        .object(node("n2", "b", "gpu"))
        .object(node("n3", "a", "none"))
        .run::<Lister>();
    assert_eq!(run.plan().status("nodes"), &json!(["n1"]));
    assert_eq!(run.plan().status("fields"), &json!(["\"n1\"", null]));
    assert_eq!(
        run.plan().writes[0].request,
        json!({ "verb": "delete", "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" })
    );
}

#[test]
fn a_world_prunes_what_is_no_longer_staged() {
    let mut world = World::new::<Scripted>();
    world.put(script(&json!({ "children": ["a", "b"] })));
    world.settle();
    assert_eq!(world.object("v1", "ConfigMap", "web/a")["metadata"]["ownerReferences"][0]["name"], "s");
    let before = world.writes();
    world.resync("web/s");
    world.settle();
    assert_eq!(world.writes(), before, "the same state needs no write");
    world.put(script(&json!({ "children": ["b"], "outcome": "requeue" })));
    world.settle();
    assert!(world.find("v1", "ConfigMap", "web/a").is_some(), "a requeue-after prunes nothing");
    world.put(script(&json!({ "children": ["b"] })));
    world.settle();
    assert!(world.find("v1", "ConfigMap", "web/a").is_none());
    assert!(world.find("v1", "ConfigMap", "web/b").is_some());
}

#[test]
fn a_world_retries_with_back_off_and_resets() {
    let mut world = World::new::<Scripted>();
    world.put(script(&json!({ "fail": true, "children": ["a"] })));
    world.settle();
    assert_eq!(world.runs().len(), 1);
    assert!(world.find("v1", "ConfigMap", "web/a").is_none(), "a failure changes no child");
    let status = &world.object("x.dev/v1", "Script", "web/s")["status"];
    assert_eq!(status["conditions"][0]["type"], "Ready");
    assert_eq!(status["conditions"][1]["reason"], "T");
    // At 1 s, 3 s and 7 s.
    world.advance(Duration::from_secs(7));
    assert_eq!(world.runs().len(), 4);
    world.put(script(&json!({})));
    world.settle();
    let status = &world.object("x.dev/v1", "Script", "web/s")["status"];
    assert_eq!(status["conditions"][1]["status"], "True");
    assert_eq!(status["attempt"], 5);
    world.put(script(&json!({ "fail": false })));
    world.advance(Duration::from_hours(1));
    assert_eq!(world.runs().len(), 6, "a permanent failure is not retried");
}

#[test]
fn a_world_wakes_who_waits_and_times_out() {
    let mut world = World::new::<Scripted>();
    world.put(script(&json!({ "outcome": "wait" })));
    world.advance(Duration::from_mins(1));
    assert_eq!(world.runs().len(), 1);
    world.put(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }));
    world.settle();
    assert_eq!(world.runs().len(), 2);

    let mut world = World::new::<Scripted>();
    world.put(script(&json!({ "outcome": "wait" })));
    world.advance(Duration::from_secs(302));
    assert_eq!(world.runs().len(), 2, "the timeout is a transient failure");
}

#[test]
fn a_world_keeps_the_object_until_cleanup_is_done() {
    let mut world = World::with_cleanup::<Scripted>();
    world.put(script(&json!({ "children": ["a"] })));
    world.put(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "holder" } }));
    world.settle();
    assert_eq!(
        world.object("x.dev/v1", "Script", "web/s")["metadata"]["finalizers"],
        json!(["reeve.dev/scripted"])
    );
    world.delete("x.dev/v1", "Script", "web/s");
    world.settle();
    assert!(world.find("x.dev/v1", "Script", "web/s").is_some());
    world.delete("v1", "Node", "holder");
    world.settle();
    assert!(world.find("x.dev/v1", "Script", "web/s").is_none());
    assert!(world.find("v1", "ConfigMap", "web/a").is_none(), "collected");
    assert_eq!(world.events()[0].reason, "Released");
}

#[test]
fn a_world_refuses_a_child_of_somebody_else() {
    let mut world = World::new::<Scripted>();
    world.put(
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "namespace": "web" } }),
    );
    world.put(script(&json!({ "children": ["a"] })));
    world.settle();
    let status = &world.object("x.dev/v1", "Script", "web/s")["status"];
    assert_eq!(status["conditions"][0]["reason"], "CHILD_NOT_OWNED");
}
