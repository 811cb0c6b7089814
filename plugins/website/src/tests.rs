use reeve_sdk::testing::{Case, World};

use super::*;

const KIND: (&str, &str) = ("example.reeve.dev/v1", "Website");

fn site(spec: &Value) -> Value {
    json!({ "metadata": { "name": "a", "namespace": "web", "generation": 1 }, "spec": spec })
}

fn deployment_status(world: &mut World, ready: u32) {
    let generation = world.object("apps/v1", "Deployment", "web/a")["metadata"]["generation"].clone();
    let available = if ready > 0 { "True" } else { "False" };
    world.patch(
        "apps/v1",
        "Deployment",
        "web/a",
        &json!({ "status": {
            "observedGeneration": generation, "readyReplicas": ready, "availableReplicas": ready,
            "updatedReplicas": ready, "conditions": [{ "type": "Available", "status": available }],
        } }),
    );
    world.settle();
}

#[track_caller]
fn check_ready(world: &World, status: &str, reason: &str, message: &str) {
    let condition = &world.object(KIND.0, KIND.1, "web/a")["status"]["conditions"][0];
    assert_eq!(
        json!([condition["type"], condition["status"], condition["reason"], condition["message"]]),
        json!(["Ready", status, reason, message])
    );
}

#[test]
fn without_replicas_it_is_ready_in_one_run_of_five_writes() {
    let mut world = World::with_cleanup::<Website>();
    world.put(site(&json!({ "html": "<h1>Hi</h1>", "replicas": 0 })));
    world.settle();
    // The user's own write, the finalizer, three children, one status.
    assert_eq!(world.writes(), 1 + 5);
    check_ready(&world, "True", "Available", "0 of 0 replicas are ready");
    let status = &world.object(KIND.0, KIND.1, "web/a")["status"];
    assert_eq!(status["url"], "http://a.web.svc/");
    assert_eq!(status["readyReplicas"], 0);
}

#[test]
fn nothing_is_written_where_nothing_changed() {
    let mut world = World::with_cleanup::<Website>();
    world.put(site(&json!({ "html": "x", "replicas": 0 })));
    world.settle();
    let before = world.writes();
    world.resync("web/a");
    world.settle();
    assert_eq!(world.writes(), before);
}

#[test]
fn it_waits_until_the_deployment_is_available() {
    let mut world = World::with_cleanup::<Website>();
    world.put(site(&json!({ "html": "x", "replicas": 2, "port": 8080 })));
    world.settle();
    check_ready(&world, "False", "Progressing", "0 of 2 replicas are ready");
    assert_eq!(world.runs()[0].plan().waits[0]["condition"], "Available");
    deployment_status(&mut world, 1);
    check_ready(&world, "False", "Progressing", "1 of 2 replicas are ready");
    deployment_status(&mut world, 2);
    check_ready(&world, "True", "Available", "2 of 2 replicas are ready");
    assert_eq!(world.object(KIND.0, KIND.1, "web/a")["status"]["url"], "http://a.web.svc:8080/");
}

#[test]
fn a_new_page_rolls_the_pods() {
    let mut world = World::with_cleanup::<Website>();
    world.put(site(&json!({ "html": "x", "replicas": 1 })));
    world.settle();
    deployment_status(&mut world, 1);
    check_ready(&world, "True", "Available", "1 of 1 replicas are ready");
    let before = world.writes();
    world.put(site(&json!({ "html": "y", "replicas": 1 })));
    world.settle();
    // The live Deployment still serves the old page, so this generation is not ready.
    check_ready(&world, "False", "Progressing", "1 of 1 replicas are ready");
    assert_eq!(world.writes() - before, 1 + 3, "the page, the pods' annotation, the status");
    deployment_status(&mut world, 1);
    check_ready(&world, "True", "Available", "1 of 1 replicas are ready");
}

#[test]
fn a_deployment_that_never_comes_is_a_failure() {
    let mut world = World::with_cleanup::<Website>();
    world.put(site(&json!({ "html": "x" })));
    world.settle();
    world.advance(Duration::from_secs(599));
    assert_eq!(world.runs().len(), 2, "the first, and the echo of the children");
    world.advance(Duration::from_secs(2));
    assert_eq!(world.runs().len(), 3, "the timeout is a failure, and is retried");
}

#[test]
fn cleanup_tells_and_lets_go() {
    let mut world = World::with_cleanup::<Website>();
    world.put(site(&json!({ "html": "x", "replicas": 0 })));
    world.settle();
    world.delete(KIND.0, KIND.1, "web/a");
    world.settle();
    assert!(world.objects().is_empty());
    assert_eq!(world.events()[0].reason, "CleanedUp");
    assert_eq!(world.events()[0].note, "http://a.web.svc/ is no longer served");
}

#[test]
fn the_image_is_the_websites_or_the_configurations() {
    let image = |spec: Value, config: Value| {
        let run = Case::new(site(&spec)).config(config).run::<Website>();
        run.plan().child("Deployment", "a")["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    };
    assert_eq!(image(json!({ "html": "" }), Value::Null), "docker.io/library/nginx:1.29-alpine");
    assert_eq!(image(json!({ "html": "" }), json!({ "image": "c" })), "c");
    assert_eq!(image(json!({ "html": "", "image": "s" }), json!({ "image": "c" })), "s");
}

#[test]
fn a_website_of_another_shape_says_where() {
    let run = Case::new(site(&json!({ "html": "x", "replicas": "many" }))).run::<Website>();
    assert_eq!(run.error().message(), "spec.replicas: invalid type: string, expected u32");
}
