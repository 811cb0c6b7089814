//! What an operator sets: one plain struct with defaults, checked once before anything starts.
//!
//! The command line fills it in. The environment is read here and nowhere else in the host
//! (`KUBECONFIG` and the in-cluster files are the cluster crate's).

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reeve_core::grant::{Ceiling, CeilingRule};

/// Where probes and metrics are served unless configured. Loopback, because the admin port can
/// start reconciles; a Deployment sets `0.0.0.0:8080` and guards it with a `NetworkPolicy`.
pub const DEFAULT_ADMIN_ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// How long runs in work may go on after the stop signal: what Kubernetes grants by default.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// The largest plugin file that is read: a component with its own language runtime has 10 to 20 MiB.
pub const DEFAULT_MAX_PLUGIN_BYTES: usize = 32 * 1024 * 1024;
/// Plugin runs between "taken from the queue" and "settled" at once, over all plugins. The sandbox
/// has 256 instance slots, and a run that commits holds none, so this is the larger number.
pub const DEFAULT_RUNS: usize = 512;
/// The most instances alive at once: the pooling allocator's slots.
pub const DEFAULT_INSTANCES: u32 = 256;

/// What an operator sets.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Folders whose `*.wasm` files are plugins.
    pub plugin_dirs: Vec<PathBuf>,
    /// Whether ConfigMaps with the label `reeve.dev/plugin` are plugins, and in which namespaces.
    pub configmaps: ConfigMaps,
    /// The namespaces whose objects plugins see; empty means all.
    pub namespaces: BTreeSet<String>,
    /// The host's own namespace: Secrets are granted only there by default, and ConfigMaps with
    /// plugins are looked for there.
    pub host_namespace: String,
    /// `--allow`: what plugins may do at most. Empty means the default ceiling.
    pub allow: Vec<CeilingRule>,
    /// Where probes, metrics and the admin API are served; `None` turns them off. Port 0 picks one.
    pub admin_addr: Option<SocketAddr>,
    /// How long runs in work may go on after the stop signal.
    pub grace: Grace,
    /// Where compiled plugins are kept, a private folder; `None` compiles at every start.
    pub cache_dir: Option<PathBuf>,
    /// Threads that run guest code; 0 means one per core.
    pub guest_threads: usize,
    /// The most guest instances alive at once.
    pub max_instances: u32,
    /// The most plugin runs between "taken from the queue" and "settled" at once.
    pub max_runs: usize,
    /// The largest plugin that is taken, in bytes.
    pub max_plugin_bytes: usize,
    /// When a changed file is acted upon.
    pub pace: Pace,
}

/// Whether ConfigMaps are a source of plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigMaps {
    /// They are not.
    Off,
    /// Those of the host's namespace and of these are.
    On {
        /// Beside the host's own.
        namespaces: BTreeSet<String>,
    },
}

/// How long runs in work may go on after the stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grace {
    /// Until they end.
    Unlimited,
    /// At most this; 0 ends them at once.
    Limited(Duration),
}

/// When a source acts upon a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A file is read when nothing has happened to its folder for this long …
    pub quiet: Duration,
    /// … or this long after the first thing happened.
    pub longest: Duration,
    /// How often a folder is looked at although no event came: network file systems send none.
    pub rescan: Duration,
    /// How long a plugin's file may be missing before the plugin is stopped: a copy over the old
    /// file, or a ConfigMap that is made again, is no removal.
    pub gone_after: Duration,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// There would never be a plugin.
    #[error("no source of plugins: name a folder with --plugins DIR, or turn on --configmaps")]
    NoSource,
    /// The folder is missing or no folder.
    #[error("plugin folder {} {problem}: create it, or correct --plugins", .path.display())]
    Folder {
        /// As configured.
        path: PathBuf,
        /// In words.
        problem: &'static str,
    },
    /// A namespace that Kubernetes would refuse.
    #[error("{0:?} is not a namespace name: use 1 to 63 of a-z, 0-9 and '-'")]
    Namespace(String),
    /// A number outside of its bounds.
    #[error("{name} is {value}, it must be between {from} and {to}")]
    Range {
        /// Of the setting.
        name: &'static str,
        /// As configured.
        value: u64,
        /// The least.
        from: u64,
        /// The most.
        to: u64,
    },
    /// A grace period that is no duration.
    #[error("grace period {0:?} is neither a number of seconds nor \"unlimited\"")]
    Grace(String),
}

// === impl HostConfig ===

impl HostConfig {
    /// The defaults, with the host's namespace.
    pub fn new(host_namespace: impl Into<String>) -> Self {
        Self {
            plugin_dirs: Vec::new(),
            configmaps: ConfigMaps::Off,
            namespaces: BTreeSet::new(),
            host_namespace: host_namespace.into(),
            allow: Vec::new(),
            admin_addr: Some(DEFAULT_ADMIN_ADDR),
            grace: Grace::Limited(DEFAULT_GRACE),
            cache_dir: default_cache_dir(),
            guest_threads: 0,
            max_instances: DEFAULT_INSTANCES,
            max_runs: DEFAULT_RUNS,
            max_plugin_bytes: DEFAULT_MAX_PLUGIN_BYTES,
            pace: Pace::default(),
        }
    }

