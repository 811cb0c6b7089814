//! An API server in miniature, plugged into the client as a tower service: enough of its write
//! semantics to see which requests a commit makes, and faults on request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::diff;

mod rig;

pub(crate) use rig::{Rig, child, object, ticket};

/// (group version, plural, kind, subresources)
const KINDS: [(&str, &str, &str, &[&str]); 8] = [
    ("v1", "configmaps", "ConfigMap", &[]),
    ("v1", "services", "Service", &["status"]),
    ("v1", "secrets", "Secret", &[]),
    ("v1", "serviceaccounts", "ServiceAccount", &["token"]),
    ("v1", "pods", "Pod", &["status", "eviction", "binding"]),
    ("apps/v1", "deployments", "Deployment", &["status", "scale"]),
    ("demo.reeve.dev/v1", "websites", "Website", &["status"]),
    ("demo.reeve.dev/v1", "bares", "Bare", &[]),
];

/// One request that the server saw.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

/// What happens to a request instead of its proper answer.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// It is answered with this.
    Answer(u16, Vec<(&'static str, &'static str)>, Value),
    /// It is carried out, but the connection breaks before the answer.
    CutAfter,
    /// It is carried out, but never answered.
    Hang,
    /// It takes this long.
    Slow(Duration),
    /// Another writer changes the object first: this merge patch.
    Before(Value),
}

/// The server. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Api {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    version: u64,
    uids: u64,
    /// (collection path, name) → object.
    objects: BTreeMap<(String, String), Value>,
    /// (collection path, name, manager) → what it applied last.
    applied: BTreeMap<(String, String, String), Value>,
    calls: Vec<Call>,
    faults: VecDeque<(String, Fault)>,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
    /// Watch events are kept back while this is set.
    quiet: bool,
    kept: Vec<(String, Bytes)>,
    /// Top-level status fields that the schema of `Website` does not have.
    pub(crate) pruned: Vec<&'static str>,
}

/// A path, taken apart.
struct Place {
    group_version: String,
    namespace: Option<String>,
    plural: String,
    name: Option<String>,
    subresource: Option<String>,
}

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

// === impl Api ===

