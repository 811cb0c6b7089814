//! Which API server, and as whom.

use std::path::{Path, PathBuf};

use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::ConnectOptions;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read.
    #[error(
        "failed to read the kubeconfig {file}: {reason}; name another one with --kubeconfig or KUBECONFIG"
    )]
    Kubeconfig {
        /// The file, or the files of `$KUBECONFIG`.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The kubeconfig has no such context.
    #[error("failed to use the kubeconfig {file}: it has no context {context:?}; it has {known}")]
    Context {
        /// The file.
        file: String,
        /// What was asked for.
        context: String,
        /// What there is.
        known: String,
    },
    /// There is no kubeconfig, and this is no pod.
    #[error(
        "failed to find an API server: neither {file} exists nor does this process run in a pod ({reason}); name a kubeconfig with --kubeconfig or KUBECONFIG"
    )]
    Nowhere {
        /// Where a kubeconfig was looked for.
        file: String,
        /// What is missing of a pod.
        reason: String,
    },
    /// The client cannot be built: a certificate or key is not usable.
    #[error(
        "failed to prepare the connection to {server}: {reason}; check the certificates and keys of the kubeconfig"
    )]
    Client {
        /// The server's URL.
        server: String,
        /// What is wrong.
        reason: String,
    },
    /// Two connections on one registry.
    #[error("failed to register the metrics of the connection: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Loads the kubeconfig, or the pod's service account.
pub(super) async fn load(options: &ConnectOptions) -> Result<Config, ConnectError> {
    let (kubeconfig, file) = match &options.kubeconfig {
        Some(path) => (Some(read(path)?), path.display().to_string()),
        None => find()?,
    };
    let Some(kubeconfig) = kubeconfig else {
        return Config::incluster()
            .map_err(|error| ConnectError::Nowhere { file, reason: error.to_string() });
    };
    let known: Vec<String> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    let wanted = KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &wanted).await.map_err(|error| match error {
        KubeconfigError::LoadContext(context) => ConnectError::Context {
            file,
            context,
            known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
        },
        error => ConnectError::Kubeconfig { file, reason: super::transport::chain(&error) },
    })
}

/// From `$KUBECONFIG`, or from the home folder, or none; and where that is.
fn find() -> Result<(Option<Kubeconfig>, String), ConnectError> {
    #[expect(clippy::disallowed_methods, reason = "the kubeconfig is loaded here, and only here")]
    let variable = std::env::var_os("KUBECONFIG").map(|paths| paths.to_string_lossy().into_owned());
    if let Some(paths) = variable.filter(|paths| !paths.is_empty()) {
        let kubeconfig = Kubeconfig::from_env().map_err(|error| ConnectError::Kubeconfig {
            file: paths.clone(),
            reason: super::transport::chain(&error),
        })?;
        return Ok((kubeconfig, paths));
    }
    let Some(path) = std::env::home_dir().map(|home| home.join(".kube/config")) else {
        return Ok((None, "~/.kube/config".to_owned()));
    };
    let found = if path.exists() { Some(read(&path)?) } else { None };
    Ok((found, path.display().to_string()))
}

fn read(path: &Path) -> Result<Kubeconfig, ConnectError> {
    Kubeconfig::read_from(PathBuf::from(path)).map_err(|error| ConnectError::Kubeconfig {
        file: path.display().to_string(),
        reason: super::transport::chain(&error),
    })
}
