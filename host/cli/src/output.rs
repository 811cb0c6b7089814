//! What a sub-command prints for its user: the one door to standard output.

use std::io::Write as _;

/// Prints a text and a line break. A closed pipe (`reeve … | head`) is no error.
pub(crate) fn text(text: &str) {
    line(text.trim_end_matches('\n'));
}

/// Prints one line.
pub(crate) fn line(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(exit::PIPE_CLOSED);
    }
}

/// The exit code of a sub-command; what failed goes to standard error, with its causes.
pub(crate) fn exit_code(done: anyhow::Result<()>) -> std::process::ExitCode {
    let Err(error) = done else { return std::process::ExitCode::SUCCESS };
    // Nobody is left to tell when standard error is closed too.
    let _ = writeln!(std::io::stderr().lock(), "reeve: {error:#}");
    exit::FAILURE.into()
}

/// Exit codes of the `reeve` command, beside clap's own 2 for a command line that is not usable.
pub(crate) mod exit {
    /// Something failed; the last line of standard error says what.
    pub(crate) const FAILURE: u8 = 1;
    /// Who read our output went away: 128 + SIGPIPE, as other commands end then.
    pub(crate) const PIPE_CLOSED: i32 = 141;
}
