#![expect(
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps,
    reason = "the tables read best with values as they stand in a change"
)]

use reeve_core::object::ManagedFields;
use reeve_core::read::ReadError;
use serde_json::{Value, json};

use super::*;

/// Primaries whose index value is what stands after the colon of their name.
struct Indexed(Vec<SharedObject>);

impl Reader for Indexed {
    fn get(&self, _: &Gvk, _: &ObjectName) -> Result<Option<SharedObject>, ReadError> {
        Ok(None)
    }

    fn list(&self, gvk: &Gvk, query: &Query) -> Result<Arc<[SharedObject]>, ReadError> {
        let Some((index, value)) = &query.index else { return Ok([].into()) };
        assert_eq!((&*gvk.kind, &**index), ("Website", "config"));
        let found = self.0.iter().filter(|object| {
            object.pointer("/spec/config") == Some(&format!("{:?}", &**value))
                && query
                    .namespace
                    .as_ref()
                    .is_none_or(|namespace| Some(namespace) == object.meta().name.namespace.as_ref())
        });
        Ok(found.cloned().collect())
    }

    fn held(&self, _: &Gvk, _: Option<&ObjectName>) -> Option<futures::future::BoxFuture<'static, ()>> {
        None
    }
}

fn website() -> Gvk {
    Gvk::new("example.com", "v1", "Website")
}

fn config_map() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

/// An object of these fields; the resource version is `version`.
fn object(gvk: &Gvk, version: u64, metadata: Value, rest: Value) -> SharedObject {
    let mut all = rest;
    let mut meta = json!({"name": "a", "namespace": "web", "uid": "u1", "generation": 1});
    for (key, value) in metadata.as_object().unwrap() {
        meta[key] = value.clone();
    }
    meta["resourceVersion"] = json!(version.to_string());
    all["apiVersion"] = json!(gvk.api_version());
    all["kind"] = json!(&*gvk.kind);
    all["metadata"] = meta;
    Arc::new(Object::parse(gvk, &all.to_string(), ManagedFields::Strip).unwrap())
}

fn route_to(target: Target) -> Route {
    let primaries = [("web", "p"), ("web", "q"), ("other", "r")].map(|(namespace, name)| {
        let metadata = json!({"name": name, "namespace": namespace});
        object(&website(), 1, metadata, json!({"spec": {"config": "a"}}))
    });
    let gvk = if matches!(target, Target::Primary { .. }) { website() } else { config_map() };
    Route {
        plugin: "site".parse().unwrap(),
        gvk,
        primary: website(),
        scope: Scope::Namespaced,
        namespaces: Namespaces::All,
        labels: Selector::everything(),
        fields: None,
        predicate: None,
        target,
        reader: Arc::new(Indexed(primaries.to_vec())),
    }
}

const PRIMARY: Target = Target::Primary { when_gone: false, writes_metadata: false };

fn related(relation: Relation) -> Target {
    Target::Related("configs".into(), relation)
}

fn own_write() -> Cause {
    Cause::Write(Origin { plugin: "site".parse().unwrap(), primary: ObjectName::namespaced("web", "a") })
}

/// What one route makes of a change: `reason name priority [own]`, in order.
#[track_caller]
fn check(route: Route, old: Option<SharedObject>, new: Option<SharedObject>, cause: Cause, expect: &[&str]) {
    let change = Change { gvk: route.gvk.clone(), old, new, cause };
    let found: Vec<String> = super::route(&change, &RouteTable::new([Arc::new(route)]))
        .into_iter()
        .map(|routed| match routed {
            Routed::Run(run) => {
                assert_eq!(run.plugin.as_str(), "site");
                let own = if run.own { " own" } else { "" };
                format!("{} {} {}{own}", run.reason.as_str(), run.name, run.priority.0)
            }
            Routed::Forget(_, name) => format!("forget {name}"),
            Routed::Map { watch, objects, priority, .. } => {
                let versions: Vec<_> =
                    objects.iter().map(|object| object.meta().resource_version.to_string()).collect();
                format!("map {watch} {} {}", versions.join("+"), priority.0)
            }
        })
        .collect();
    assert_eq!(found, expect);
}

fn site(version: u64, metadata: Value, rest: Value) -> Option<SharedObject> {
    Some(object(&website(), version, metadata, rest))
}

fn config(version: u64, metadata: Value) -> Option<SharedObject> {
    Some(object(&config_map(), version, metadata, json!({"data": {"version": version.to_string()}})))
}

#[test]
fn primaries_trigger_on_creation_change_and_deletion() {
    let one = || site(1, json!({}), json!({"spec": {"n": 1}}));
    let two = || site(2, json!({"generation": 2}), json!({"spec": {"n": 2}}));
    check(route_to(PRIMARY), None, one(), Cause::Watch, &["created web/a 0"]);
    check(route_to(PRIMARY), None, one(), Cause::Initial, &["created web/a -100"]);
    check(route_to(PRIMARY), one(), two(), Cause::Watch, &["updated web/a 0"]);
    check(route_to(PRIMARY), one(), None, Cause::Relist, &["forget web/a"]);
    let when_gone = || Target::Primary { when_gone: true, writes_metadata: false };
    check(route_to(when_gone()), one(), None, Cause::Watch, &["forget web/a", "deleted web/a 0"]);
    check(route_to(when_gone()), one(), None, Cause::Initial, &["forget web/a", "deleted web/a 0"]);
}