    /// Checks what can be checked without a cluster.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.plugin_dirs.is_empty() && self.configmaps == ConfigMaps::Off {
            return Err(ConfigError::NoSource);
        }
        for path in &self.plugin_dirs {
            check_folder(path)?;
        }
        let more = match &self.configmaps {
            ConfigMaps::Off => None,
            ConfigMaps::On { namespaces } => Some(namespaces),
        };
        let namespaces = self.namespaces.iter().chain(more.into_iter().flatten());
        for namespace in namespaces.chain(std::iter::once(&self.host_namespace)) {
            check_namespace(namespace)?;
        }
        let range = |name, value: u64, from, to| {
            if (from..=to).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::Range { name, value, from, to })
            }
        };
        range("guest threads", self.guest_threads as u64, 0, 256)?;
        range("max instances", self.max_instances.into(), 1, 10_000)?;
        range("max runs", self.max_runs as u64, 1, 100_000)?;
        range("max plugin bytes", self.max_plugin_bytes as u64, 1024, 1024 * 1024 * 1024)
    }

    /// The ceiling of all grants.
    pub fn ceiling(&self) -> Ceiling {
        Ceiling { host_namespace: self.host_namespace.as_str().into(), rules: self.allow.clone() }
    }

    /// The namespaces in which ConfigMaps with plugins are looked for; empty when they are off.
    pub fn configmap_namespaces(&self) -> BTreeSet<String> {
        match &self.configmaps {
            ConfigMaps::Off => BTreeSet::new(),
            ConfigMaps::On { namespaces } => {
                namespaces.iter().cloned().chain(std::iter::once(self.host_namespace.clone())).collect()
            }
        }
    }
}

fn check_folder(path: &Path) -> Result<(), ConfigError> {
    let problem = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "is no folder",
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "does not exist",
        Err(_) => "cannot be read",
    };
    Err(ConfigError::Folder { path: path.to_owned(), problem })
}

fn check_namespace(name: &str) -> Result<(), ConfigError> {
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = name.as_bytes();
    let valid = bytes.len() <= 63
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    if valid { Ok(()) } else { Err(ConfigError::Namespace(name.to_owned())) }
}

/// `$REEVE_CACHE_DIR`, else `reeve` below the user's cache folder.
#[expect(clippy::disallowed_methods, reason = "this is the one place where the environment is read")]
fn default_cache_dir() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("REEVE_CACHE_DIR").or_else(|| {
        let base = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
        base.is_absolute().then(|| base.join("reeve").join("compiled"))
    })
}

/// The host's own namespace as the Downward API gives it (`POD_NAMESPACE`), where it does.
#[expect(clippy::disallowed_methods, reason = "this is the one place where the environment is read")]
pub fn namespace_from_env() -> Option<String> {
    std::env::var("POD_NAMESPACE").ok().filter(|name| !name.is_empty())
}

/// The log filter of the environment (`REEVE_LOG`), where there is one.
#[expect(clippy::disallowed_methods, reason = "this is the one place where the environment is read")]
pub fn log_from_env() -> Option<String> {
    std::env::var("REEVE_LOG").ok().filter(|filter| !filter.is_empty())
}

/// Whether colours are wanted: `NO_COLOR` is unset or empty.
#[expect(clippy::disallowed_methods, reason = "this is the one place where the environment is read")]
pub fn colour_from_env() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

// === impl Grace ===

impl std::str::FromStr for Grace {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ConfigError::Grace(text.to_owned());
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        let digits = text.strip_suffix('s').unwrap_or(text);
        let seconds: u64 = digits.parse().map_err(|_| invalid())?;
        // A year: more is a mistake, and would overflow a timer.
        if seconds > 365 * 24 * 3600 {
            Err(invalid())
        } else {
            Ok(Self::Limited(Duration::from_secs(seconds)))
        }
    }
}

// === impl Pace ===

impl Default for Pace {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            longest: Duration::from_millis(500),
            rescan: Duration::from_secs(30),
            gone_after: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> HostConfig {
        HostConfig {
            configmaps: ConfigMaps::On { namespaces: BTreeSet::new() },
            ..HostConfig::new("reeve-system")
        }
    }

    #[test]
    fn a_host_without_a_source_is_refused() {
        assert_eq!(HostConfig::new("default").validate(), Err(ConfigError::NoSource));
        assert_eq!(valid().validate(), Ok(()));
    }

    #[test]
    fn refusals_name_the_setting() {
        let folder = |name: &str| {
            let path = std::env::temp_dir().join(name);
            HostConfig { plugin_dirs: vec![path], ..valid() }.validate().map_err(|error| error.to_string())
        };
        assert!(folder("reeve-no-such-folder").unwrap_err().contains("reeve-no-such-folder does not exist"));
        let config = HostConfig { namespaces: ["Web".to_owned()].into(), ..valid() };
        assert_eq!(config.validate(), Err(ConfigError::Namespace("Web".to_owned())));
        let config = HostConfig { max_runs: 0, ..valid() };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "max runs is 0, it must be between 1 and 100000"
        );
    }

    #[test]
    fn grace_is_seconds_or_unlimited() {
        assert_eq!("unlimited".parse(), Ok(Grace::Unlimited));
        assert_eq!("0".parse(), Ok(Grace::Limited(Duration::ZERO)));
        assert_eq!("30s".parse(), Ok(Grace::Limited(Duration::from_secs(30))));
        for bad in ["", "-1", "soon", "99999999999"] {
            assert!(bad.parse::<Grace>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn configmaps_are_looked_for_in_the_hosts_namespace_too() {
        let config =
            HostConfig { configmaps: ConfigMaps::On { namespaces: ["web".to_owned()].into() }, ..valid() };
        let found: Vec<_> = config.configmap_namespaces().into_iter().collect();
        assert_eq!(found, ["reeve-system", "web"]);
    }
}
