//! Why a file is no plugin of this host. Each text says the reason and the remedy; the caller adds
//! the name of the file.

use reeve_core::failure::Failure;
use reeve_core::manifest::ManifestError;

/// Why a component was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum Reject {
    /// Larger than the host looks at.
    #[error(
        "it has {size} bytes, more than the {limit} that this host takes: build it with the `plugin` profile, \
         or raise the host's limit"
    )]
    TooLarge {
        /// Bytes found.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Native code.
    #[error(
        "it is precompiled native code, which a host takes from nobody: deliver the WebAssembly component \
         that it was compiled from"
    )]
    Precompiled,
    /// Something else altogether.
    #[error("it is no WebAssembly: it begins with {0}; deliver the .wasm file that `reeve build` makes")]
    NotWasm(String),
    /// It begins like WebAssembly and is broken.
    #[error("it is no valid WebAssembly ({0}): build it again, or deliver it again if it was cut")]
    Malformed(String),
    /// A core module that says nothing of the contract.
    #[error(
        "it is a core module that cannot be made a component ({0}): build it for wasm32-wasip2, or keep its \
         `component-type` section (wasm-strip and wasm-opt drop it)"
    )]
    CoreModule(String),
    /// A component for something else.
    #[error(
        "it exports no reeve:plugin interface (it exports {0}): build it with reeve-sdk, which exports a reconciler"
    )]
    WrongWorld(String),
    /// Built for a later contract.
    #[error("it needs {needed}, and this host knows reeve:plugin@{known}: a newer host is needed")]
    NewerHost {
        /// The interface, with its version.
        needed: String,
        /// What this host knows.
        known: &'static str,
    },
    /// Built for a contract that is gone.
    #[error(
        "it is built for {needed}, and this host knows reeve:plugin@{known}: build it with a newer reeve-sdk"
    )]
    OlderAbi {
        /// The interface, with its version.
        needed: String,
        /// What this host knows.
        known: &'static str,
    },
    /// It exports what nobody calls.
    #[error("it exports {0}, which is no part of reeve:plugin: remove the export")]
    UnknownExport(String),
    /// One of the exports that every plugin has is missing.
    #[error("it exports no {0}: implement it with reeve-sdk's export macro")]
    Missing(&'static str),
    /// An import that this host does not give to plugins, or not to this one.
    #[error("it imports {name}, which was not granted: {remedy}")]
    Import {
        /// The import.
        name: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Wasmtime's compiler refused it.
    #[error("it cannot be compiled ({0}): build it with the toolchain that the documentation names")]
    Compile(String),
    /// `describe` trapped, took too long, or used too much.
    #[error("its `describe` failed: {0}; it must return the manifest and call nothing")]
    Describe(Failure),
    /// `describe` returned a manifest that is not usable.
    #[error("{0}")]
    Manifest(#[from] ManifestError),
    /// The manifest needs a role that the component does not export.
    #[error(
        "its manifest maps watch {0:?} by `map`, and it exports no mapper: export one, or choose another relation"
    )]
    NoMapper(String),
    /// The manifest wants more than the operator allows.
    #[error(
        "its manifest asks for `limits.memoryMib` {wanted}, the host's ceiling is {ceiling}: lower it, or raise the ceiling"
    )]
    MemoryCeiling {
        /// MiB wanted.
        wanted: u32,
        /// MiB allowed.
        ceiling: u32,
    },
    /// It does not fit together with the host's interfaces.
    #[error("it cannot be linked ({0}): build it with a reeve-sdk of the same version as the host")]
    Link(String),
    /// A first instance did not come up.
    #[error("a first instance of it failed: {0}")]
    Probe(Failure),
    /// The host could not do its part: says nothing about the file.
    #[error("the host could not load it: {0}")]
    Host(String),
}

impl Reject {
    /// Whether trying again with the same bytes may help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Host(_))
    }
}
