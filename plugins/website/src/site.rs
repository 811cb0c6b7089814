//! What a Website is made of.

use reeve_sdk::EventKind;
use reeve_sdk::prelude::*;

/// The image that serves the page where neither the Website nor the configuration names one.
const IMAGE: &str = "docker.io/library/nginx:1.29-alpine";
/// The port on which the image serves.
const CONTAINER_PORT: u16 = 80;
/// Marks the pods with the page that they serve, so that a new page rolls them.
const DIGEST: &str = "example.reeve.dev/html-digest";
/// How long the Deployment may take to become available; then the Website fails with
/// `WAIT_TIMEOUT` and says so in its condition.
const ROLLOUT_LIMIT: Duration = Duration::from_mins(10);

/// A Website as it is read.
pub(crate) type Site = Object<Spec>;

/// What a user asks for. The CRD's schema has checked it.
#[derive(Debug, Deserialize)]
pub(crate) struct Spec {
    html: String,
    #[serde(default = "one")]
    replicas: u32,
    #[serde(default = "http")]
    port: u16,
    image: Option<String>,
}

/// The plugin's configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    image: Option<String>,
}

/// What the versions of this plugin differ in.
pub(crate) struct Edition {
    pub(crate) version: &'static str,
    /// Stands below every page.
    pub(crate) footer: &'static str,
}

/// How far the Deployment is.
struct Rollout {
    ready: u64,
    available: bool,
    complete: bool,
}

pub(crate) fn manifest(edition: &Edition) -> Manifest {
    Manifest::new("website", edition.version, "example.reeve.dev/v1", "Website")
        .description("Serves a page of HTML")
        .owns("v1", "ConfigMap")
        .owns("apps/v1", "Deployment")
        .owns("v1", "Service")
}

pub(crate) fn reconcile(ctx: &Context, site: &Site, edition: &Edition) -> Result<Outcome, Error> {
    let Spec { html, replicas, port, image } = &site.spec;
    let config: Config = ctx.config()?;
    let image = image.as_deref().or(config.image.as_deref()).unwrap_or(IMAGE);
    let page = format!("{html}{}", edition.footer);
    let digest = digest(&page);

    ctx.apply_child(&config_map(ctx.name(), &page))?;
    ctx.apply_child(&deployment(ctx.name(), image, *replicas, &digest))?;
    ctx.apply_child(&service(ctx.name(), *port))?;

    let rollout = rollout(ctx, *replicas, &digest)?;
    ctx.set_status(&json!({
        "url": url(ctx, *port),
        "replicas": replicas,
        "readyReplicas": rollout.ready,
    }))?;
    let progress = format!("{} of {replicas} replicas are ready", rollout.ready);
    if rollout.complete {
        ctx.condition("Ready", true, "Available", &progress)?;
        return Ok(Outcome::done());
    }
    ctx.condition("Ready", false, "Progressing", &progress)?;
    // The children are known whatever the Deployment does, so none is left over meanwhile.
    Ok(if rollout.available {
        // The old pods serve while the new ones come: each step is a change of a child.
        Outcome::pending().children_complete()
    } else {
        let available = Wait::on("apps/v1", "Deployment", ctx.name()).condition("Available");
        Outcome::wait_for(available.timeout(ROLLOUT_LIMIT)).children_complete()
    })
}

pub(crate) fn cleanup(ctx: &Context, site: &Site) -> Result<Outcome, Error> {
    let note = format!("{} is no longer served", url(ctx, site.spec.port));
    ctx.emit(EventKind::Normal, "CleanedUp", "Cleanup", &note)?;
    Ok(Outcome::done())
}

/// Compares the live Deployment with what is desired now: it may still be that of an earlier spec.
fn rollout(ctx: &Context, replicas: u32, digest: &str) -> Result<Rollout, Error> {
    let Some(live) = ctx.find("apps/v1", "Deployment", ctx.name())? else {
        return Ok(Rollout { ready: 0, available: false, complete: replicas == 0 });
    };
    let number = |pointer: &str| live.field::<u64>(pointer).map(Option::unwrap_or_default);
    let annotation = format!("/spec/template/metadata/annotations/{}", DIGEST.replace('/', "~1"));
    let current = live.field::<String>(&annotation)?.is_some_and(|known| known == digest)
        && number("/spec/replicas")? == u64::from(replicas)
        && number("/status/observedGeneration")? >= live.generation();
    let up_to_date = number("/status/updatedReplicas")?.min(number("/status/availableReplicas")?);
    Ok(Rollout {
        ready: number("/status/readyReplicas")?.min(replicas.into()),
        available: live.condition("Available").is_some_and(|available| available.holds()),
        complete: replicas == 0 || current && up_to_date >= u64::from(replicas),
    })
}

fn config_map(name: &str, page: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": format!("{name}-html"), "labels": labels(name) },
        "data": { "index.html": page },
    })
}

fn deployment(name: &str, image: &str, replicas: u32, digest: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name, "labels": labels(name) },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels(name) },
            "template": {
                "metadata": { "labels": labels(name), "annotations": { DIGEST: digest } },
                "spec": {
                    "containers": [{
                        "name": "server",
                        "image": image,
                        "ports": [{ "name": "http", "containerPort": CONTAINER_PORT, "protocol": "TCP" }],
                        "volumeMounts": [{ "name": "html", "mountPath": "/usr/share/nginx/html", "readOnly": true }],
                    }],
                    "volumes": [{ "name": "html", "configMap": { "name": format!("{name}-html") } }],
                },
            },
        },
    })
}

fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "labels": labels(name) },
        "spec": {
            "selector": labels(name),
            "ports": [{ "name": "http", "port": port, "targetPort": "http", "protocol": "TCP" }],
        },
    })
}

fn labels(name: &str) -> Value {
    json!({ "app.kubernetes.io/name": "website", "app.kubernetes.io/instance": name })
}

fn url(ctx: &Context, port: u16) -> String {
    let port = if port == 80 { String::new() } else { format!(":{port}") };
    format!("http://{}.{}.svc{port}/", ctx.name(), ctx.namespace().unwrap_or("default"))
}

/// FNV-1a: it has to change with the page, not to keep anybody out.
fn digest(page: &str) -> String {
    let hash = page.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn one() -> u32 {
    1
}

fn http() -> u16 {
    80
}
