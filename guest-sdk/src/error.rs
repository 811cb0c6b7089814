//! Failures of a run (feature D1).

use std::fmt;
use std::time::Duration;

/// Why a run failed: what the host retries by, and what users read in the object's condition.
///
/// ```
/// use std::time::Duration;
/// use reeve_sdk::{Category, Error};
///
/// let error = Error::transient("DB_CONN_TIMEOUT", "the database did not answer within 2 s")
///     .category(Category::Network)
///     .severity(4)
///     .retry_after(Duration::from_secs(30))
///     .detail("host", "db-0");
/// assert!(error.is_transient());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub(crate) code: String,
    pub(crate) category: Category,
    pub(crate) severity: u8,
    pub(crate) transient: bool,
    pub(crate) message: String,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) details: Vec<(String, String)>,
}

/// What kind of thing went wrong; a label of the host's metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Category {
    /// A connection or a name.
    Network,
    /// A disk or a database.
    Storage,
    /// Who are you?
    Auth,
    /// Something does not have the right shape or value.
    Validation,
    /// There is not enough of something.
    Quota,
    /// Somebody else changed it.
    Conflict,
    /// Another system failed.
    Dependency,
    /// It is not there.
    NotFound,
    /// It took too long.
    Timeout,
    /// You may not.
    Permission,
    /// A mistake in the plugin or in the host.
    Internal,
    /// A word of one's own, lower case with hyphens.
    Other(String),
}

/// Codes that the SDK and the host give by themselves.
pub mod code {
    /// The object does not have the shape that the plugin's type expects. Permanent.
    pub const INVALID_OBJECT: &str = "INVALID_OBJECT";
    /// The configuration does not have the shape that the plugin's type expects. Permanent.
    pub const INVALID_CONFIG: &str = "INVALID_CONFIG";
    /// An argument of a host call is not usable. Permanent.
    pub const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";
    /// The manifest does not declare the kind or verb. Permanent.
    pub const NOT_DECLARED: &str = "NOT_DECLARED";
    /// The operator does not grant the kind or verb. Permanent.
    pub const NOT_GRANTED: &str = "NOT_GRANTED";
    /// More than a limit allows.
    pub const LIMIT_EXCEEDED: &str = "LIMIT_EXCEEDED";
    /// Something that the author did not expect.
    pub const INTERNAL: &str = "INTERNAL";
}

/// Turns any error into an [`Error`] with a code of one's own.
///
/// ```
/// use reeve_sdk::{Error, ResultExt};
///
/// fn port(text: &str) -> Result<u16, Error> {
///     text.parse::<u16>().permanent("BAD_PORT")
/// }
/// assert_eq!(port("http").unwrap_err().code(), "BAD_PORT");
/// ```
pub trait ResultExt<T> {
    /// A failure that is retried with back-off.
    ///
    /// # Errors
    /// The same, as an [`Error`].
    fn transient(self, code: &str) -> Result<T, Error>;

    /// A failure that waits for the next change.
    ///
    /// # Errors
    /// The same, as an [`Error`].
    fn permanent(self, code: &str) -> Result<T, Error>;
}

// === impl Error ===

impl Error {
    /// Retried with back-off: it may work the next time. The code is `UPPER_SNAKE_CASE` and
    /// stable; the message is a sentence for people, without secrets and object bodies.
    pub fn transient(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            category: Category::Internal,
            severity: 3,
            transient: true,
            message: message.into(),
            retry_after: None,
            details: Vec::new(),
        }
    }

    /// Not retried: it waits for the next change of the object, or the resync.
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { transient: false, ..Self::transient(code, message) }
    }

    /// The object asks for something that cannot be: a permanent error of category `validation`.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::permanent(code::INVALID_OBJECT, message).category(Category::Validation)
    }

    /// Another category; the default is `internal`.
    #[must_use]
    pub fn category(mut self, category: Category) -> Self {
        self.category = category;
        self
    }

    /// From 1 (a nuisance) to 5 (data at risk); the default is 3.
    #[must_use]
    pub fn severity(mut self, severity: u8) -> Self {
        self.severity = severity.clamp(1, 5);
        self
    }

    /// The delay before the next attempt; it wins over the back-off.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// One more fact; the host keeps 16 of 256 bytes each.
    #[must_use]
    pub fn detail(mut self, key: impl Into<String>, value: impl fmt::Display) -> Self {
        self.details.push((key.into(), value.to_string()));
        self
    }

    /// The stable word.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether it is retried with back-off.
    pub const fn is_transient(&self) -> bool {
        self.transient
    }

    /// The delay that was asked for.
    pub const fn delay(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The further facts.
    pub fn details(&self) -> &[(String, String)] {
        &self.details
    }
}

/// `CODE: message`
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)?;
        f.write_str(": ")?;
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A document of the wrong shape: permanent, [`INVALID_OBJECT`](code::INVALID_OBJECT).
///
/// [`Handle::parse`](crate::Handle::parse) and the SDK's other typed reads say the path as well,
/// which `serde_json` alone does not know.
impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::invalid(crate::decode::masked(&error))
    }
}

impl From<fmt::Error> for Error {
    fn from(error: fmt::Error) -> Self {
        Self::permanent(code::INTERNAL, error.to_string())
    }
}

impl<T, E: fmt::Display> ResultExt<T> for Result<T, E> {
    fn transient(self, code: &str) -> Result<T, Error> {
        self.map_err(|error| Error::transient(code, error.to_string()))
    }

    fn permanent(self, code: &str) -> Result<T, Error> {
        self.map_err(|error| Error::permanent(code, error.to_string()))
    }
}

// === impl Category ===

impl Category {
    /// The word of the contract.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Network => "network",
            Self::Storage => "storage",
            Self::Auth => "auth",
            Self::Validation => "validation",
            Self::Quota => "quota",
            Self::Conflict => "conflict",
            Self::Dependency => "dependency",
            Self::NotFound => "not-found",
            Self::Timeout => "timeout",
            Self::Permission => "permission",
            Self::Internal => "internal",
            Self::Other(word) => word,
        }
    }

    /// From the word of the contract.
    pub fn from_word(word: &str) -> Self {
        match word {
            "network" => Self::Network,
            "storage" => Self::Storage,
            "auth" => Self::Auth,
            "validation" => Self::Validation,
            "quota" => Self::Quota,
            "conflict" => Self::Conflict,
            "dependency" => Self::Dependency,
            "not-found" => Self::NotFound,
            "timeout" => Self::Timeout,
            "permission" => Self::Permission,
            "internal" => Self::Internal,
            other => Self::Other(other.to_owned()),
        }
    }
}