impl Api {
    /// A client of this server.
    pub(crate) fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                api.serve(&head, &body).await
            }
        });
        kube::Client::new(service, "host")
    }

    /// Everything that came, watches, lists and discovery aside.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// As `METHOD path`, and forgotten.
    #[track_caller]
    pub(crate) fn take_calls(&self) -> Vec<String> {
        let calls = std::mem::take(&mut self.state.lock().calls);
        calls.iter().map(|call| format!("{} {}", call.method, call.path)).collect()
    }

    /// The next request whose `METHOD path` contains this meets with a fault.
    pub(crate) fn fault(&self, on: &str, fault: Fault) {
        self.state.lock().faults.push_back((on.to_owned(), fault));
    }

    /// Keeps watch events back, or lets them go.
    pub(crate) fn quiet(&self, quiet: bool) {
        let mut state = self.state.lock();
        state.quiet = quiet;
        if !quiet {
            for (collection, event) in std::mem::take(&mut state.kept) {
                state.tell(&collection, &event);
            }
        }
    }

    /// The server drops these status fields of a Website.
    pub(crate) fn prune(&self, fields: &[&'static str]) {
        self.state.lock().pruned = fields.to_vec();
    }

    /// Another writer puts an object there.
    pub(crate) fn put(&self, collection: &str, mut object: Value) -> Value {
        let mut state = self.state.lock();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let place = Place::parse(&format!("{collection}/{name}"));
        let known = state.objects.get(&(collection.to_owned(), name.clone())).cloned();
        let meta = object["metadata"].as_object_mut().unwrap();
        if let Some(namespace) = &place.namespace {
            meta.insert("namespace".to_owned(), json!(namespace));
        }
        if let Some(known) = &known {
            meta.insert("uid".to_owned(), known["metadata"]["uid"].clone());
        }
        state.store(collection, &name, object, known.as_ref())
    }

    /// Another writer changes an object.
    pub(crate) fn patch(&self, collection: &str, name: &str, patch: &Value) -> Value {
        let mut state = self.state.lock();
        let known = state.objects.get(&(collection.to_owned(), name.to_owned())).cloned().unwrap();
        let mut object = known.clone();
        diff::merge(&mut object, patch);
        state.store(collection, name, object, Some(&known))
    }

    /// Another writer deletes an object.
    pub(crate) fn delete(&self, collection: &str, name: &str) {
        let mut state = self.state.lock();
        state.drop_object(collection, name);
    }

    pub(crate) fn object(&self, collection: &str, name: &str) -> Option<Value> {
        self.state.lock().objects.get(&(collection.to_owned(), name.to_owned())).cloned()
    }

    async fn serve(&self, head: &http::request::Parts, body: &[u8]) -> Result<Answer, std::io::Error> {
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        if let Some(list) = discovery(&path) {
            return Ok(answer(200, &list));
        }
        let place = Place::parse(&path);
        if head.method == http::Method::GET && place.name.is_none() {
            return Ok(self.list(&place, query.contains("watch=")));
        }
        let call = Call {
            method: head.method.to_string(),
            path: path.clone(),
            query,
            content_type: head
                .headers
                .get("content-type")
                .map(|value| value.to_str().unwrap().to_owned())
                .unwrap_or_default(),
            body: serde_json::from_slice(body).unwrap_or_default(),
        };
        let line = format!("{} {path}", call.method);
        let fault = {
            let mut state = self.state.lock();
            state.calls.push(call.clone());
            let index = state.faults.iter().position(|(on, _)| line.contains(on.as_str()));
            index.and_then(|index| state.faults.remove(index)).map(|(_, fault)| fault)
        };
        match fault {
            None => {}
            Some(Fault::Answer(status, headers, body)) => {
                let mut response = answer(status, &body);
                for (name, value) in headers {
                    response.headers_mut().append(name, value.parse().unwrap());
                }
                return Ok(response);
            }
            Some(Fault::CutAfter) => {
                self.carry_out(&place, &call);
                return Err(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "cut"));
            }
            Some(Fault::Hang) => {
                self.carry_out(&place, &call);
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::Before(change)) => {
                self.patch(&place.collection(), place.name.as_deref().unwrap(), &change);
            }
        }
        let (status, body) = self.carry_out(&place, &call);
        Ok(answer(status, &body))
    }

    fn list(&self, place: &Place, watch: bool) -> Answer {
        let mut state = self.state.lock();
        let collection = place.collection();
        if watch {
            let (sender, receiver) = mpsc::unbounded_channel();
            state.watchers.push((collection, sender));
            let frames = futures::stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|bytes| (Ok::<_, std::io::Error>(Frame::data(bytes)), receiver))
            });
            return Response::builder().status(200).body(StreamBody::new(frames).boxed_unsync()).unwrap();
        }
        let items: Vec<&Value> = state
            .objects
            .iter()
            .filter(|((of, _), _)| covers(&collection, of))
            .map(|(_, object)| object)
            .collect();
        let (_, _, kind, _) = KINDS.iter().find(|(_, plural, _, _)| *plural == place.plural).unwrap();
        answer(
            200,
            &json!({"apiVersion": place.group_version, "kind": format!("{kind}List"),
                "metadata": {"resourceVersion": state.version.max(1).to_string()}, "items": items}),
        )
    }

    fn carry_out(&self, place: &Place, call: &Call) -> (u16, Value) {
        let mut state = self.state.lock();
        let collection = place.collection();
        let name = match (&place.name, call.body["metadata"]["generateName"].as_str()) {
            (Some(name), _) => name.clone(),
            (None, Some(prefix)) => format!("{prefix}x{}", state.uids),
            (None, None) => call.body["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        };
        let known = state.objects.get(&(collection.clone(), name.clone())).cloned();
        if let Some(subresource @ ("token" | "eviction" | "binding" | "scale")) = place.subresource.as_deref()
        {
            return (201, json!({"kind": "Answer", "subresource": subresource, "status": {"token": "t"}}));
        }
        if call.query.contains("dryRun=All") {
            return (200, call.body.clone());
        }
        let result = match (call.method.as_str(), call.content_type.as_str(), known) {
            ("GET", _, Some(known)) => return (200, known),
            ("POST", _, Some(_)) => Err(status(409, "AlreadyExists", "already exists", &[])),
            ("POST", _, None) => {
                let mut object = call.body.clone();
                object["metadata"]["name"] = json!(name);
                Ok((201, state.store(&collection, &name, object, None)))
            }
            ("DELETE", _, Some(known)) => return state.delete(&collection, &name, &known, &call.body),
            ("PATCH", "application/apply-patch+yaml", known) => {
                state.apply(&collection, &name, place, call, known.as_ref())
            }
            ("GET" | "DELETE" | "PATCH" | "PUT", _, None) => Err(not_found(&name)),
            ("PATCH", "application/json-patch+json", Some(known)) => json_patch(&known, &call.body)
                .map(|object| (200, state.write(&collection, &name, place, object, &known))),
            ("PATCH", _, Some(known)) => check(&known, &call.body, place).map(|()| {
                let mut object = known.clone();
                diff::merge(&mut object, &call.body);
                (200, state.write(&collection, &name, place, object, &known))
            }),
            ("PUT", _, Some(known)) => check(&known, &call.body, place)
                .map(|()| (200, state.write(&collection, &name, place, call.body.clone(), &known))),
            other => panic!("no such request: {other:?}"),
        };
        result.unwrap_or_else(|refusal| refusal)
    }
}

// === impl State ===

impl State {
    /// Stores a new state, if it is one, and tells the watchers.
    fn store(&mut self, collection: &str, name: &str, mut object: Value, known: Option<&Value>) -> Value {
        let meta = object["metadata"].as_object_mut().unwrap();
        meta.remove("resourceVersion");
        if let Some(known) = known {
            meta.insert("resourceVersion".to_owned(), known["metadata"]["resourceVersion"].clone());
            if object == *known {
                return object;
            }
        } else {
            self.uids += 1;
            meta.insert("uid".to_owned(), json!(format!("uid-{}", self.uids)));
        }
        self.version += 1;
        let changed = known.is_none_or(|known| known.get("spec") != object.get("spec"));
        let generation = known.and_then(|known| known["metadata"]["generation"].as_u64()).unwrap_or(0);
        let meta = object["metadata"].as_object_mut().unwrap();
        meta.insert("resourceVersion".to_owned(), json!((self.version + 1).to_string()));
        if object.get("spec").is_some() {
            let meta = object["metadata"].as_object_mut().unwrap();
            meta.insert("generation".to_owned(), json!(generation + u64::from(changed)));
        }
        let meta = object["metadata"].as_object().unwrap();
        let finished = meta.contains_key("deletionTimestamp")
            && meta.get("finalizers").and_then(Value::as_array).is_none_or(Vec::is_empty);
        if finished {
            // As the real server: the answer has the old version.
            object["metadata"]["resourceVersion"] = known.unwrap()["metadata"]["resourceVersion"].clone();
            self.drop_object(collection, name);
            return object;
        }
        self.objects.insert((collection.to_owned(), name.to_owned()), object.clone());
        self.event(collection, if known.is_some() { "MODIFIED" } else { "ADDED" }, &object);
        object
    }

    /// A write to the object itself or to its status.
    fn write(
        &mut self,
        collection: &str,
        name: &str,
        place: &Place,
        mut object: Value,
        known: &Value,
    ) -> Value {
        if place.subresource.as_deref() == Some("status") {
            let mut status = object["status"].take();
            if let Some(status) = status.as_object_mut() {
                for field in &self.pruned {
                    status.remove(*field);
                }
            }
            object = known.clone();
            object["status"] = status;
        } else if place.has_status() {
            match known.get("status") {
                Some(status) => object["status"] = status.clone(),
                None => {
                    object.as_object_mut().unwrap().remove("status");
                }
            }
        }
        object["metadata"]["uid"] = known["metadata"]["uid"].clone();
        self.store(collection, name, object, Some(known))
    }

    fn apply(
        &mut self,
        collection: &str,
        name: &str,
        place: &Place,
        call: &Call,
        known: Option<&Value>,
    ) -> Result<(u16, Value), (u16, Value)> {
        let manager =
            call.query.split('&').find_map(|pair| pair.strip_prefix("fieldManager=")).unwrap().to_owned();
        let key = (collection.to_owned(), name.to_owned(), format!("{manager}{:?}", place.subresource));
        let mut applied = call.body.clone();
        let meta = applied["metadata"].as_object_mut().unwrap();
        let (version, uid) = (meta.remove("resourceVersion"), meta.remove("uid"));
        let Some(known) = known else {
            if uid.is_some() {
                return Err(status(409, "Conflict", "uid mismatch", &[]));
            }
            let mut object = applied.clone();
            if let Some(namespace) = &place.namespace {
                object["metadata"]["namespace"] = json!(namespace);
            }
            self.applied.insert(key, applied);
            return Ok((201, self.store(collection, name, object, None)));
        };
        if version.is_some_and(|version| version != known["metadata"]["resourceVersion"]) {
            return Err(status(409, "Conflict", "the object has been modified", &[]));
        }
        if uid.is_some_and(|uid| uid != known["metadata"]["uid"]) && place.subresource.is_none() {
            return Err(status(422, "Invalid", "metadata.uid: field is immutable", &["metadata.uid"]));
        }
        let before = self.applied.insert(key, applied.clone()).unwrap_or_else(|| json!({}));
        let mut object = known.clone();
        let change = diff::diff(before.as_object().unwrap(), applied.as_object().unwrap());
        diff::merge(&mut object, &Value::Object(change));
        diff::merge(&mut object, &applied);
        Ok((200, self.write(collection, name, place, object, known)))
    }

    fn delete(&mut self, collection: &str, name: &str, known: &Value, options: &Value) -> (u16, Value) {
        let uid = &options["preconditions"]["uid"];
        if !uid.is_null() && *uid != known["metadata"]["uid"] {
            return status(409, "Conflict", "the UID in the precondition does not match", &[]);
        }
        if known["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()) {
            let mut object = known.clone();
            object["metadata"]["deletionTimestamp"] = json!("2026-12-01T00:00:00Z");
            return (200, self.store(collection, name, object, Some(known)));
        }
        self.drop_object(collection, name);
        if known["kind"] == "Service" {
            return (200, known.clone());
        }
        (200, json!({"kind": "Status", "status": "Success", "details": {"uid": known["metadata"]["uid"]}}))
    }

    fn drop_object(&mut self, collection: &str, name: &str) {
        let key = (collection.to_owned(), name.to_owned());
        let Some(mut object) = self.objects.remove(&key) else { return };
        self.applied.retain(|(of, known, _), _| !(of == collection && known == name));
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!((self.version + 1).to_string());
        self.event(collection, "DELETED", &object);
    }

    fn event(&mut self, collection: &str, kind: &str, object: &Value) {
        let line = Bytes::from(json!({"type": kind, "object": object}).to_string() + "\n");
        if self.quiet {
            self.kept.push((collection.to_owned(), line));
        } else {
            self.tell(collection, &line);
        }
    }

    fn tell(&mut self, collection: &str, line: &Bytes) {
        self.watchers
            .retain(|(watched, sender)| !covers(watched, collection) || sender.send(line.clone()).is_ok());
    }
}

// === impl Place ===

impl Place {
    fn parse(path: &str) -> Self {
        let mut parts: VecDeque<&str> = path.trim_start_matches('/').split('/').collect();
        let group_version = match parts.pop_front() {
            Some("api") => parts.pop_front().unwrap().to_owned(),
            _ => format!("{}/{}", parts.pop_front().unwrap(), parts.pop_front().unwrap()),
        };
        let namespace = (parts.front() == Some(&"namespaces") && parts.len() > 2).then(|| {
            parts.pop_front();
            parts.pop_front().unwrap().to_owned()
        });
        let mut next = || parts.pop_front().map(str::to_owned);
        Self { group_version, namespace, plural: next().unwrap(), name: next(), subresource: next() }
    }

    fn collection(&self) -> String {
        let prefix = if self.group_version.contains('/') { "/apis" } else { "/api" };
        let namespace =
            self.namespace.as_ref().map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        format!("{prefix}/{}{namespace}/{}", self.group_version, self.plural)
    }

    fn has_status(&self) -> bool {
        KINDS
            .iter()
            .any(|(_, plural, _, subresources)| *plural == self.plural && subresources.contains(&"status"))
    }
}

/// Whether a watch of one collection sees another: the same, or the one without a namespace.
fn covers(watched: &str, collection: &str) -> bool {
    if watched == collection {
        return true;
    }
    let Some((prefix, rest)) = collection.split_once("/namespaces/") else { return false };
    rest.split_once('/').is_some_and(|(_, plural)| watched == format!("{prefix}/{plural}"))
}

fn check(known: &Value, patch: &Value, place: &Place) -> Result<(), (u16, Value)> {
    let meta = &patch["metadata"];
    if !meta["resourceVersion"].is_null() && meta["resourceVersion"] != known["metadata"]["resourceVersion"] {
        return Err(status(409, "Conflict", "the object has been modified", &[]));
    }
    if !meta["uid"].is_null() && meta["uid"] != known["metadata"]["uid"] && place.subresource.is_none() {
        return Err(status(422, "Invalid", "metadata.uid: field is immutable", &["metadata.uid"]));
    }
    Ok(())
}

fn json_patch(known: &Value, operations: &Value) -> Result<Value, (u16, Value)> {
    let failed =
        || status(422, "Invalid", "the server rejected our request due to an error in our request", &[]);
    let mut object = known.clone();
    for operation in operations.as_array().unwrap() {
        let path = operation["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        match operation["op"].as_str().unwrap() {
            "test" => {
                if object.pointer(path).unwrap_or(&Value::Null) != &operation["value"] {
                    return Err(failed());
                }
            }
            "remove" => match object.pointer_mut(parent) {
                Some(Value::Array(list)) => {
                    list.remove(key.parse().unwrap());
                }
                Some(Value::Object(map)) => {
                    map.remove(key);
                }
                _ => return Err(failed()),
            },
            "add" | "replace" => match object.pointer_mut(parent) {
                Some(Value::Array(list)) => list.push(operation["value"].clone()),
                Some(Value::Object(map)) => {
                    map.insert(key.to_owned(), operation["value"].clone());
                }
                _ => return Err(failed()),
            },
            other => panic!("no such operation: {other}"),
        }
    }
    Ok(object)
}

fn status(code: u16, reason: &str, message: &str, fields: &[&str]) -> (u16, Value) {
    let causes: Vec<Value> =
        fields.iter().map(|field| json!({"field": field, "reason": "FieldValueInvalid"})).collect();
    let body = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": {"causes": causes}});
    (code, body)
}

fn not_found(name: &str) -> (u16, Value) {
    status(404, "NotFound", &format!("{name:?} not found"), &[])
}

fn discovery(path: &str) -> Option<Value> {
    let group_version = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
    let resources: Vec<Value> = KINDS
        .iter()
        .filter(|(known, ..)| *known == group_version)
        .flat_map(|(_, plural, kind, subresources)| {
            let main = json!({"name": plural, "kind": kind, "namespaced": true, "verbs": ["get", "list", "watch", "patch"]});
            let others = subresources.iter().map(move |sub| json!({"name": format!("{plural}/{sub}"), "kind": kind, "namespaced": true, "verbs": ["patch"]}));
            std::iter::once(main).chain(others)
        })
        .collect();
    (!resources.is_empty())
        .then(|| json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}))
}

fn answer(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}
