//! Watches kinds of a cluster and prints what is told: by hand, to see what the host sees.
//!
//! `cargo run -p reeve-cluster --example watch -- [--list] [--metadata] [-n NAMESPACE] KUBECONFIG APIVERSION KIND …`
#![expect(clippy::print_stdout, reason = "it is for people to read")]

use std::collections::BTreeSet;

use anyhow::Context as _;
use reeve_cluster::watch::{Namespaces, StreamSpec, Subscription};
use reeve_cluster::{Cluster, ClusterOptions, ConnectOptions, Connection};
use reeve_core::gvk::Gvk;
use reeve_core::labels::Selector;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let (mut watch_list, mut metadata_only, mut namespaces) = (true, false, Namespaces::All);
    while let Some(flag) = arguments.next_if(|argument| argument.starts_with('-')) {
        match flag.as_str() {
            "--list" => watch_list = false,
            "--metadata" => metadata_only = true,
            "-n" => {
                let these = arguments.next().context("-n needs a namespace")?;
                namespaces = Namespaces::Only(these.split(',').map(Into::into).collect::<BTreeSet<_>>());
            }
            other => anyhow::bail!("{other} is no flag of this"),
        }
    }
    let kubeconfig = arguments.next().context("the first argument is a kubeconfig")?;
    let registry = prometheus::Registry::new();
    let options = ConnectOptions { kubeconfig: Some(kubeconfig.into()), context: None };
    let connection = Connection::open(&options, &registry).await?;
    let (cluster, mut changes) = Cluster::new(connection, &ClusterOptions { watch_list }, &registry)?;
    let mut subscriptions = Vec::new();
    while let (Some(api_version), Some(kind)) = (arguments.next(), arguments.next()) {
        let spec = StreamSpec {
            gvk: Gvk::from_api_version(&api_version, &kind),
            namespaces: namespaces.clone(),
            labels: Selector::everything(),
            fields: None,
            metadata_only,
            managed_fields: false,
        };
        subscriptions.push(cluster.watch(&spec));
    }
    let mut states: Vec<_> = subscriptions.iter().map(Subscription::changed).collect();
    loop {
        let state = futures::future::select_all(states.iter_mut().map(|state| Box::pin(state.changed())));
        tokio::select! {
            Some(change) = changes.recv() => {
                let side = |object: &Option<reeve_core::object::SharedObject>| object.as_ref().map_or_else(
                    || "-".to_owned(),
                    |object| format!("{} ({} B)", object.meta().resource_version, object.json().len()),
                );
                if let Some(name) = change.name() {
                    println!("{:?} {} {name}: {} -> {}", change.cause, change.gvk, side(&change.old), side(&change.new));
                }
            }
            (_, _, _) = state => {
                for stream in cluster.streams() {
                    println!("stream {} {:?}: {:?}", stream.gvk, stream.namespace, stream.state);
                }
            }
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    print!("{}", prometheus::TextEncoder::new().encode_to_string(&registry.gather())?);
    Ok(())
}
