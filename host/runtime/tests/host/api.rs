//! An API server in miniature over HTTP: enough of lists, watches and writes for a host to work
//! with, and faults on request. What Kubernetes really does is the scenarios' matter (tests/e2e).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State as Extract;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use parking_lot::Mutex;
use reeve_core::labels::Selector;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// (group version, plural, kind, subresources)
type Kind = (String, String, String, Vec<&'static str>);

/// The server. Cheap to clone; it ends with the runtime of its test.
#[derive(Clone)]
pub(crate) struct Api {
    state: Arc<Mutex<State>>,
    pub(crate) addr: SocketAddr,
}

#[derive(Default)]
struct State {
    version: u64,
    kinds: Vec<Kind>,
    /// (collection without namespace, namespace, name) → object.
    objects: BTreeMap<(String, String, String), Value>,
    watchers: Vec<Watcher>,
    writes: Vec<String>,
    faults: Vec<Fault>,
    down: bool,
}

struct Watcher {
    scope: Scope,
    sender: mpsc::UnboundedSender<Value>,
}

/// What a list or a watch is about.
#[derive(Clone)]
struct Scope {
    collection: String,
    namespace: Option<String>,
    labels: Selector,
    name: Option<String>,
    metadata_only: bool,
}

/// The next so many requests whose `METHOD path` contains this are answered with a status.
struct Fault {
    of: String,
    status: u16,
    left: usize,
}

impl Api {
    /// A server with core kinds, Deployments and `test.reeve.dev/v1 Probe`.
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let api = Self { state: Arc::default(), addr };
        for (version, plural, kind, subresources) in [
            ("v1", "configmaps", "ConfigMap", vec![]),
            ("v1", "secrets", "Secret", vec![]),
            ("apps/v1", "deployments", "Deployment", vec!["status"]),
            ("test.reeve.dev/v1", "probes", "Probe", vec!["status"]),
            ("events.k8s.io/v1", "events", "Event", vec![]),
        ] {
            api.serve_kind(version, plural, kind, subresources);
        }
        let router = Router::new().fallback(handle).with_state(api.clone());
        #[expect(clippy::disallowed_methods, reason = "the server lives as long as its test's runtime")]
        tokio::spawn(async move { axum::serve(listener, router).await });
        api
    }

    /// The kubeconfig of the server.
    pub(crate) fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.addr)}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "users": [{"name": "u", "user": {}}],
        })
        .to_string()
    }

    /// Serves one more kind.
    pub(crate) fn serve_kind(
        &self,
        version: &str,
        plural: &str,
        kind: &str,
        subresources: Vec<&'static str>,
    ) {
        self.state.lock().kinds.push((version.to_owned(), plural.to_owned(), kind.to_owned(), subresources));
    }

    /// Answers the next so many matching requests with a status.
    pub(crate) fn fault(&self, of: &str, status: u16, times: usize) {
        self.state.lock().faults.push(Fault { of: of.to_owned(), status, left: times });
    }

    /// Answers everything with 503 while it is down.
    pub(crate) fn set_down(&self, down: bool) {
        let mut state = self.state.lock();
        state.down = down;
        if down {
            state.watchers.clear();
        }
    }

    /// Applies an object as a user does: spec and metadata replace, the status stays.
    pub(crate) fn apply(&self, mut object: Value) {
        let mut state = self.state.lock();
        let kind = state.kind_of(&object);
        let key = (collection(&kind), text(&object, "namespace"), text(&object, "name"));
        if let Some(before) = state.objects.get(&key) {
            let mut merged = before.clone();
            for (name, value) in
                object.as_object_mut().unwrap().iter().filter(|(name, _)| *name != "metadata")
            {
                merged[name] = value.clone();
            }
            merge(&mut merged["metadata"], &object["metadata"]);
            object = merged;
        }
        state.store(&key, object);
    }

    /// The object at `plural`, `name` in namespace `default`.
    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        let state = self.state.lock();
        let kind = state.kinds.iter().find(|kind| kind.1 == plural).unwrap();
        state.objects.get(&(collection(kind), "default".to_owned(), name.to_owned())).cloned()
    }

    /// Deletes as a user does: finalizers are waited for.
    pub(crate) fn delete(&self, plural: &str, name: &str) {
        let mut state = self.state.lock();
        let kind = state.kinds.iter().find(|kind| kind.1 == plural).unwrap().clone();
        state.delete(&(collection(&kind), "default".to_owned(), name.to_owned()));
    }

    /// Every write so far that contains a text: `METHOD path`.
    pub(crate) fn writes(&self, containing: &str) -> usize {
        self.state.lock().writes.iter().filter(|write| write.contains(containing)).count()
    }
}

