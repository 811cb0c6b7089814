use super::*;

fn manifest() -> Manifest {
    Manifest::parse(
        r#"{
            "name": "website", "version": "1",
            "primary": {"apiVersion": "example.dev/v1", "kind": "Website"},
            "watches": [
                {"apiVersion": "v1", "kind": "ConfigMap", "relation": "owned"},
                {"apiVersion": "apps/v1", "kind": "Deployment", "relation": "ownedByAny"},
                {"apiVersion": "v1", "kind": "Secret", "relation": "read"}
            ],
            "writes": [
                {"apiVersion": "v1", "kind": "Pod", "verbs": ["create"], "subresources": ["eviction"]},
                {"apiVersion": "apps/v1", "kind": "Deployment", "verbs": ["apply", "delete"]},
                {"apiVersion": "apps/v1", "kind": "Deployment", "verbs": ["apply", "patch"], "subresources": ["scale"]}
            ]
        }"#,
    )
    .unwrap()
}

fn ceiling(rules: &[&str]) -> Ceiling {
    Ceiling { host_namespace: "host".into(), rules: rules.iter().map(|rule| rule.parse().unwrap()).collect() }
}

fn grant(rules: &[&str]) -> Grant {
    Grant::effective(&manifest(), true, &ceiling(rules)).unwrap()
}

fn write<'a>(verb: Verb, gvk: &'a Gvk, subresource: &'a str, name: &'a ObjectName) -> WriteRequest<'a> {
    WriteRequest { verb, gvk, subresource: (!subresource.is_empty()).then_some(subresource), name }
}

#[test]
fn reads_are_the_declared_kinds() {
    let grant = grant(&[]);
    for (gvk, namespace, ok) in [
        (Gvk::new("example.dev", "v1", "Website"), None, true),
        (Gvk::new("", "v1", "ConfigMap"), Some("any"), true),
        (Gvk::new("", "v1", "Secret"), Some("host"), true),
        (Gvk::new("", "v1", "Secret"), Some("web"), false),
        (Gvk::new("", "v1", "Secret"), None, false),
        (Gvk::new("", "v1", "Pod"), Some("web"), false),
        (Gvk::new("apps", "v2", "Deployment"), Some("web"), false),
    ] {
        assert_eq!(grant.check_read(&gvk, namespace).is_ok(), ok, "{gvk} {namespace:?}");
    }
    let secret = Gvk::new("", "v1", "Secret");
    assert_eq!(grant.read_namespaces(&secret), Some(BTreeSet::from(["host".into()])));
    assert_eq!(grant.read_namespaces(grant.primary()), None);
}

#[test]
fn denials_name_the_thing_and_the_remedy() {
    let grant = grant(&[]);
    let name = ObjectName::namespaced("web", "a");
    let secret = Gvk::new("", "v1", "Secret");
    let pod = Gvk::new("", "v1", "Pod");
    for (denied, text) in [
        (
            grant.check_read(&secret, Some("web")),
            "plugin website may not get Secret.v1 in namespace web: the host's ceiling excludes it; allow it with --allow default --allow '/Secret@web:get'",
        ),
        (
            grant.check_read(&pod, None),
            "plugin website may not get Pod.v1: its manifest does not declare it; add it to `watches`",
        ),
        (
            grant.check_write(&write(Verb::Delete, &pod, "", &name)),
            "plugin website may not delete Pod.v1 web/a: its manifest does not declare it; add it to `writes`",
        ),
        (
            grant.check_child(&write(Verb::Apply, &secret, "", &name)),
            "plugin website may not apply Secret.v1 web/a: its manifest does not declare it; add it to `watches` with relation `owned`",
        ),
    ] {
        assert_eq!(denied.unwrap_err().to_string(), text);
    }
}

