//! The peer of `dispatch`: the same component on wasmtime alone, with the least that it links to.
//! A fresh store and instance for each call, the same pool, no limits, no grant, no async.

use reeve_core::json::pointer;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker, Resource, ResourceTable};
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

wasmtime::component::bindgen!({
    path: "../../wit/0.1.0",
    world: "all",
    imports: { default: trappable },
});

use reeve::plugin::host as wit;

/// A component that is ready to be instantiated.
pub(crate) struct Bare {
    engine: Engine,
    pre: InstancePre<State>,
    reconcile: wasmtime::component::ComponentExportIndex,
    object: &'static str,
}

struct State {
    wasi: WasiCtx,
    table: ResourceTable,
    object: &'static str,
    staged: usize,
}

impl Bare {
    pub(crate) fn new(bytes: &[u8], object: &'static str) -> wasmtime::Result<Self> {
        let engine = Engine::new(&settings())?;
        let component = Component::new(&engine, bytes)?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_sync(&mut linker)?;
        wit::add_to_linker::<_, HasSelf<_>>(&mut linker, |state: &mut State| state)?;
        let (_, interface) = component
            .get_export(None, "reeve:plugin/reconciler@0.1.0")
            .ok_or_else(|| wasmtime::Error::msg("no reconciler"))?;
        let (_, reconcile) = component
            .get_export(Some(&interface), "reconcile")
            .ok_or_else(|| wasmtime::Error::msg("no reconcile"))?;
        Ok(Self { pre: linker.instantiate_pre(&component)?, engine, reconcile, object })
    }

    /// Instantiates, calls, drops; returns how many children were staged.
    pub(crate) fn run(&self) -> wasmtime::Result<usize> {
        let state = State {
            wasi: WasiCtxBuilder::new().build(),
            table: ResourceTable::new(),
            object: self.object,
            staged: 0,
        };
        let mut store = Store::new(&self.engine, state);
        store.set_epoch_deadline(u64::MAX / 2);
        let instance = self.pre.instantiate(&mut store)?;
        let call = instance.get_typed_func::<(Resource<wit::Context>,), (Result<(), wit::Failure>,)>(
            &mut store,
            self.reconcile,
        )?;
        let (answer,) = call.call(&mut store, (Resource::new_own(0),))?;
        answer.map_err(|failure| wasmtime::Error::msg(failure.message))?;
        Ok(store.data().staged)
    }
}

fn settings() -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(8)
        .total_core_instances(32)
        .total_memories(8)
        .total_tables(16)
        .max_memory_size(64 << 20);
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.pagemap_scan(Enabled::Yes).linear_memory_keep_resident(1_200_000).table_keep_resident(8 << 10);
    }
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl wit::Host for State {
    fn log(&mut self, _: wit::Level, _: String, _: Vec<(String, String)>) -> wasmtime::Result<()> {
        Ok(())
    }
}

/// What the measured body never calls.
fn unused<T>() -> wasmtime::Result<T> {
    Err(wasmtime::Error::msg("the measured body does not call this"))
}

impl wit::HostObject for State {
    fn raw(&mut self, _: Resource<wit::Object>) -> wasmtime::Result<String> {
        Ok(self.object.to_owned())
    }

    fn get(&mut self, _: Resource<wit::Object>, at: String) -> wasmtime::Result<Option<String>> {
        Ok(pointer(self.object, &at).map(str::to_owned))
    }

    fn get_many(
        &mut self,
        _: Resource<wit::Object>,
        at: Vec<String>,
    ) -> wasmtime::Result<Vec<Option<String>>> {
        Ok(at.iter().map(|at| pointer(self.object, at).map(str::to_owned)).collect())
    }

    fn name(&mut self, _: Resource<wit::Object>) -> wasmtime::Result<wit::ObjectName> {
        Ok(wit::ObjectName { namespace: Some("bench".to_owned()), name: "one".to_owned() })
    }

    fn uid(&mut self, _: Resource<wit::Object>) -> wasmtime::Result<String> {
        Ok("u".to_owned())
    }

    fn resource_version(&mut self, _: Resource<wit::Object>) -> wasmtime::Result<String> {
        Ok("1".to_owned())
    }

    fn generation(&mut self, _: Resource<wit::Object>) -> wasmtime::Result<u64> {
        Ok(1)
    }