fn text(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

fn collection(kind: &Kind) -> String {
    let root = if kind.0.contains('/') { "apis" } else { "api" };
    format!("/{root}/{}/{}", kind.0, kind.1)
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// The RFC 6902 operations that the host uses; `false` when a test does not hold.
fn json_patch(target: &mut Value, patch: &Value) -> bool {
    for operation in patch.as_array().unwrap() {
        let path = operation["path"].as_str().unwrap();
        let (parent, last) = path.rsplit_once('/').unwrap();
        let value = &operation["value"];
        match operation["op"].as_str().unwrap_or_default() {
            "test" if target.pointer(path).unwrap_or(&Value::Null) != value => return false,
            "test" => {}
            "add" if last == "-" => {
                target.pointer_mut(parent).unwrap().as_array_mut().unwrap().push(value.clone());
            }
            "add" | "replace" => target.pointer_mut(parent).unwrap()[last] = value.clone(),
            "remove" => match target.pointer_mut(parent).unwrap() {
                Value::Array(list) => drop(list.remove(last.parse().unwrap())),
                other => drop(other.as_object_mut().unwrap().remove(last)),
            },
            other => panic!("{other} is not done here"),
        }
    }
    true
}

// === impl State ===

impl State {
    fn kind_of(&self, object: &Value) -> Kind {
        let found = self.kinds.iter().find(|kind| object["apiVersion"] == kind.0 && object["kind"] == kind.2);
        found.unwrap_or_else(|| panic!("{object} is of no kind that is served")).clone()
    }

    /// Stores an object as the server does, tells the watchers, and returns it.
    fn store(&mut self, key: &(String, String, String), mut object: Value) -> Value {
        let before = self.objects.get(key).cloned();
        let content = |object: &Value| {
            let mut content = object.clone();
            content["status"] = Value::Null;
            content["metadata"] = Value::Null;
            content
        };
        let meta = &mut object["metadata"];
        if let Some(before) = &before {
            meta["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        } else {
            meta["uid"] = json!(format!("00000000-0000-0000-0000-{:012}", self.version));
            meta["creationTimestamp"] = json!("2026-12-01T00:00:00Z");
            meta["generation"] = json!(1);
        }
        if before.as_ref() == Some(&object) {
            return object;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if let Some(before) = &before
            && content(before) != content(&object)
        {
            object["metadata"]["generation"] =
                json!(before["metadata"]["generation"].as_u64().unwrap_or(1) + 1);
        }
        let deleting = object["metadata"]["deletionTimestamp"].is_string();
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let event = match (deleting && !held, before.is_some()) {
            (true, _) => "DELETED",
            (false, true) => "MODIFIED",
            (false, false) => "ADDED",
        };
        if event == "DELETED" {
            drop(self.objects.remove(key));
        } else {
            drop(self.objects.insert(key.clone(), object.clone()));
        }
        self.tell(key, event, &object, before.as_ref());
        object
    }

    fn tell(&mut self, key: &(String, String, String), event: &str, object: &Value, before: Option<&Value>) {
        self.watchers.retain(|watcher| {
            let (now, then) = (
                watcher.scope.shows(key, object),
                before.is_some_and(|before| watcher.scope.shows(key, before)),
            );
            let event = match (event, then, now) {
                (_, false, false) => return !watcher.sender.is_closed(),
                ("DELETED", ..) | (_, true, false) => "DELETED",
                (_, false, true) => "ADDED",
                (event, true, true) => event,
            };
            watcher.sender.send(json!({"type": event, "object": watcher.scope.form(object)})).is_ok()
        });
    }

    fn delete(&mut self, key: &(String, String, String)) -> Option<Value> {
        let mut object = self.objects.get(key)?.clone();
        object["metadata"]["deletionTimestamp"] = json!("2026-12-01T00:00:00Z");
        Some(self.store(key, object))
    }

    fn fault(&mut self, request: &str) -> Option<StatusCode> {
        if self.down {
            return Some(StatusCode::SERVICE_UNAVAILABLE);
        }
        let fault = self.faults.iter_mut().find(|fault| fault.left > 0 && request.contains(&fault.of))?;
        fault.left -= 1;
        StatusCode::from_u16(fault.status).ok()
    }

    fn list(&self, scope: &Scope) -> Vec<Value> {
        let shown = self.objects.iter().filter(|(key, object)| scope.shows(key, object));
        shown.map(|(_, object)| scope.form(object)).collect()
    }
}

impl Scope {
    fn shows(&self, key: &(String, String, String), object: &Value) -> bool {
        let labels = object["metadata"]["labels"].as_object();
        let labels = labels
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
        key.0 == self.collection
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.1)
            && self.name.as_ref().is_none_or(|name| *name == key.2)
            && self.labels.matches_labels(&reeve_core::object::Labels::new(labels))
    }

    fn form(&self, object: &Value) -> Value {
        if self.metadata_only {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
        } else {
            object.clone()
        }
    }
}

fn refusal(status: StatusCode, message: &str) -> Response {
    let reason = match status.as_u16() {
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        _ => "InternalError",
    };
    let body = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": status.as_u16()});
    (status, axum::Json(body)).into_response()
}

async fn handle(
    Extract(api): Extract<Api>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut state = api.state.lock();
    let request = format!("{method} {}", uri.path());
    if let Some(status) = state.fault(&request) {
        return refusal(status, "a fault on request");
    }
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let (version, rest) = match &path[..] {
        ["version"] => return axum::Json(json!({"major": "1", "minor": "37"})).into_response(),
        ["api", version, rest @ ..] => ((*version).to_owned(), rest),
        ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
        _ => return refusal(StatusCode::NOT_FOUND, "no such path"),
    };
    if rest.is_empty() {
        return discovery(&state, &version);
    }
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let Some(kind) =
        state.kinds.iter().find(|kind| kind.0 == version && Some(&kind.1.as_str()) == rest.first()).cloned()
    else {
        return refusal(StatusCode::NOT_FOUND, "the server could not find the requested resource");
    };
    let query: BTreeMap<String, String> = query(uri.query().unwrap_or_default());
    if method == Method::GET && rest.len() == 1 {
        let metadata_only = headers
            .get(header::ACCEPT)
            .is_some_and(|accept| accept.to_str().is_ok_and(|accept| accept.contains("PartialObject")));
        return read(&mut state, &kind, namespace, &query, metadata_only);
    }
    if method != Method::GET {
        state.writes.push(request);
    }
    let content = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    write(&mut state, &kind, namespace.unwrap_or_default(), &rest[1..], &method, &content, body)
}

fn discovery(state: &State, version: &str) -> Response {
    let verbs = ["get", "list", "watch", "create", "patch", "delete"];
    let mut resources = Vec::new();
    for kind in state.kinds.iter().filter(|kind| kind.0 == version) {
        resources.push(
            json!({"name": kind.1, "singularName": "", "namespaced": true, "kind": kind.2, "verbs": verbs}),
        );
        for subresource in &kind.3 {
            resources.push(json!({"name": format!("{}/{subresource}", kind.1), "singularName": "", "namespaced": true, "kind": kind.2, "verbs": ["patch"]}));
        }
    }
    if resources.is_empty() {
        return refusal(StatusCode::NOT_FOUND, "no such group and version");
    }
    axum::Json(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})).into_response()
}

fn query(text: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            } else {
                bytes.push(byte);
            }
        }
        String::from_utf8(bytes).unwrap()
    };
    text.split('&')
        .filter_map(|part| part.split_once('='))
        .map(|(key, value)| (key.to_owned(), decode(value)))
        .collect()
}