#[test]
fn writes_are_exactly_the_declared_verbs_and_subresources() {
    let grant = grant(&[]);
    let name = ObjectName::namespaced("web", "a");
    let deployment = Gvk::new("apps", "v1", "Deployment");
    let pod = Gvk::new("", "v1", "Pod");
    let allowed = [
        (Verb::Create, &pod, "eviction"),
        (Verb::Apply, &deployment, ""),
        (Verb::Delete, &deployment, ""),
        (Verb::Apply, &deployment, "scale"),
        (Verb::Patch, &deployment, "scale"),
    ];
    for gvk in [&pod, &deployment, grant.primary()] {
        for subresource in ["", "scale", "eviction", "status"] {
            for verb in Verb::ALL {
                let expected = allowed.contains(&(verb, gvk, subresource));
                let request = write(verb, gvk, subresource, &name);
                assert_eq!(grant.check_write(&request).is_ok(), expected, "{verb} {request}");
            }
        }
    }
}

#[test]
fn children_are_the_owned_kinds_in_any_version_and_no_subresource() {
    let grant = grant(&[]);
    let name = ObjectName::namespaced("web", "a");
    let map = Gvk::new("", "v2", "ConfigMap");
    assert!(grant.may_own(&map) && !grant.may_own(&Gvk::new("", "v1", "Secret")));
    assert!(!grant.may_own(grant.primary()));
    for verb in [Verb::Create, Verb::Apply, Verb::Patch, Verb::Delete] {
        assert!(grant.check_child(&write(verb, &map, "", &name)).is_ok());
        assert!(grant.check_child(&write(verb, &map, "status", &name)).is_err());
        // Only as a child.
        assert!(grant.check_write(&write(verb, &map, "", &name)).is_err());
    }
}