#[test]
fn an_update_of_the_status_alone_does_not_trigger() {
    let with =
        |version, status: &str| site(version, json!({}), json!({"spec": {}, "status": {"phase": status}}));
    check(route_to(PRIMARY), with(1, "a"), with(2, "b"), Cause::Watch, &[]);
    let route = Route { predicate: Some(Predicate::ResourceVersionChanged), ..route_to(PRIMARY) };
    check(route, with(1, "a"), with(2, "b"), Cause::Watch, &["updated web/a 0"]);
}

#[test]
fn a_deletion_begins_whatever_the_predicate_says() {
    let deleting =
        site(2, json!({"deletionTimestamp": "2026-12-01T00:00:00Z", "finalizers": ["f"]}), json!({}));
    let route = Route { predicate: Some(Predicate::LabelsChanged), ..route_to(PRIMARY) };
    check(
        route,
        site(1, json!({"finalizers": ["f"]}), json!({})),
        deleting,
        Cause::Watch,
        &["updated web/a 0"],
    );
}

#[test]
fn another_life_under_the_same_name_starts_anew() {
    let other = site(9, json!({"uid": "u2"}), json!({}));
    check(
        route_to(PRIMARY),
        site(1, json!({}), json!({})),
        other,
        Cause::Relist,
        &["forget web/a", "created web/a 0"],
    );
}

#[test]
fn people_ask_with_an_annotation() {
    let asked = |at: &str| json!({"annotations": {"reeve.dev/reconcile-at": at}});
    let route = || Route { predicate: Some(Predicate::GenerationChanged), ..route_to(PRIMARY) };
    check(
        route(),
        site(1, json!({}), json!({})),
        site(2, asked("1"), json!({})),
        Cause::Watch,
        &["manual web/a 100"],
    );
    check(
        route(),
        site(2, asked("1"), json!({})),
        site(3, asked("2"), json!({})),
        Cause::Watch,
        &["manual web/a 100"],
    );
    check(route(), site(3, asked("2"), json!({})), site(4, asked("2"), json!({})), Cause::Watch, &[]);
}

#[test]
fn echoes_of_own_writes_to_the_primary_do_not_trigger_their_writer() {
    let plain = || site(1, json!({}), json!({"spec": {}}));
    let status = || site(2, json!({}), json!({"spec": {}, "status": {"x": 1}}));
    let finalizer = || site(2, json!({"finalizers": ["reeve.dev/site"]}), json!({"spec": {}}));
    let spec = || site(2, json!({"generation": 2}), json!({"spec": {"x": 1}}));
    let label = || site(2, json!({"labels": {"by": "user"}}), json!({"spec": {}}));
    let sensitive = || Route { predicate: Some(Predicate::ResourceVersionChanged), ..route_to(PRIMARY) };
    check(sensitive(), plain(), status(), own_write(), &[]);
    check(sensitive(), plain(), finalizer(), own_write(), &[]);
    // What a user changed came in with the answer of our write: it must not be lost.
    check(route_to(PRIMARY), plain(), spec(), own_write(), &["updated web/a 0 own"]);
    check(route_to(PRIMARY), plain(), label(), own_write(), &["updated web/a 0 own"]);
    let writer = Target::Primary { when_gone: false, writes_metadata: true };
    check(route_to(writer), plain(), label(), own_write(), &[]);
    // Everybody else sees it as any change.
    let other = || {
        Cause::Write(Origin { plugin: "other".parse().unwrap(), primary: ObjectName::namespaced("web", "a") })
    };
    let neighbour = || {
        Cause::Write(Origin { plugin: "site".parse().unwrap(), primary: ObjectName::namespaced("web", "b") })
    };
    check(sensitive(), plain(), status(), other(), &["updated web/a 0"]);
    check(sensitive(), plain(), finalizer(), neighbour(), &["updated web/a 0"]);
}

#[test]
fn selectors_bound_what_a_plugin_sees() {
    let labelled = |version, app: &str| site(version, json!({"labels": {"app": app}}), json!({}));
    let route = || Route { labels: "app=web".parse().unwrap(), ..route_to(PRIMARY) };
    check(route(), labelled(1, "web"), labelled(2, "db"), Cause::Watch, &["forget web/a"]);
    check(route(), labelled(1, "db"), labelled(2, "web"), Cause::Watch, &["created web/a 0"]);
    check(route(), labelled(1, "db"), labelled(2, "db"), Cause::Watch, &[]);
    let only = Namespaces::Only([Arc::from("other")].into());
    check(
        Route { namespaces: only, ..route_to(PRIMARY) },
        None,
        site(1, json!({}), json!({})),
        Cause::Watch,
        &[],
    );
    let fields = |text: &str| Route { fields: Some(text.parse().unwrap()), ..route_to(PRIMARY) };
    let on = |node: &str| site(1, json!({}), json!({"spec": {"nodeName": node}}));
    check(fields("spec.nodeName=n1"), None, on("n1"), Cause::Watch, &["created web/a 0"]);
    check(fields("spec.nodeName=n1"), None, on("n2"), Cause::Watch, &[]);
    check(fields("spec.nodeName!=n1,metadata.name==a"), None, on("n2"), Cause::Watch, &["created web/a 0"]);
    check(fields("spec.missing="), None, on("n2"), Cause::Watch, &["created web/a 0"]);
}

