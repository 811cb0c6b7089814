//! The wasmtime engine: its settings, what the machine lets it have, and its clock.
//!
//! Where the settings come from: ARCHITECTURE.md, "Sandbox". The pool reserves address space (not
//! memory) for every instance; where the machine has too little of it, instances are made on
//! demand, which costs about 20 µs more per run and nothing else.

use std::sync::mpsc;
use std::thread::JoinHandle;

use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::config::{LOAD_INSTANCES, MAX_TABLE_ELEMENTS, POOL_MEMORY_MIB, SandboxConfig, TICK};
use crate::sandbox::SandboxError;

/// How instances get their memory, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// From a pool whose slots keep their pages; the kernel tells which were touched
    /// (`PAGEMAP_SCAN`, Linux 6.7).
    PooledResident,
    /// From a pool whose slots give their pages back after each run.
    Pooled,
    /// Mapped for each run.
    OnDemand,
}

impl Allocation {
    const BEST_FIRST: [Self; 3] = [Self::PooledResident, Self::Pooled, Self::OnDemand];
}

/// Builds the engine with the best allocation that this machine allows.
pub(crate) fn build(config: &SandboxConfig) -> Result<(Engine, Allocation), SandboxError> {
    let mut last = None;
    for allocation in Allocation::BEST_FIRST {
        if allocation == Allocation::PooledResident && !PoolingAllocationConfig::is_pagemap_scan_available() {
            continue;
        }
        match Engine::new(&settings(config, allocation)) {
            Ok(engine) => return Ok((engine, allocation)),
            Err(error) => {
                tracing::debug!(?allocation, %error, "this allocation is not to be had");
                last = Some(error);
            }
        }
    }
    Err(SandboxError::Engine(last.map_or_else(String::new, |error| format!("{error:#}"))))
}

fn settings(config: &SandboxConfig, allocation: Allocation) -> Config {
    let mut settings = Config::new();
    settings
        .epoch_interruption(true)
        .memory_init_cow(true)
        // The contract has plain functions only; without tasks a fresh call is a fifth cheaper.
        .concurrency_support(false)
        // Room for deep serde types; the fibre holds the guest's stack and ours above it.
        .max_wasm_stack(1 << 20)
        .async_stack_size(2 << 20)
        .allocation_strategy(match allocation {
            Allocation::PooledResident => InstanceAllocationStrategy::Pooling(pool(config, true)),
            Allocation::Pooled => InstanceAllocationStrategy::Pooling(pool(config, false)),
            Allocation::OnDemand => InstanceAllocationStrategy::OnDemand,
        });
    settings
}

fn pool(config: &SandboxConfig, resident: bool) -> PoolingAllocationConfig {
    let instances = config.max_instances.max(1).saturating_add(LOAD_INSTANCES);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        // A component made by wit-component is a few core instances around one memory.
        .total_core_instances(instances.saturating_mul(4))
        .total_memories(instances)
        .total_tables(instances.saturating_mul(2))
        .total_stacks(instances)
        // What one component may be made of; language runtimes are made of many modules.
        .max_core_instances_per_component(100)
        .max_memories_per_component(10)
        .max_tables_per_component(20)
        .table_elements(MAX_TABLE_ELEMENTS)
        .max_memory_size((POOL_MEMORY_MIB as usize) << 20)
        // Slots that remember their module's image, so that the next run needs no mapping.
        .max_unused_warm_slots(instances / 2);
    if resident {
        // Measured together: half the time of a fresh run, and what lets two threads scale.
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(1_200_000)
            .table_keep_resident(8 << 10)
            .async_stack_keep_resident(64 << 10);
    }
    pool
}

/// The thread that advances the engine's epoch. It ends, and is joined, when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticker {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("reeve-epoch".to_owned()).spawn(move || {
            while stopped.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.take();
        // It wakes from its wait at once. A panic in it would have been printed already.
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the epoch thread ended by a panic");
        }
    }
}