fn read(
    state: &mut State,
    kind: &Kind,
    namespace: Option<String>,
    query: &BTreeMap<String, String>,
    metadata_only: bool,
) -> Response {
    let scope = Scope {
        collection: collection(kind),
        namespace,
        labels: query.get("labelSelector").map(|text| text.parse().unwrap()).unwrap_or_default(),
        name: query
            .get("fieldSelector")
            .and_then(|text| text.strip_prefix("metadata.name="))
            .map(str::to_owned),
        metadata_only,
    };
    let version = state.version.max(1).to_string();
    if !query.contains_key("watch") {
        let form =
            if metadata_only { "PartialObjectMetadataList".to_owned() } else { format!("{}List", kind.2) };
        let list = json!({"apiVersion": kind.0, "kind": form, "metadata": {"resourceVersion": version}, "items": state.list(&scope)});
        return axum::Json(list).into_response();
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    if query.contains_key("sendInitialEvents") {
        for object in state.list(&scope) {
            sender.send(json!({"type": "ADDED", "object": object})).unwrap();
        }
        let end = json!({"apiVersion": kind.0, "kind": kind.2, "metadata": {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}}});
        sender.send(json!({"type": "BOOKMARK", "object": end})).unwrap();
    } else {
        // What happened after a version is not kept: everything is told again, as after a gap.
        for object in state.list(&scope) {
            sender.send(json!({"type": "MODIFIED", "object": object})).unwrap();
        }
    }
    state.watchers.push(Watcher { scope, sender });
    let lines = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|event| (Ok::<_, std::io::Error>(format!("{event}\n")), receiver))
    });
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines.boxed()))
        .into_response()
}

