//! A proxy in front of an API server that makes it misbehave on request, and counts.
//!
//! It speaks HTTP/1.1, with or without TLS, and knows what a watch is. Rules come and go while it
//! runs (see [`Rule`]); every request stands in a log that a test can ask (see [`Filter`]).
//! Requests that bring an `Authorization` keep it; others go with the kubeconfig's credentials.
//!
//! It runs on a thread of its own, so that a busy test does not slow it; dropping it ends every
//! connection and frees its ports before the drop returns.

mod control;
mod filter;
mod log;
mod rule;
mod server;
mod stream;
mod upstream;

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use base64::Engine as _;
use serde::Serialize;
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

pub use filter::{Filter, RequestLine};
pub use log::{Logged, MAX_LOGGED};
pub use rule::{Action, Counts, Rule, RuleId};
pub use upstream::Upstream;

use log::Log;
use rule::Active;
use stream::Rules;

/// How clients speak to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `http://`; clients with only a certificate go as the kubeconfig's user.
    Plain,
    /// `https://` with a certificate made at start, which the proxy's kubeconfig names.
    Tls,
}

/// What a proxy is started with.
pub struct Options {
    /// The server behind it.
    pub upstream: Upstream,
    /// How clients speak to it.
    pub transport: Transport,
    /// The port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
    /// The control endpoint's port, if there is to be one; 0 takes a free one.
    pub control_port: Option<u16>,
    /// Where to write the kubeconfig that points at the proxy.
    pub kubeconfig: PathBuf,
}

/// A running proxy; it ends when dropped.
pub struct FaultProxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    control: Option<SocketAddr>,
    kubeconfig: PathBuf,
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A rule in force, as the control endpoint lists it.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// Its name in this proxy.
    pub id: RuleId,
    /// What it says.
    #[serde(flatten)]
    pub rule: Rule,
    /// How often it matched and took effect.
    pub counts: Counts,
}

struct Shared {
    upstream: Upstream,
    rules: watch::Sender<Rules>,
    next_rule: AtomicU64,
    streams: AtomicU64,
    log: Log,
}

// === impl FaultProxy ===

impl FaultProxy {
    /// Binds, writes the kubeconfig and serves.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let bind = |port: u16| {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| {
                format!("failed to listen on 127.0.0.1:{port}: choose another port, or 0")
            })?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            anyhow::Ok((listener, address))
        };
        let (listener, address) = bind(options.port)?;
        let control = options.control_port.map(bind).transpose()?;
        let (tls, ca) = match options.transport {
            Transport::Plain => (None, None),
            Transport::Tls => {
                let (acceptor, pem) = make_tls()?;
                (Some(acceptor), Some(pem))
            }
        };
        let url = format!("http{}://{address}", if tls.is_some() { "s" } else { "" });
        write_kubeconfig(&options.kubeconfig, &url, ca.as_deref(), &options.upstream)?;

        let shared = Arc::new(Shared {
            upstream: options.upstream,
            rules: watch::Sender::new(Rules::default()),
            next_rule: AtomicU64::new(1),
            streams: AtomicU64::new(0),
            log: Log::new(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let control_address = control.as_ref().map(|(_, address)| *address);
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fault-proxy".to_owned()).spawn(move || {
            // Dropping the runtime drops every task with its connection.
            runtime.block_on(run(for_thread, listener, tls, control.map(|(listener, _)| listener), stopped));
        })?;
        Ok(Self {
            shared,
            address,
            control: control_address,
            kubeconfig: options.kubeconfig,
            url,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients reach it, with the scheme.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the control endpoint is.
    pub fn control(&self) -> Option<SocketAddr> {
        self.control
    }

    /// The kubeconfig that points at it.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Puts a rule in force, also for the watches that are open.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.add(rule)
    }

    /// Takes a rule out of force and says how often it took effect; `None` if it was gone.
    pub fn remove(&self, id: RuleId) -> Option<Counts> {
        self.shared.remove(id)
    }

    /// Takes every rule out of force.
    pub fn clear(&self) {
        self.shared.clear();
    }

    /// How often a rule matched and took effect; `None` if it is gone.
    pub fn counts(&self, id: RuleId) -> Option<Counts> {
        self.shared.list().into_iter().find(|listed| listed.id == id).map(|listed| listed.counts)
    }

    /// Ends the watches that are open now, as a server does at its timeout.
    pub fn cut_open(&self, filter: Filter) {
        // It affects only streams that are open: it can go as soon as they saw it, and does no
        // harm if it stays.
        self.add(Rule::new(filter, Action::CutOpen));
    }

    /// A place in the log, to ask for what comes after it.
    pub fn mark(&self) -> u64 {
        self.shared.log.next()
    }

    /// The requests that the log has, oldest first.
    pub fn requests(&self, filter: &Filter) -> Vec<Logged> {
        self.requests_since(0, filter)
    }

    /// The requests since a [`mark`](Self::mark), oldest first.
    pub fn requests_since(&self, mark: u64, filter: &Filter) -> Vec<Logged> {
        self.shared.log.select(filter, mark)
    }

    /// Requests that fell out of the log because it was full.
    pub fn forgotten(&self) -> u64 {
        self.shared.log.forgotten()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the fault proxy's thread ended with a panic");
        }
    }
}