    fn deleting(&mut self, _: Resource<wit::Object>) -> wasmtime::Result<bool> {
        Ok(false)
    }

    fn drop(&mut self, _: Resource<wit::Object>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl wit::HostObjectList for State {
    fn len(&mut self, _: Resource<wit::ObjectList>) -> wasmtime::Result<u32> {
        unused()
    }

    fn raw(&mut self, _: Resource<wit::ObjectList>, _: u32) -> wasmtime::Result<Option<String>> {
        unused()
    }

    fn at(
        &mut self,
        _: Resource<wit::ObjectList>,
        _: u32,
    ) -> wasmtime::Result<Option<Resource<wit::Object>>> {
        unused()
    }

    fn get_many(
        &mut self,
        _: Resource<wit::ObjectList>,
        _: u32,
        _: Vec<String>,
    ) -> wasmtime::Result<Vec<Option<String>>> {
        unused()
    }

    fn drop(&mut self, _: Resource<wit::ObjectList>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl wit::HostContext for State {
    fn name(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<wit::ObjectName> {
        Ok(wit::ObjectName { namespace: Some("bench".to_owned()), name: "one".to_owned() })
    }

    fn primary(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<Option<Resource<wit::Object>>> {
        Ok(Some(Resource::new_own(0)))
    }

    fn reasons(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<Vec<String>> {
        Ok(vec!["updated".to_owned()])
    }

    fn attempt(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<u32> {
        Ok(1)
    }

    fn remaining_ms(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<u64> {
        Ok(30_000)
    }

    fn cancelled(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<bool> {
        Ok(false)
    }

    fn config(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<String> {
        Ok("null".to_owned())
    }

    fn get(
        &mut self,
        _: Resource<wit::Context>,
        _: wit::Gvk,
        _: wit::ObjectName,
    ) -> wasmtime::Result<Result<Option<Resource<wit::Object>>, wit::Failure>> {
        unused()
    }

    fn list_objects(
        &mut self,
        _: Resource<wit::Context>,
        _: wit::Gvk,
        _: Vec<(String, String)>,
    ) -> wasmtime::Result<Result<Resource<wit::ObjectList>, wit::Failure>> {
        unused()
    }

    fn children(
        &mut self,
        _: Resource<wit::Context>,
        _: wit::Gvk,
    ) -> wasmtime::Result<Result<Resource<wit::ObjectList>, wit::Failure>> {
        unused()
    }

    fn answer(&mut self, _: Resource<wit::Context>, _: String) -> wasmtime::Result<Option<String>> {
        Ok(None)
    }

    fn apply_child(
        &mut self,
        _: Resource<wit::Context>,
        _: String,
        _: Vec<(String, String)>,
    ) -> wasmtime::Result<Result<(), wit::Failure>> {
        self.staged += 1;
        Ok(Ok(()))
    }

    fn children_complete(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<()> {
        Ok(())
    }

    fn set_status(
        &mut self,
        _: Resource<wit::Context>,
        _: String,
    ) -> wasmtime::Result<Result<(), wit::Failure>> {
        unused()
    }

    fn set_condition(
        &mut self,
        _: Resource<wit::Context>,
        _: String,
        _: String,
        _: String,
        _: String,
    ) -> wasmtime::Result<Result<(), wit::Failure>> {
        unused()
    }

    fn emit_event(
        &mut self,
        _: Resource<wit::Context>,
        _: String,
        _: String,
        _: String,
        _: String,
    ) -> wasmtime::Result<Result<(), wit::Failure>> {
        unused()
    }

    fn write(
        &mut self,
        _: Resource<wit::Context>,
        _: Option<String>,
        _: String,
    ) -> wasmtime::Result<Result<(), wit::Failure>> {
        unused()
    }

    fn wait_for(
        &mut self,
        _: Resource<wit::Context>,
        _: String,
    ) -> wasmtime::Result<Result<(), wit::Failure>> {
        unused()
    }

    fn requeue_after(&mut self, _: Resource<wit::Context>, _: u64) -> wasmtime::Result<()> {
        Ok(())
    }

    fn drop(&mut self, _: Resource<wit::Context>) -> wasmtime::Result<()> {
        Ok(())
    }
}
