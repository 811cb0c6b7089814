//! The API server behind the proxy and the way to it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use kube::client::ConfigExt as _;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// An API server and the credentials that requests without their own go with.
#[derive(Clone)]
pub struct Upstream {
    host: String,
    port: u16,
    /// `host:port` as the `Host` header has it.
    authority: String,
    tls: Option<Tls>,
    token: Option<String>,
    namespace: String,
}

#[derive(Clone)]
struct Tls {
    /// With the client certificate of the kubeconfig.
    own: Arc<rustls::ClientConfig>,
    /// Without it: for requests that bring an `Authorization`, which a server looks at last.
    plain: Arc<rustls::ClientConfig>,
}

/// The connections to the server that belong to one connection of a client.
pub(super) struct Link {
    upstream: Upstream,
    /// Idle connections: without and with the kubeconfig's own credentials.
    idle: [Mutex<Option<SendRequest<Full<Bytes>>>>; 2],
    /// What drives them; they end with the link.
    connections: Mutex<JoinSet<()>>,
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

// === impl Upstream ===

impl Upstream {
    /// The current context of a kubeconfig file.
    pub async fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let load = async {
            let kubeconfig = kube::config::Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
                .await
        };
        let config =
            load.await.with_context(|| format!("failed to load the kubeconfig {}", path.display()))?;
        Self::from_config(&config)
    }

    /// A server without TLS and credentials, for example `http://127.0.0.1:8001`.
    pub fn plain(url: &str) -> anyhow::Result<Self> {
        Self::from_config(&kube::Config::new(url.parse().with_context(|| format!("{url:?} is no URL"))?))
    }

    fn from_config(config: &kube::Config) -> anyhow::Result<Self> {
        let uri: &Uri = &config.cluster_url;
        let Some(authority) = uri.authority() else { bail!("the server {uri} has no host") };
        let secure = uri.scheme_str() != Some("http");
        let auth = &config.auth_info;
        if auth.exec.is_some() || auth.auth_provider.is_some() {
            bail!(
                "the fault proxy takes a token or a client certificate, no exec plugin: give the user a token"
            );
        }
        // The type of the token keeps it from being printed; its serialisation is the way to read it.
        let in_file = serde_json::to_value(auth)?["token"].as_str().map(str::to_owned);
        let token = match (in_file, &auth.token_file) {
            (Some(token), _) => Some(token),
            (None, Some(file)) => Some(
                std::fs::read_to_string(file)
                    .with_context(|| format!("failed to read the token file {file}"))?
                    .trim()
                    .to_owned(),
            ),
            (None, None) => None,
        };
        let tls = if secure {
            let mut without = config.clone();
            without.auth_info.client_certificate = None;
            without.auth_info.client_certificate_data = None;
            without.auth_info.client_key = None;
            without.auth_info.client_key_data = None;
            Some(Tls {
                own: Arc::new(config.rustls_client_config().context("failed to set up TLS")?),
                plain: Arc::new(without.rustls_client_config().context("failed to set up TLS")?),
            })
        } else {
            None
        };
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
            tls,
            token,
            namespace: config.default_namespace.clone(),
        })
    }

    /// The token that the kubeconfig gives its user.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The namespace of the kubeconfig's context.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    async fn connect(
        &self,
        own: bool,
        connections: &Mutex<JoinSet<()>>,
    ) -> io::Result<SendRequest<Full<Bytes>>> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        tcp.set_nodelay(true)?;
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(tcp),
            Some(tls) => {
                let config = if own { &tls.own } else { &tls.plain };
                let name =
                    rustls::pki_types::ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
                Box::new(TlsConnector::from(Arc::clone(config)).connect(name, tcp).await?)
            }
        };
        let (sender, connection) = handshake(TokioIo::new(io)).await.map_err(io::Error::other)?;
        let mut connections = connections.lock();
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection to the server ended");
            }
        });
        Ok(sender)
    }
}

// === impl Link ===

impl Link {
    pub(super) fn new(upstream: Upstream) -> Self {
        Self { upstream, idle: [Mutex::new(None), Mutex::new(None)], connections: Mutex::default() }
    }

    /// Sends a request to the server and returns the head of its answer.
    pub(super) async fn send(&self, mut request: Request<Full<Bytes>>) -> io::Result<Response<Incoming>> {
        let headers = request.headers_mut();
        let own = !headers.contains_key(http::header::AUTHORIZATION);
        if own && let Some(token) = &self.upstream.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(io::Error::other)?;
            headers.insert(http::header::AUTHORIZATION, value);
        }
        let host = HeaderValue::from_str(&self.upstream.authority).map_err(io::Error::other)?;
        headers.insert(http::header::HOST, host);
        for name in [http::header::CONNECTION, http::header::TRANSFER_ENCODING, http::header::UPGRADE] {
            headers.remove(name);
        }
        let slot = &self.idle[usize::from(own)];
        let idle = slot.lock().take();
        if let Some(mut sender) = idle
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    *slot.lock() = Some(sender);
                    return Ok(response);
                }
                // The server closed the idle connection before it took the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(io::Error::other(error.into_error())),
                },
            }
        }
        let mut sender = self.upstream.connect(own, &self.connections).await?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        *slot.lock() = Some(sender);
        Ok(response)
    }
}
