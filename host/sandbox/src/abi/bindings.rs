//! The types of the contract, generated from `wit/`.
//!
//! Only reads that may have to wait are async on the host's side; everything else is answered
//! from memory, and an async host function costs an allocation.

wasmtime::component::bindgen!({
    path: "../../wit/0.1.0",
    world: "all",
    imports: {
        "reeve:plugin/host.[method]context.get": async | trappable,
        "reeve:plugin/host.[method]context.list-objects": async | trappable,
        "reeve:plugin/host.[method]context.children": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    with: {
        "reeve:plugin/host.context": super::resources::ContextHandle,
        "reeve:plugin/host.object": super::resources::ObjectHandle,
        "reeve:plugin/host.object-list": super::resources::ListHandle,
    },
});
