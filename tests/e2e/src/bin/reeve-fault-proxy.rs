//! `reeve-fault-proxy`: the fault proxy by hand. Rules go in over its control endpoint.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use reeve_e2e::fault_proxy::{FaultProxy, Options, Rule, Transport, Upstream};

/// A proxy in front of an API server that makes it misbehave on request.
///
/// It prints one JSON line with its addresses and runs until Ctrl-C. Rules:
/// curl -d '{"match":{"path":"/api/v1/*"},"times":3,"action":{"do":"respond","status":500}}' CONTROL/rules
#[derive(Parser)]
struct Arguments {
    /// The kubeconfig of the API server; by default $KUBECONFIG.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Where to write the kubeconfig that points at the proxy.
    #[arg(long, value_name = "FILE", default_value = "fault-proxy.kubeconfig")]
    out: PathBuf,
    /// The proxy's port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The control endpoint's port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    control_port: u16,
    /// Speak http instead of https to clients.
    #[arg(long)]
    plain: bool,
    /// A file with a JSON array of rules to begin with.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
}

#[expect(clippy::print_stdout, reason = "the addresses are this program's output")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let rules: Vec<Rule> = match &arguments.rules {
        None => Vec::new(),
        Some(file) => {
            let text = std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
            serde_json::from_slice(&text).with_context(|| format!("{} holds no rules", file.display()))?
        }
    };
    let proxy = FaultProxy::start(Options {
        upstream: Upstream::from_kubeconfig(&arguments.kubeconfig).await?,
        transport: if arguments.plain { Transport::Plain } else { Transport::Tls },
        port: arguments.port,
        control_port: Some(arguments.control_port),
        kubeconfig: arguments.out,
    })?;
    for rule in rules {
        proxy.add(rule);
    }
    let ready = serde_json::json!({
        "server": proxy.url(),
        "control": proxy.control().map(|address| format!("http://{address}")),
        "kubeconfig": proxy.kubeconfig(),
    });
    println!("{ready}");
    tokio::signal::ctrl_c().await.context("failed to wait for Ctrl-C")
}
