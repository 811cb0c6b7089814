//! What the bytes of a component say without running them.

use reeve_core::ids::Digest;
use wasmparser::{ComponentExternalKind, Parser, Payload};

use crate::abi::ABI;
use crate::reject::Reject;

/// What static inspection found.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Of the bytes as they were delivered.
    pub digest: Digest,
    /// Of the bytes as they were delivered.
    pub size: usize,
    /// The version of `reeve:plugin` that it is built for, for example `0.1.0`.
    pub abi: String,
    /// Which roles it exports.
    pub roles: Roles,
    /// The interfaces that it imports, with versions, in order.
    pub imports: Vec<String>,
    /// The CRDs that it carries, as YAML documents, from the custom sections `reeve:crds`.
    pub crds: Vec<String>,
    /// It is a core module and was made a component by the host.
    pub core_module: bool,
}

/// The roles that a plugin may export beside `plugin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// `reconciler`; every plugin has it.
    pub reconcile: bool,
    /// `cleanup`: its primaries get a finalizer.
    pub cleanup: bool,
    /// `mapper`.
    pub map: bool,
}

/// The custom section with CRDs: YAML documents, divided by lines `---`.
const CRDS_SECTION: &str = "reeve:crds";
/// The namespace and package of the contract.
const PACKAGE: &str = "reeve:plugin/";
/// Roles of the contract's later versions, which an older host cannot play.
const LATER_ROLES: [&str; 3] = ["admission", "converter", "indexer"];

/// Inspects what was delivered. Gives the component too where it had to be made.
pub(crate) fn inspect(bytes: &[u8], limit: usize) -> Result<(Inspection, Option<Vec<u8>>), Reject> {
    if bytes.len() > limit {
        return Err(Reject::TooLarge { size: bytes.len(), limit });
    }
    if wasmtime::Engine::detect_precompiled(bytes).is_some() {
        return Err(Reject::Precompiled);
    }
    let core_module = match (bytes.get(..4), bytes.get(4..8)) {
        (Some(b"\0asm"), Some([0x01, 0, 0, 0])) => true,
        (Some(b"\0asm"), Some([0x0d, 0, 1, 0])) => false,
        (Some(b"\0asm"), version) => {
            return Err(Reject::Malformed(format!("its header has the unknown version {version:02x?}")));
        }
        _ => return Err(Reject::NotWasm(beginning(bytes))),
    };
    let component = core_module.then(|| componentize(bytes)).transpose()?;
    let outline = Outline::read(component.as_deref().unwrap_or(bytes))?;
    let (abi, roles) = outline.roles()?;
    let inspection = Inspection {
        digest: Digest::of(bytes),
        size: bytes.len(),
        abi,
        roles,
        imports: outline.imports,
        crds: outline.crds,
        core_module,
    };
    Ok((inspection, component))
}

/// Makes a component of a core module that carries the contract in a `component-type` section,
/// as `wasm32-unknown-unknown` builds give it.
///
/// # Errors
/// [`Reject::CoreModule`] when it cannot be made one.
pub fn componentize(module: &[u8]) -> Result<Vec<u8>, Reject> {
    let says_what = |payload: Result<Payload<'_>, _>| match payload {
        Ok(Payload::CustomSection(section)) => section.name().starts_with("component-type"),
        _ => false,
    };
    if !Parser::new(0).parse_all(module).any(says_what) {
        return Err(Reject::CoreModule("it has no `component-type` section".to_owned()));
    }
    wit_component::ComponentEncoder::default()
        .validate(true)
        .module(module)
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| Reject::CoreModule(format!("{error:#}")))
}

fn beginning(bytes: &[u8]) -> String {
    match bytes {
        [] => "nothing: it is empty".to_owned(),
        _ => format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(16)])),
    }
}

/// The names on the outside of a component, and the CRDs anywhere in it.
struct Outline {
    imports: Vec<String>,
    exports: Vec<(String, ComponentExternalKind)>,
    crds: Vec<String>,
}

