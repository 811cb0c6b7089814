//! Where log lines go: standard error, as text for people or as JSON for machines.

use std::io::IsTerminal as _;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// Text.
    Human,
    /// One JSON object per line.
    Json,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is none.
    #[error("log filter {0:?} is not usable: {1}; write for example \"info\" or \"info,reeve::guest=debug\"")]
    Filter(String, tracing_subscriber::filter::ParseError),
    /// There is one already.
    #[error("failed to set up logging: {0}")]
    Set(String),
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            _ => Err("use auto, human or json".to_owned()),
        }
    }
}

/// Sets up the log of this process. `filter` is a level, or levels by target; what guests write has
/// the target `reeve::guest`. Colours only on a terminal, and not where `colour` is false.
pub fn init(format: LogFormat, filter: &str, colour: bool) -> Result<(), LogError> {
    let env = EnvFilter::try_new(filter).map_err(|error| LogError::Filter(filter.to_owned(), error))?;
    let terminal = std::io::stderr().is_terminal();
    let json = format == LogFormat::Json || (format == LogFormat::Auto && !terminal);
    let builder = tracing_subscriber::fmt().with_env_filter(env).with_writer(std::io::stderr);
    let set = if json {
        builder.json().flatten_event(true).with_span_list(false).try_init()
    } else {
        builder.with_ansi(terminal && colour).try_init()
    };
    set.map_err(|error| LogError::Set(error.to_string()))
}