#[test]
fn what_the_ceiling_excludes_everywhere_is_refused_at_load() {
    let with = |watch: &str| {
        let text = format!(
            r#"{{"name": "a", "version": "1", "primary": {{"apiVersion": "v1", "kind": "ConfigMap"}}, "watches": [{watch}]}}"#
        );
        Grant::effective(&Manifest::parse(&text).unwrap(), false, &ceiling(&[]))
    };
    let role = r#"{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "relation": "read"}"#;
    let denied = with(role).unwrap_err();
    assert_eq!(denied.len(), 1);
    assert_eq!(
        denied[0].to_string(),
        "plugin a may not get Role.rbac.authorization.k8s.io: the host's ceiling excludes it; allow it with --allow default --allow 'rbac.authorization.k8s.io/Role:get'"
    );
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        let watch = format!(
            r#"{{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "{kind}", "relation": "owned"}}"#
        );
        assert_eq!(with(&watch).unwrap_err().len(), 5, "{kind}");
    }
    assert!(with(r#"{"apiVersion": "v1", "kind": "Secret", "relation": "owned"}"#).is_ok());
    let narrow = Grant::effective(&manifest(), true, &ceiling(&["example.dev/*:get"])).unwrap_err();
    let finalizer = "--allow 'example.dev/Website:patch'";
    assert!(narrow.iter().any(|denied| denied.to_string().ends_with(finalizer)), "{narrow:?}");
    assert!(narrow.iter().all(|denied| !denied.to_string().contains("default")));
}

#[test]
fn rules_add_up_within_namespaces() {
    let secret = Gvk::new("", "v1", "Secret");
    let both = grant(&["default", "/Secret@web:get", "/Secret@db"]);
    assert_eq!(both.read_namespaces(&secret), Some(["db", "host", "web"].map(Into::into).into()));
    assert!(grant(&["*/*"]).check_read(&secret, None).is_ok());
    let web = grant(&["*/*@web"]);
    let (inside, outside) = (ObjectName::namespaced("web", "a"), ObjectName::namespaced("db", "a"));
    assert!(web.check_status(&inside).is_ok() && web.check_status(&outside).is_err());
    assert!(web.check_finalizer(&inside).is_ok() && web.check_finalizer(&outside).is_err());
    assert!(web.check_status(&ObjectName::cluster("a")).is_err());
    let map = Gvk::new("", "v1", "ConfigMap");
    assert!(web.check_child(&write(Verb::Apply, &map, "", &outside)).is_err());
    assert!(web.check_child(&write(Verb::Apply, &map, "", &inside)).is_ok());
    // A rule for one subresource is no rule for the object.
    let one = ceiling(&["apps/Deployment/scale:patch"]);
    let deployment = Gvk::new("apps", "v1", "Deployment").group_kind();
    assert!(one.allows(Verb::Patch, &deployment, "scale", Some("web")));
    assert!(!one.allows(Verb::Patch, &deployment, "", Some("web")));
    assert!(!one.allows(Verb::Apply, &deployment, "scale", Some("web")));
}

#[test]
fn rules_round_trip_and_others_are_refused() {
    for good in
        ["default", "/ConfigMap@web:get,apply", "apps/*", "*/*", "apps/Deployment/scale@web:patch", "/Pod"]
    {
        assert_eq!(good.parse::<CeilingRule>().unwrap().to_string(), good);
    }
    for (text, normal) in [("*/*/*@*", "*/*"), ("/Pod:delete,get", "/Pod:get,delete")] {
        assert_eq!(text.parse::<CeilingRule>().unwrap().to_string(), normal);
    }
    for (bad, reason) in [
        ("", "it has no kind; core kinds begin with '/'"),
        ("ConfigMap", "it has no kind; core kinds begin with '/'"),
        ("/", "\"\" is no kind"),
        ("/Pod@", "\"\" is no namespace"),
        ("/Pod:", "\"\" is no verb"),
        ("/Pod:list", "\"list\" is no verb"),
        ("/Pod/a/b", "\"a/b\" is no subresource"),
        ("a b/Pod", "\"a b\" is no group"),
    ] {
        let error = bad.parse::<CeilingRule>().unwrap_err().to_string();
        assert!(error.contains(reason), "{bad:?}: {error}");
    }
}

#[test]
fn lines_say_what_is_granted() {
    let expected = [
        "read ConfigMap.v1",
        "read Secret.v1 (only in namespace host)",
        "read Deployment.v1.apps",
        "read Website.v1.example.dev (primary)",
        "own ConfigMap",
        "own Deployment.apps",
        "create Pod/eviction",
        "apply, delete Deployment.apps",
        "apply, patch Deployment.apps/scale",
        "write the status of Website.example.dev",
        "keep a finalizer on Website.example.dev",
    ];
    assert_eq!(grant(&[]).lines(), expected);
}

#[test]
fn rbac_rules_are_the_least() {
    let rules = grant(&[]).rbac_rules(&|gvk| (&*gvk.kind == "Website").then(|| "sites".into()));
    let expected = serde_json::json!([
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["example.dev"], "resources": ["sites"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": ["example.dev"], "resources": ["sites/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]},
    ]);
    let namespaces: Vec<_> = rules.iter().map(|rule| rule.namespace.as_deref()).collect();
    assert_eq!(namespaces, [None, None, None, None, None, None, None, Some("host")]);
    let mut seen = serde_json::to_value(&rules).unwrap();
    let mut expected = expected;
    for list in [&mut seen, &mut expected] {
        list.as_array_mut().unwrap().sort_by_key(ToString::to_string);
    }
    assert_eq!(seen, expected);
    let without = Grant::effective(&manifest(), false, &ceiling(&[])).unwrap();
    let primary =
        without.rbac_rules(&|_| None).into_iter().find(|rule| rule.resources == ["websites"]).unwrap();
    assert_eq!(primary.verbs, ["get", "list", "watch"]);
}

#[test]
fn plurals_are_guessed_as_kubernetes_guesses() {
    for (kind, plural) in [
        ("Website", "websites"),
        ("Ingress", "ingresses"),
        ("NetworkPolicy", "networkpolicies"),
        ("Endpoints", "endpoints"),
        ("StorageClass", "storageclasses"),
    ] {
        assert_eq!(guess_plural(kind), plural);
    }
}