impl Outline {
    fn read(component: &[u8]) -> Result<Self, Reject> {
        let malformed = |error: wasmparser::BinaryReaderError| Reject::Malformed(error.to_string());
        let mut outline = Self { imports: Vec::new(), exports: Vec::new(), crds: Vec::new() };
        // How deep in nested modules and components the parser is: names outside are at 0.
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(component) {
            match payload.map_err(malformed)? {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        outline.imports.push(import.map_err(malformed)?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        let export = export.map_err(malformed)?;
                        outline.exports.push((export.name.name.to_owned(), export.kind));
                    }
                }
                Payload::CustomSection(section) if section.name() == CRDS_SECTION => {
                    let text = std::str::from_utf8(section.data()).map_err(|error| {
                        Reject::Malformed(format!("its section {CRDS_SECTION} is no text: {error}"))
                    })?;
                    outline.crds.extend(documents(text));
                }
                _ => {}
            }
        }
        Ok(outline)
    }

    /// The version of the contract and the roles, or why it is no plugin for this host.
    fn roles(&self) -> Result<(String, Roles), Reject> {
        let ours = |name: &str| name.starts_with(PACKAGE);
        let names = || self.exports.iter().map(|(name, _)| name.as_str());
        if !names().any(ours) {
            let exports: Vec<_> = names().take(4).collect();
            let shown = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
            return Err(Reject::WrongWorld(shown));
        }
        for name in self.imports.iter().map(String::as_str).chain(names()).filter(|name| ours(name)) {
            check_version(name)?;
        }
        let (mut roles, mut describes, mut abi) = (Roles::default(), false, ABI);
        for (name, kind) in &self.exports {
            let (interface, version) =
                name.strip_prefix(PACKAGE).and_then(|rest| rest.split_once('@')).unwrap_or((name, ""));
            match interface {
                _ if *kind != ComponentExternalKind::Instance => {
                    return Err(Reject::UnknownExport(name.clone()));
                }
                "plugin" => (describes, abi) = (true, version),
                "reconciler" => roles.reconcile = true,
                "cleanup" => roles.cleanup = true,
                "mapper" => roles.map = true,
                later if LATER_ROLES.contains(&later) => {
                    return Err(Reject::NewerHost { needed: name.clone(), known: ABI });
                }
                _ => return Err(Reject::UnknownExport(name.clone())),
            }
        }
        match (describes, roles.reconcile) {
            (false, _) => Err(Reject::Missing("reeve:plugin/plugin")),
            (_, false) => Err(Reject::Missing("reeve:plugin/reconciler")),
            _ => Ok((abi.to_owned(), roles)),
        }
    }
}

/// Within 0.x the minor number is what must be equal; what a later patch adds is found missing at
/// link, if the component uses it.
fn check_version(name: &str) -> Result<(), Reject> {
    let line = |version: &str| {
        let mut parts = version.split('.').map(str::parse::<u64>);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
            _ => None,
        }
    };
    let needed = name.split_once('@').and_then(|(_, version)| line(version));
    match (needed, line(ABI)) {
        (Some(needed), Some(known)) if needed == known => Ok(()),
        (Some(needed), Some(known)) if needed < known => {
            Err(Reject::OlderAbi { needed: name.to_owned(), known: ABI })
        }
        (Some(_), _) => Err(Reject::NewerHost { needed: name.to_owned(), known: ABI }),
        (None, _) => Err(Reject::Malformed(format!("it names {name}, which has no version"))),
    }
}

/// YAML documents, divided by lines that begin with `---`; empty ones are left out. Several
/// sections may have been joined with NUL bytes between them.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.trim_matches('\0').lines() {
        if line.trim_end() == "---" {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.retain(|document| !document.trim().is_empty());
    documents
}

#[cfg(test)]
mod tests;
