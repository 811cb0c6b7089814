//! What is taken and what is refused, and with which words.

use reeve_sandbox::{Reject, Sandbox};
use serde_json::json;

use crate::support::*;

async fn refused(sandbox: &Sandbox, bytes: Vec<u8>, parts: &[&str]) {
    let text = rejected(sandbox, bytes).await.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn what_is_no_plugin_is_refused_with_reason_and_remedy() {
    let (sandbox, _) = sandbox_with(|config| config.max_component_bytes = 1 << 20);
    let good = Guest::reconcile("");
    refused(&sandbox, Vec::new(), &["no WebAssembly", "empty"]).await;
    refused(&sandbox, b"hello, world".to_vec(), &["no WebAssembly", "hello", "reeve build"]).await;
    refused(&sandbox, vec![0; 2 << 20], &["2097152 bytes", "1048576"]).await;
    refused(&sandbox, b"\0asm\x02\0\0\0".to_vec(), &["unknown version"]).await;
    let mut cut = good.component();
    cut.truncate(cut.len() / 2);
    refused(&sandbox, cut, &["no valid WebAssembly", "cut"]).await;
    let plain = wat::parse_str("(module)").expect("a module");
    refused(&sandbox, plain, &["core module", "component-type"]).await;
    let empty = wat::parse_str("(component)").expect("a component");
    refused(&sandbox, empty, &["exports no reeve:plugin", "nothing"]).await;
    refused(&sandbox, good.clone().without_role("reconciler").component(), &["reeve:plugin/reconciler"])
        .await;
    refused(&sandbox, good.clone().without_role("plugin").component(), &["reeve:plugin/plugin"]).await;
}

#[tokio::test]
async fn another_contract_is_refused_by_which_side_is_older() {
    let sandbox = sandbox();
    let guest = Guest::reconcile("");
    refused(&sandbox, guest.clone().abi("0.2.0").component(), &["@0.2.0", "a newer host is needed"]).await;
    refused(&sandbox, guest.clone().abi("1.0.0").component(), &["@1.0.0", "a newer host is needed"]).await;
    refused(&sandbox, guest.clone().abi("0.0.9").component(), &["@0.0.9", "newer reeve-sdk"]).await;
    // A patch of the same line only adds.
    let patch = guest.abi("0.1.7").component();
    let loaded = sandbox.load(patch.into()).await.expect("it is of the same line");
    assert_eq!(loaded.inspection().abi, "0.1.7");
    sandbox.link(&loaded, grant(&loaded)).expect("it uses nothing new");
}

#[tokio::test]
async fn native_code_is_taken_from_nobody() {
    let engine = wasmtime::Engine::default();
    let native = engine.precompile_component(&Guest::reconcile("").component()).expect("it compiles");
    let sandbox = sandbox();
    assert!(matches!(rejected(&sandbox, native).await, Reject::Precompiled));
}

/// The component imports what nobody grants: `describe` works without a grant, link does not.
#[tokio::test]
async fn an_import_that_is_not_granted_is_refused_by_name() {
    let sandbox = sandbox();
    for (package, interface, version, part) in [
        ("evil:cli", "environment", "0.2.6", "remove what brings it in"),
        ("wasi:http", "outgoing-handler", "0.2.6", "HTTP"),
        ("wasi:sockets", "tcp-create-socket", "0.2.6", "no network"),
        ("wasi:cli", "environment", "0.3.0", "WASI 0.2"),
    ] {
        let guest =
            Guest::reconcile("(call $arguments (i32.const 256))").importing(package, interface, version);
        let loaded = guest.load(&sandbox).await;
        let text = sandbox.link(&loaded, grant(&loaded)).expect_err("it linked").to_string();
        let name = format!("{package}/{interface}@{version}");
        assert!(text.contains(&name) && text.contains(part), "{text}");
    }
    let harmless =
        Guest::reconcile("(call $arguments (i32.const 256))").importing("wasi:cli", "environment", "0.2.6");
    let outcome = reconcile(&harmless.plugin(&sandbox).await).await;
    assert_eq!(outcome.failure, None, "the empty WASI is there for everyone");
}

#[tokio::test]
async fn describe_runs_without_anything_and_says_how_it_failed() {
    let (data, words) = text(1_024, "no manifest today");
    let sandbox = sandbox();
    let panics = format!("(call $log (i32.const 4) {words} (i32.const 0) (i32.const 0)) unreachable");
    let guest = Guest::reconcile("").with(&data).describe(&panics);
    refused(&sandbox, guest.component(), &["`describe` failed", "no manifest today", "call nothing"]).await;
    let loops = Guest::reconcile("").describe("(loop $again (br $again))");
    refused(&sandbox, loops.component(), &["`describe` failed", "1000 ms"]).await;
    let eats = Guest::reconcile("").describe("(loop $again (drop (memory.grow (i32.const 64))) (br $again))");
    refused(&sandbox, eats.component(), &["`describe` failed", "67108864"]).await;
    let calls = Guest::reconcile("").describe("(call $arguments (i32.const 256))").importing(
        "evil:cli",
        "environment",
        "0.2.6",
    );
    refused(&sandbox, calls.component(), &["`describe` failed"]).await;
}

#[tokio::test]
async fn a_manifest_that_is_not_usable_is_refused() {
    let (sandbox, _) = sandbox_with(|config| config.max_memory_mib = 128);
    let guest = || Guest::reconcile("");
    refused(&sandbox, guest().manifest("shadow", json!(true)).component(), &["shadow", "newer host"]).await;
    refused(&sandbox, guest().named("Not A Label").component(), &["Not A Label"]).await;
    refused(&sandbox, guest().limits(json!({"memoryMib": 256})).component(), &["256", "128", "ceiling"])
        .await;
    let mapped = json!([{"apiVersion": "v1", "kind": "Secret", "name": "secrets", "relation": "map"}]);
    refused(&sandbox, guest().manifest("watches", mapped).component(), &["\"secrets\"", "no mapper"]).await;
}

#[tokio::test]
async fn crds_travel_in_a_custom_section() {
    let mut module = Guest::reconcile("").module();
    let section = b"---\nkind: A\n---\nkind: B\n";
    let name = b"reeve:crds";
    module.extend_from_slice(&[0, u8::try_from(1 + name.len() + section.len()).expect("short")]);
    module.push(u8::try_from(name.len()).expect("short"));
    module.extend_from_slice(name);
    module.extend_from_slice(section);
    let inspection = sandbox().inspect(&module).expect("a plugin");
    assert_eq!(inspection.crds, ["kind: A\n", "kind: B\n"]);
    assert!(inspection.imports.iter().any(|import| import == "reeve:plugin/host@0.1.0"));
}

/// The same bytes are compiled once; a damaged entry is never trusted.
#[tokio::test]
async fn compiled_code_is_kept_and_checked() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("code");
    let bytes: std::sync::Arc<[u8]> =
        Guest::reconcile("(call $requeue (local.get $ctx) (i64.const 9))").component().into();
    let start = || sandbox_with(|config| config.cache_dir = Some(path.clone()));
    let hits = |registry| metric(registry, "reeve_sandbox_compile_cache_hits_total", &[]);

    let (sandbox, registry) = start();
    sandbox.load(bytes.clone()).await.expect("it loads");
    assert_eq!(hits(&registry), 0);

    let (sandbox, registry) = start();
    let loaded = sandbox.load(bytes.clone()).await.expect("it loads");
    assert_eq!((hits(&registry), loaded.compile_time()), (1, std::time::Duration::ZERO));
    let plugin = sandbox.link(&loaded, grant(&loaded)).expect("it links");
    assert_eq!(reconcile(&plugin).await.plan.requeue_after, Some(std::time::Duration::from_millis(9)));

    let code = std::fs::read_dir(&path).expect("the directory").map(|entry| entry.expect("an entry").path());
    let code =
        code.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "cwasm")).expect("code");
    let mut damaged = std::fs::read(&code).expect("code");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    // Another file of that name: the old one is mapped by the plugin above.
    std::fs::remove_file(&code).expect("removed");
    std::fs::write(&code, damaged).expect("written");

    let (sandbox, registry) = start();
    sandbox.load(bytes.clone()).await.expect("it is compiled again");
    assert_eq!(hits(&registry), 0);
    let (sandbox, registry) = start();
    sandbox.load(bytes).await.expect("it loads");
    assert_eq!(hits(&registry), 1);
}

/// A component whose `describe` fails leaves nothing behind that a later start would use.
#[tokio::test]
async fn code_without_a_manifest_is_not_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("code");
    let (sandbox, _) = sandbox_with(|config| config.cache_dir = Some(path.clone()));
    rejected(&sandbox, Guest::reconcile("").describe("unreachable").component()).await;
    assert_eq!(std::fs::read_dir(path).expect("the directory").count(), 0);
}