fn write(
    state: &mut State,
    kind: &Kind,
    namespace: String,
    rest: &[&str],
    method: &Method,
    content: &str,
    mut body: Value,
) -> Response {
    let name = rest.first().map_or_else(|| text(&body, "name"), |name| (*name).to_owned());
    let key = (collection(kind), namespace.clone(), name.clone());
    let before = state.objects.get(&key).cloned();
    let Some(subject) = before else {
        if *method == Method::POST || content.contains("apply-patch") {
            body["metadata"]["namespace"] = json!(namespace);
            body["metadata"]["name"] = json!(name);
            body["apiVersion"] = json!(kind.0);
            body["kind"] = json!(kind.2);
            return (StatusCode::CREATED, axum::Json(state.store(&key, body))).into_response();
        }
        return refusal(StatusCode::NOT_FOUND, &format!("{} {name:?} not found", kind.1));
    };
    let mut object = subject.clone();
    match method.as_str() {
        "GET" => return axum::Json(object).into_response(),
        "POST" => return refusal(StatusCode::CONFLICT, "already exists"),
        "DELETE" => return axum::Json(state.delete(&key)).into_response(),
        _ => {}
    }
    for (field, here) in
        [("resourceVersion", &subject["metadata"]["resourceVersion"]), ("uid", &subject["metadata"]["uid"])]
    {
        let given = &body["metadata"][field];
        if given.is_string() && given != here {
            return refusal(StatusCode::CONFLICT, &format!("the {field} is another one"));
        }
    }
    if content.contains("json-patch") {
        if !json_patch(&mut object, &body) {
            return refusal(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the server rejected our request: testing value failed",
            );
        }
    } else if rest.get(1) == Some(&"status") {
        merge(&mut object["status"], &body["status"]);
    } else {
        merge(&mut object, &body);
    }
    axum::Json(state.store(&key, object)).into_response()
}
