//! Guests from WebAssembly text, a cache to read from, and a sandbox to run them in.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::grant::{Ceiling, Grant};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::object::{ManagedFields, Object, SharedObject};
use reeve_core::plan::Outcome;
use reeve_core::read::{Query, ReadError, Reader};
use reeve_core::reason::Reason;
use reeve_sandbox::{Loaded, Plugin, Reject, Request, Role, Sandbox, SandboxConfig};
use serde_json::{Value, json};

/// Two threads, as many as it takes to see that one guest does not hold up another.
pub(crate) fn sandbox() -> Sandbox {
    sandbox_with(|_| ()).0
}

pub(crate) fn sandbox_with(change: impl FnOnce(&mut SandboxConfig)) -> (Sandbox, prometheus::Registry) {
    let registry = prometheus::Registry::new();
    let mut config = SandboxConfig { threads: 2, max_instances: 16, ..SandboxConfig::default() };
    change(&mut config);
    (Sandbox::new(config, &registry).expect("a sandbox"), registry)
}

/// A guest in the making: what its functions do, and what its manifest says.
#[derive(Clone)]
pub(crate) struct Guest {
    manifest: Value,
    roles: Vec<&'static str>,
    describe: String,
    reconcile: String,
    map: String,
    extra: String,
    abi: &'static str,
    /// Package, interface and version of one more import.
    import: Option<(&'static str, &'static str, &'static str)>,
}

/// Where the area is that a host call fills, and that `reconcile` returns.
pub(crate) const RET: u32 = 64;

/// The host's functions as a core module sees them, in WIT's canonical flattening.
const IMPORTS: &str = r#"
(import "HOST" "log" (func $log (param i32 i32 i32 i32 i32)))
(import "HOST" "[method]context.primary" (func $primary (param i32 i32)))
(import "HOST" "[method]context.remaining-ms" (func $remaining (param i32) (result i64)))
(import "HOST" "[method]context.cancelled" (func $cancelled (param i32) (result i32)))
(import "HOST" "[method]context.get" (func $get (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
(import "HOST" "[method]context.list-objects" (func $list (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
(import "HOST" "[method]context.children" (func $children (param i32 i32 i32 i32 i32 i32 i32 i32)))
(import "HOST" "[method]context.apply-child" (func $apply (param i32 i32 i32 i32 i32 i32)))
(import "HOST" "[method]context.children-complete" (func $complete (param i32)))
(import "HOST" "[method]context.set-status" (func $status (param i32 i32 i32 i32)))
(import "HOST" "[method]context.emit-event" (func $event (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
(import "HOST" "[method]context.write" (func $write (param i32 i32 i32 i32 i32 i32 i32)))
(import "HOST" "[method]context.wait-for" (func $wait (param i32 i32 i32 i32)))
(import "HOST" "[method]context.requeue-after" (func $requeue (param i32 i64)))
(import "HOST" "[method]object.generation" (func $generation (param i32) (result i64)))
(import "HOST" "[method]object.get-many" (func $get-many (param i32 i32 i32 i32)))
(import "HOST" "[method]object-list.len" (func $len (param i32) (result i32)))
(import "HOST" "[method]object-list.at" (func $at (param i32 i32 i32)))
(import "HOST" "[resource-drop]object" (func $drop-object (param i32)))
(import "HOST" "[resource-drop]object-list" (func $drop-list (param i32)))
(import "HOST" "[resource-drop]context" (func $drop-context (param i32)))
"#;

/// Where the manifest lies in the guest's memory; texts of a test lie before it.
const MANIFEST_AT: usize = 8_192;

impl Guest {
    /// A guest whose `reconcile` is this. The context is the local `$ctx`; `RET` is where results
    /// go, and what is there at the end is returned. At first that is ok.
    pub(crate) fn reconcile(body: &str) -> Self {
        Self {
            manifest: json!({
                "name": "test",
                "version": "1.0.0",
                "primary": {"apiVersion": "test.reeve.dev/v1", "kind": "Thing"},
                "watches": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "relation": "owned"},
                    {"apiVersion": "v1", "kind": "Secret", "relation": "read"},
                ],
            }),
            roles: vec!["plugin", "reconciler"],
            describe: String::new(),
            reconcile: body.to_owned(),
            map: String::new(),
            extra: String::new(),
            abi: "0.1.0",
            import: None,
        }
    }

    pub(crate) fn named(mut self, name: &str) -> Self {
        self.manifest["name"] = name.into();
        self
    }

    pub(crate) fn limits(mut self, limits: Value) -> Self {
        self.manifest["limits"] = limits;
        self
    }

    pub(crate) fn manifest(mut self, key: &str, value: Value) -> Self {
        self.manifest[key] = value;
        self
    }

    /// Runs before `describe` returns.
    pub(crate) fn describe(mut self, body: &str) -> Self {
        body.clone_into(&mut self.describe);
        self
    }

    /// Exports a mapper as well; the watch's object is the local `$object`.
    pub(crate) fn map(mut self, body: &str) -> Self {
        self.roles.push("mapper");
        body.clone_into(&mut self.map);
        self
    }

    pub(crate) fn role(mut self, role: &'static str) -> Self {
        self.roles.push(role);
        self
    }

    pub(crate) fn without_role(mut self, role: &str) -> Self {
        self.roles.retain(|known| *known != role);
        self
    }

    /// Definitions beside the functions: data, functions, imports of other interfaces come first.
    pub(crate) fn with(mut self, extra: &str) -> Self {
        self.extra.push_str(extra);
        self
    }

    /// Built for another version of the contract.
    pub(crate) fn abi(mut self, version: &'static str) -> Self {
        self.abi = version;
        self
    }

    /// Imports `get-arguments` of one more interface.
    pub(crate) fn importing(
        mut self,
        package: &'static str,
        interface: &'static str,
        version: &'static str,
    ) -> Self {
        self.import = Some((package, interface, version));
        self
    }

    /// The core module, with the contract in its `component-type` section.
    pub(crate) fn module(&self) -> Vec<u8> {
        let manifest = self.manifest.to_string();
        let host = format!("reeve:plugin/host@{}", self.abi);
        let mut imports = IMPORTS.replace("HOST", &host);
        if let Some((package, interface, version)) = self.import {
            imports.push_str(&format!(
                r#"(import "{package}/{interface}@{version}" "get-arguments" (func $arguments (param i32)))"#
            ));
        }
        let export =
            |interface: &str, function: &str| format!("reeve:plugin/{interface}@{}#{function}", self.abi);
        let mut functions = String::new();
        for role in &self.roles {
            functions.push_str(&match *role {
                "plugin" => format!(
                    r#"(func (export "{}") (result i32)
                        {}
                        (i32.store (i32.const 8) (i32.const {MANIFEST_AT}))
                        (i32.store (i32.const 12) (i32.const {}))
                        (i32.const 8))"#,
                    export("plugin", "describe"),
                    self.describe,
                    manifest.len()
                ),
                "reconciler" => format!(
                    r#"(func (export "{}") (param $ctx i32) (result i32)
                        (local $i i32) (local $a i32) (local $b i32) (local $n i64)
                        {} (call $drop-context (local.get $ctx)) (i32.const {RET}))"#,
                    export("reconciler", "reconcile"),
                    self.reconcile
                ),
                "cleanup" => format!(
                    r#"(func (export "{}") (param $ctx i32) (result i32)
                        (call $requeue (local.get $ctx) (i64.const 77))
                        (call $drop-context (local.get $ctx)) (i32.const {RET}))"#,
                    export("cleanup", "cleanup")
                ),
                _ => format!(
                    r#"(func (export "{}") (param $watch i32) (param $len i32) (param $object i32) (result i32)
                        {} (call $drop-object (local.get $object)) (i32.const {RET}))"#,
                    export("mapper", "map"),
                    self.map
                ),
            });
        }
        let text = format!(
            r#"(module
                {imports}
                (memory (export "memory") 2)
                (global $heap (mut i32) (i32.const 65536))
                (data (i32.const {MANIFEST_AT}) "{}")
                {}
                {functions}
                (func $alloc (export "cabi_realloc") (param $old i32) (param $size i32) (param $align i32) (param $new i32) (result i32)
                    (local $at i32) (local $end i32)
                    (local.set $at (i32.and
                        (i32.add (global.get $heap) (i32.sub (local.get $align) (i32.const 1)))
                        (i32.sub (i32.const 0) (local.get $align))))
                    (local.set $end (i32.add (local.get $at) (local.get $new)))
                    (global.set $heap (local.get $end))
                    (if (i32.gt_u (local.get $end) (i32.mul (memory.size) (i32.const 65536)))
                        (then (drop (memory.grow (i32.add (i32.const 1)
                            (i32.div_u (i32.sub (local.get $end) (i32.mul (memory.size) (i32.const 65536))) (i32.const 65536)))))))
                    (memory.copy (local.get $at) (local.get $old) (local.get $size))
                    (local.get $at)))"#,
            manifest.replace('\\', "\\\\").replace('"', "\\\""),
            self.extra,
        );
        let mut module = wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"));
        let (resolve, world) = self.world();
        let encoding = wit_component::StringEncoding::UTF8;
        wit_component::embed_component_metadata(&mut module, &resolve, world, encoding).expect("metadata");
        module
    }

    fn world(&self) -> (wit_parser::Resolve, wit_parser::WorldId) {
        let contract = include_str!("../../../../wit/0.1.0/reeve.wit");
        let mut contract = contract.replace("reeve:plugin@0.1.0", &format!("reeve:plugin@{}", self.abi));
        contract.push_str("\nworld test {\nimport host;\n");
        for role in &self.roles {
            contract.push_str(&format!("export {role};\n"));
        }
        if let Some((package, interface, version)) = self.import {
            contract.push_str(&format!("import {package}/{interface}@{version};\n"));
        }
        contract.push_str("}\n");
        if let Some((package, interface, version)) = self.import {
            contract.push_str(&format!(
                "package {package}@{version} {{ interface {interface} {{ get-arguments: func() -> list<string>; }} }}\n"
            ));
        }
        let mut resolve = wit_parser::Resolve::default();
        let package = resolve.push_str("reeve.wit", &contract).expect("the contract");
        let world = resolve.select_world(&[package], Some("test")).expect("the world");
        (resolve, world)
    }

    /// The component.
    pub(crate) fn component(&self) -> Vec<u8> {
        let module = self.module();
        let mut encoder =
            wit_component::ComponentEncoder::default().validate(true).module(&module).expect("a module");
        encoder.encode().expect("a component")
    }

    pub(crate) async fn load(&self, sandbox: &Sandbox) -> Loaded {
        sandbox.load(self.component().into()).await.unwrap_or_else(|reject| panic!("{reject}"))
    }

    pub(crate) async fn plugin(&self, sandbox: &Sandbox) -> Plugin {
        let loaded = self.load(sandbox).await;
        sandbox.link(&loaded, grant(&loaded)).unwrap_or_else(|reject| panic!("{reject}"))
    }
}

/// Everything that the manifest declares.
pub(crate) fn grant(loaded: &Loaded) -> Arc<Grant> {
    let ceiling = Ceiling::default_in("reeve-system");
    let cleanup = loaded.inspection().roles.cleanup;
    Arc::new(Grant::effective(loaded.manifest(), cleanup, &ceiling).expect("a grant"))
}

/// `(data …)` of a text, and the two constants that point to it.
pub(crate) fn text(at: usize, text: &str) -> (String, String) {
    assert!(
        at >= 1_024 && at + text.len() <= MANIFEST_AT,
        "no room for a text of {} bytes at {at}",
        text.len()
    );
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    (format!("(data (i32.const {at}) \"{escaped}\")"), format!("(i32.const {at}) (i32.const {})", text.len()))
}

/// A cache that a test changes at will.
#[derive(Default)]
pub(crate) struct Cache {
    objects: Mutex<HashMap<Gvk, Vec<SharedObject>>>,
    /// Reads of this kind never end.
    pub(crate) held: Mutex<Option<Gvk>>,
    pub(crate) reads: Mutex<u32>,
}

impl Cache {
    pub(crate) fn put(&self, gvk: &Gvk, object: SharedObject) {
        let mut objects = self.objects.lock();
        let list = objects.entry(gvk.clone()).or_default();
        list.retain(|known| known.meta().name != object.meta().name);
        list.push(object);
        list.sort_by(|a, b| a.meta().name.cmp(&b.meta().name));
    }

    fn of(&self, gvk: &Gvk) -> Vec<SharedObject> {
        *self.reads.lock() += 1;
        self.objects.lock().get(gvk).cloned().unwrap_or_default()
    }
}

impl Reader for Cache {
    fn get(&self, gvk: &Gvk, name: &ObjectName) -> Result<Option<SharedObject>, ReadError> {
        Ok(self.of(gvk).into_iter().find(|object| object.meta().name == *name))
    }

    fn list(&self, gvk: &Gvk, query: &Query) -> Result<Arc<[SharedObject]>, ReadError> {
        if let Some((index, _)) = &query.index {
            return Err(ReadError::NoIndex(gvk.clone(), index.to_string()));
        }
        let matches = |object: &SharedObject| {
            let meta = object.meta();
            query.namespace.is_none() || query.namespace == meta.name.namespace
        };
        Ok(self.of(gvk).into_iter().filter(matches).collect())
    }

    fn held(&self, gvk: &Gvk, _: Option<&ObjectName>) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let held = self.held.lock().as_ref() == Some(gvk);
        held.then(|| Box::pin(std::future::pending()) as _)
    }
}

pub(crate) fn config_map() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

pub(crate) fn thing() -> Gvk {
    Gvk::new("test.reeve.dev", "v1", "Thing")
}

/// An object of namespace `web`; its generation is what guests tell versions apart by.
pub(crate) fn object(gvk: &Gvk, name: &str, generation: u64) -> SharedObject {
    let json = json!({
        "apiVersion": gvk.api_version(),
        "kind": &*gvk.kind,
        "metadata": {
            "name": name, "namespace": "web", "uid": format!("uid-{name}"),
            "resourceVersion": generation.to_string(), "generation": generation,
        },
    });
    Arc::new(Object::parse(gvk, &json.to_string(), ManagedFields::Strip).expect("an object"))
}

/// A run for the object `web/x`.
pub(crate) fn request(reader: Arc<Cache>) -> Request {
    Request {
        name: ObjectName::namespaced("web", "x"),
        primary: Some(object(&thing(), "x", 3)),
        reasons: Reason::Created.into(),
        attempt: 1,
        reader,
        config: "null".into(),
        answers: Arc::default(),
        cancel: tokio_util::sync::CancellationToken::new(),
    }
}

pub(crate) async fn reconcile(plugin: &Plugin) -> Outcome {
    plugin.run(Role::Reconcile, request(Arc::default())).await
}

/// Loads, links and runs a guest once.
pub(crate) async fn run(guest: &Guest) -> Outcome {
    let sandbox = sandbox();
    let plugin = guest.plugin(&sandbox).await;
    reconcile(&plugin).await
}

/// Code and message of a failure.
pub(crate) fn failure(outcome: &Outcome) -> (&str, &str) {
    let (_, failure) = outcome.failure.as_ref().expect("a failure");
    (&failure.code, &failure.message)
}

pub(crate) async fn rejected(sandbox: &Sandbox, bytes: Vec<u8>) -> Reject {
    sandbox.load(bytes.into()).await.expect_err("it was taken")
}

/// The value of a counter or gauge with these labels.
pub(crate) fn metric(registry: &prometheus::Registry, name: &str, labels: &[(&str, &str)]) -> u64 {
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
    let of = |line: &&str| {
        let rest = line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        rest && labels.iter().all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")))
    };
    let line = text.lines().find(of).unwrap_or_else(|| panic!("no {name} with {labels:?}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a whole number")
}

/// Longer than anything here takes on a slow machine; a test that waits for it has failed.
pub(crate) const LONG: Duration = Duration::from_mins(1);
