//! `reeve inspect FILE`: what a plugin is, what it may do, and what that needs of the cluster.
//!
//! The component's own code runs only in `describe`, as it does at load: no cluster is contacted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use reeve_core::grant::{Ceiling, CeilingRule, Grant, RbacRule};
use reeve_core::ids::Digest;
use reeve_sandbox::{Inspection, Loaded, Sandbox, SandboxConfig};
use serde_json::{Value, json};

use crate::output;

/// Looks into a plugin: manifest, permissions, the least RBAC rule, digest, size.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The component.
    file: PathBuf,
    /// Prints only the digest, as the annotation `reeve.dev/digest` takes it.
    #[arg(long, conflicts_with_all = ["rbac", "json"])]
    digest: bool,
    /// Prints only the RBAC objects that the host's ServiceAccount needs for this plugin, as YAML.
    #[arg(long, conflicts_with = "json")]
    rbac: bool,
    /// Prints everything as one JSON object.
    #[arg(long)]
    json: bool,
    /// The ceiling to check against, as `reeve run --allow` takes it.
    #[arg(long, value_name = "RULE")]
    allow: Vec<CeilingRule>,
    /// The host's namespace: its ServiceAccount is the subject of the RBAC objects.
    #[arg(long, default_value = "reeve-system", value_name = "NAMESPACE")]
    host_namespace: String,
    /// The host's ServiceAccount.
    #[arg(long, default_value = "reeve", value_name = "NAME")]
    service_account: String,
}

/// Runs the sub-command.
pub(crate) async fn run(args: InspectArgs) -> anyhow::Result<()> {
    let bytes = read(&args.file)?;
    if args.digest {
        output::line(&Digest::of(&bytes).to_string());
        return Ok(());
    }
    let config = SandboxConfig { threads: 1, max_instances: 1, ..SandboxConfig::default() };
    let sandbox = Sandbox::new(config, &prometheus::Registry::new())?;
    let loaded = sandbox.load(bytes.into()).await.with_context(|| args.file.display().to_string())?;
    let roles = loaded.inspection().roles;
    let ceiling = Ceiling { host_namespace: args.host_namespace.as_str().into(), rules: args.allow.clone() };
    let grant = match Grant::effective(loaded.manifest(), roles.cleanup, &ceiling) {
        Ok(grant) => grant,
        Err(denied) => {
            let reasons: Vec<_> = denied.iter().map(|denied| format!("  {denied}")).collect();
            bail!("{}: the ceiling refuses it:\n{}", args.file.display(), reasons.join("\n"))
        }
    };
    sandbox.link(&loaded, Arc::new(grant.clone())).with_context(|| args.file.display().to_string())?;
    let needs = grant.rbac_rules(&|_| None);
    if args.rbac {
        output::text(&rbac_objects(&needs, &loaded, &args)?);
    } else if args.json {
        output::text(&serde_json::to_string_pretty(&document(&args.file, &loaded, &grant, &needs))?);
    } else {
        output::text(&summary(&args.file, &loaded, &grant, &needs));
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("{}: failed to read the file", file.display()))
}

fn role_names(inspection: &Inspection) -> Vec<&'static str> {
    let roles = inspection.roles;
    [("reconcile", roles.reconcile), ("cleanup", roles.cleanup), ("map", roles.map)]
        .into_iter()
        .filter_map(|(name, has)| has.then_some(name))
        .collect()
}

fn document(file: &Path, loaded: &Loaded, grant: &Grant, rules: &[RbacRule]) -> Value {
    let inspection = loaded.inspection();
    json!({
        "file": file.display().to_string(),
        "digest": inspection.digest.to_string(),
        "bytes": inspection.size,
        "abi": inspection.abi,
        "roles": role_names(inspection),
        "imports": inspection.imports,
        "crds": inspection.crds.len(),
        "manifest": **loaded.manifest(),
        "grant": grant.lines(),
        "rbac": rules,
    })
}

fn summary(file: &Path, loaded: &Loaded, grant: &Grant, rules: &[RbacRule]) -> String {
    let (manifest, inspection) = (loaded.manifest(), loaded.inspection());
    let limits = &manifest.limits;
    let mut lines = vec![
        format!("{} {}", manifest.name, manifest.version),
        format!("  {}", manifest.description.as_deref().unwrap_or("(no description)")),
        String::new(),
        format!("file       {}", file.display()),
        format!("digest     {}", inspection.digest),
        format!(
            "size       {} bytes, {}",
            inspection.size,
            if inspection.core_module { "core module, made a component at load" } else { "component" }
        ),
        format!("contract   {}", inspection.abi),
        format!("roles      {}", role_names(inspection).join(", ")),
        format!("primary    {}", manifest.primary.gvk()),
        format!("crds       {}", inspection.crds.len()),
        format!(
            "limits     {} MiB, {} ms, {} at once",
            limits.memory_mib, limits.deadline_ms, limits.concurrency
        ),
        String::new(),
        "may".to_owned(),
    ];
    lines.extend(grant.lines().into_iter().map(|line| format!("  {line}")));
    lines.extend([String::new(), "needs of RBAC (--rbac prints the objects)".to_owned()]);
    lines.extend(rules.iter().map(|rule| {
        format!(
            "  {}{} {}: {}",
            rule.namespace.as_deref().map(|namespace| format!("[{namespace}] ")).unwrap_or_default(),
            rule.api_groups.join(","),
            rule.resources.join(","),
            rule.verbs.join(",")
        )
    }));
    lines.join("\n")
}

/// A `ClusterRole` with its binding, and one Role with its binding per namespace.
fn rbac_objects(rules: &[RbacRule], loaded: &Loaded, args: &InspectArgs) -> Result<String, std::fmt::Error> {
    let name = format!("reeve-plugin-{}", loaded.manifest().name);
    let mut by_place = BTreeMap::<Option<&str>, Vec<&RbacRule>>::new();
    for rule in rules {
        by_place.entry(rule.namespace.as_deref()).or_default().push(rule);
    }
    let mut text = String::new();
    for (namespace, rules) in by_place {
        let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
        let place = namespace.map(|namespace| format!("  namespace: {namespace}\n")).unwrap_or_default();
        let head = |kind: &str| {
            format!(
                "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n{place}"
            )
        };
        writeln!(text, "{}rules:", head(kind))?;
        for rule in rules {
            writeln!(text, "  - apiGroups: {}", flow(&rule.api_groups))?;
            writeln!(text, "    resources: {}", flow(&rule.resources))?;
            writeln!(text, "    verbs: {}", flow(&rule.verbs))?;
        }
        write!(text, "{}roleRef:\n  apiGroup: rbac.authorization.k8s.io\n", head(&format!("{kind}Binding")))?;
        writeln!(text, "  kind: {kind}\n  name: {name}\nsubjects:\n  - kind: ServiceAccount")?;
        writeln!(text, "    name: {}\n    namespace: {}", args.service_account, args.host_namespace)?;
    }
    Ok(text)
}

/// A YAML flow sequence; JSON strings are YAML.
fn flow(items: &[String]) -> String {
    let quoted: Vec<_> = items.iter().map(|item| Value::from(item.as_str()).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}
