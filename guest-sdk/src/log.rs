//! Log lines, and the hook that makes a panic one.
//!
//! The host adds plugin, object, attempt and reconcile id to each line, limits lines and bytes per
//! run (a manifest's `log_lines`, by default 256), and counts what it drops. Never log object
//! bodies or secrets.

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Every step.
    Trace,
    /// For whoever looks for a mistake.
    Debug,
    /// What an operator may want to know.
    Info,
    /// Something is odd, and the plugin copes.
    Warn,
    /// Something does not work.
    Error,
}

/// Writes a line with fields, for example `log::write(Level::Info, "scaled", &[("to", "3")])`.
pub fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
    #[cfg(target_arch = "wasm32")]
    crate::role::log(level, message, fields);
    #[cfg(not(target_arch = "wasm32"))]
    crate::testing::capture(level, message, fields);
}

/// Logs a line at level debug, with the arguments of `format!`.
#[macro_export]
macro_rules! debug {
    ($($argument:tt)+) => { $crate::log::write($crate::log::Level::Debug, &format!($($argument)+), &[]) };
}

/// Logs a line at level info, with the arguments of `format!`.
#[macro_export]
macro_rules! info {
    ($($argument:tt)+) => { $crate::log::write($crate::log::Level::Info, &format!($($argument)+), &[]) };
}

/// Logs a line at level warn, with the arguments of `format!`.
#[macro_export]
macro_rules! warn {
    ($($argument:tt)+) => { $crate::log::write($crate::log::Level::Warn, &format!($($argument)+), &[]) };
}

/// Logs a line at level error, with the arguments of `format!`.
#[macro_export]
macro_rules! error {
    ($($argument:tt)+) => { $crate::log::write($crate::log::Level::Error, &format!($($argument)+), &[]) };
}