fn owner(api_version: &str, kind: &str, name: &str, controller: bool) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": "u1", "controller": controller})
}

/// H1: the controller alone or every owner; another group or kind is ignored, another version of
/// the same group is not.
#[test]
fn h1_owned_objects_lead_to_their_owners() {
    let owned = |version, owners: Value| config(version, json!({"name": "c", "ownerReferences": owners}));
    let owners = json!([
        owner("example.com/v2", "Website", "a", true),
        owner("example.com/v1", "Website", "b", false),
        owner("other.com/v1", "Website", "c", false),
        owner("example.com/v1", "Page", "d", false),
    ]);
    let by_controller = || route_to(related(Relation::Owned));
    check(by_controller(), None, owned(1, owners.clone()), Cause::Watch, &["child web/a 0"]);
    check(by_controller(), owned(1, owners.clone()), None, Cause::Watch, &["child web/a 0"]);
    check(by_controller(), None, owned(1, owners.clone()), Cause::Initial, &["child web/a -100"]);
    check(by_controller(), None, owned(1, owners.clone()), own_write(), &["child web/a 0 own"]);
    check(
        route_to(related(Relation::OwnedByAny)),
        None,
        owned(1, owners.clone()),
        Cause::Watch,
        &["child web/a 0", "child web/b 0"],
    );
    // Both owners of a change of owner are told, and one that stays is told once.
    let moved = owned(2, json!([owner("example.com/v1", "Website", "z", true)]));
    check(
        by_controller(),
        owned(1, owners),
        moved.clone(),
        Cause::Watch,
        &["child web/a 0", "child web/z 0"],
    );
    check(
        by_controller(),
        moved.clone(),
        owned(3, json!([owner("example.com/v1", "Website", "z", true)])),
        Cause::Watch,
        &["child web/z 0"],
    );
    check(by_controller(), moved.clone(), moved, Cause::Watch, &[]);
}

/// H2: a cluster-scoped owner has no namespace, whatever namespace its child lives in.
#[test]
fn h2_cluster_scoped_owners_have_no_namespace() {
    let child = config(1, json!({"ownerReferences": [owner("example.com/v1", "Website", "a", true)]}));
    let route = Route { scope: Scope::Cluster, ..route_to(related(Relation::Owned)) };
    check(route, None, child, Cause::Watch, &["child a 0"]);
    let cluster_child = config(
        1,
        json!({"namespace": null, "ownerReferences": [owner("example.com/v1", "Website", "a", true)]}),
    );
    check(route_to(related(Relation::Owned)), None, cluster_child, Cause::Watch, &[]);
}

/// H3: both states of an update are mapped, and one request is made for each primary.
#[test]
fn h3_updates_are_mapped_by_both_states() {
    let labelled = |version, site: &str| config(version, json!({"labels": {"site": site}}));
    let by_label = || route_to(related(Relation::Label("site".to_owned())));
    check(
        by_label(),
        labelled(1, "p"),
        labelled(2, "q"),
        Cause::Watch,
        &["mapped web/p 0", "mapped web/q 0"],
    );
    check(by_label(), labelled(1, "p"), labelled(2, "p"), Cause::Watch, &["mapped web/p 0"]);
    check(by_label(), None, config(1, json!({})), Cause::Watch, &[]);
    let by_map = || route_to(related(Relation::Map));
    check(by_map(), config(1, json!({})), config(2, json!({})), Cause::Watch, &["map configs 1+2 0"]);
    check(by_map(), None, config(2, json!({})), Cause::Initial, &["map configs 2 -100"]);
    check(route_to(related(Relation::Read)), config(1, json!({})), config(2, json!({})), Cause::Watch, &[]);
}

#[test]
fn an_index_leads_to_the_primaries_of_the_same_namespace() {
    let by_index = || route_to(related(Relation::Index("config".to_owned())));
    check(by_index(), None, config(1, json!({})), Cause::Watch, &["mapped web/p 0", "mapped web/q 0"]);
    check(by_index(), None, config(1, json!({"name": "unused"})), Cause::Watch, &[]);
    let cluster = Route { scope: Scope::Cluster, ..by_index() };
    let all = ["mapped web/p 0", "mapped web/q 0", "mapped other/r 0"];
    check(cluster, None, config(1, json!({})), Cause::Watch, &all);
}

#[test]
fn other_kinds_concern_nobody() {
    let change = Change {
        gvk: Gvk::new("", "v1", "Secret"),
        old: None,
        new: config(1, json!({})),
        cause: Cause::Watch,
    };
    assert!(super::route(&change, &RouteTable::new([Arc::new(route_to(PRIMARY))])).is_empty());
}
