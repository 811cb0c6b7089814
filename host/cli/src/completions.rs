//! `reeve completions SHELL`: a script that completes commands and flags.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output;

/// Prints a script for shell completion, for example `source <(reeve completions bash)`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// For which shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the sub-command for the command line `C`.
pub(crate) fn run<C: CommandFactory>(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "reeve", &mut script);
    output::text(&String::from_utf8(script)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    #[command(name = "reeve")]
    struct Any;

    #[test]
    fn every_shell_gets_a_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Any::command(), "reeve", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("reeve"), "{shell}");
        }
    }
}