async fn run(
    shared: Arc<Shared>,
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    control: Option<std::net::TcpListener>,
    stopped: oneshot::Receiver<()>,
) {
    let serve = async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let control = control.map(tokio::net::TcpListener::from_std).transpose()?;
        let proxy = server::serve(Arc::clone(&shared), listener, tls);
        match control {
            None => proxy.await,
            Some(control) => {
                tokio::join!(proxy, control::serve(Arc::clone(&shared), control));
            }
        }
        std::io::Result::Ok(())
    };
    tokio::select! {
        served = serve => if let Err(error) = served {
            tracing::error!(%error, "the fault proxy failed to serve");
        },
        _ = stopped => {}
    }
}

/// A certificate for 127.0.0.1 that is its own authority, and its PEM.
fn make_tls() -> anyhow::Result<(TlsAcceptor, String)> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()])
        .context("failed to make a certificate")?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())?;
    Ok((TlsAcceptor::from(Arc::new(config)), made.cert.pem()))
}

fn write_kubeconfig(path: &Path, url: &str, ca: Option<&str>, upstream: &Upstream) -> anyhow::Result<()> {
    let mut cluster = serde_json::json!({ "server": url });
    if let Some(pem) = ca {
        cluster["certificate-authority-data"] = base64::engine::general_purpose::STANDARD.encode(pem).into();
    }
    let user = upstream.token().map_or(serde_json::json!({}), |token| serde_json::json!({ "token": token }));
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fault-proxy",
        "clusters": [{ "name": "fault-proxy", "cluster": cluster }],
        "users": [{ "name": "fault-proxy", "user": user }],
        "contexts": [{ "name": "fault-proxy", "context": {
            "cluster": "fault-proxy", "user": "fault-proxy", "namespace": upstream.namespace(),
        }}],
    });
    std::fs::write(path, format!("{kubeconfig:#}\n"))
        .with_context(|| format!("failed to write the kubeconfig {}", path.display()))
}

// === impl Shared ===

impl Shared {
    fn add(&self, rule: Rule) -> RuleId {
        let id = RuleId(self.next_rule.fetch_add(1, Ordering::SeqCst));
        let active = Arc::new(Active::new(id, rule, self.streams.load(Ordering::SeqCst)));
        self.rules.send_modify(|rules| {
            let mut next = Vec::clone(rules);
            next.push(active);
            *rules = Arc::new(next);
        });
        id
    }

    fn remove(&self, id: RuleId) -> Option<Counts> {
        let mut counts = None;
        self.rules.send_modify(|rules| {
            counts = rules.iter().find(|active| active.id == id).map(|active| active.counts());
            *rules = Arc::new(rules.iter().filter(|active| active.id != id).cloned().collect());
        });
        counts
    }

    fn clear(&self) {
        self.rules.send_modify(|rules| *rules = Rules::default());
    }

    fn list(&self) -> Vec<Listed> {
        let rules = Arc::clone(&self.rules.borrow());
        rules
            .iter()
            .map(|active| Listed { id: active.id, rule: active.rule.clone(), counts: active.counts() })
            .collect()
    }
}
