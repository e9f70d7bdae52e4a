//! The command line. The help and the completions come from here.

use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::args::{Check, Doctor, Perf, Ping, Serve};
use crate::check::known_case;
use crate::problem::Result;
use crate::report::{Outcome, Output};

/// Find out whether RDMA with persistent memory works here, and what you may rely on
///
/// `rpma doctor` looks at this host, and names a remedy for each problem. It changes nothing and
/// needs no root. `rpma ping` tries a flush between two hosts for a second. `rpma check` tries every
/// operation of the library rpma against `rpma serve` on another host, and writes a report. `rpma
/// perf` measures the operations.
#[derive(Debug, Parser)]
#[command(name = "rpma", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  rpma doctor                              this host, with all its RDMA devices
  rpma serve 192.0.2.2                     on one host ...
  rpma ping 192.0.2.2                      ... and on the other: does a flush work?
  rpma check 192.0.2.2 --out report.json   ... there as well, all operations
  rpma perf 192.0.2.2 --op write-flush     ... and how fast they are

Exit status: 0 for a good result, 1 for a bad one or an error, 2 for wrong arguments.

Without RDMA, the same commands run on a simulated fabric, without a server and with results about
no real device: build rpma-cli with `--no-default-features --features sim`.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Doctor(Doctor),
    Serve(Serve),
    Ping(Ping),
    Check(Check),
    Perf(Perf),
    /// Print the completions for a shell
    #[command(after_help = "\
Example:
  mkdir -p ~/.local/share/bash-completion/completions
  rpma completions bash > ~/.local/share/bash-completion/completions/rpma")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Cli {
    /// The definition of the command line. The cases are known here, and not in [`crate::args`],
    /// on which they stand.
    pub(crate) fn definition() -> clap::Command {
        let with_names = |only: Arg| only.value_parser(known_case);
        let all = Self::command().mut_subcommand("check", |it| it.mut_arg("only", with_names));
        // A negative number is a wrong value, and no unknown option.
        all.mut_subcommands(|command| with_profile(command.allow_negative_numbers(true)))
    }

    /// The arguments of this process. Ends it if they are wrong.
    pub(crate) fn read() -> Self {
        let mut matches = Self::definition().get_matches();
        let read = Self::from_arg_matches_mut(&mut matches);
        read.unwrap_or_else(|error| error.format(&mut Self::definition()).exit())
    }
}

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell, out: &mut Output) -> Result<Outcome> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::definition(), "rpma", &mut bytes);
    out.bytes(&bytes)?;
    Ok(Outcome::Good)
}

/// The option of the simulated build has an error of its own in the other one.
fn with_profile(command: clap::Command) -> clap::Command {
    const OTHER_BUILD: &str = "only the simulated build has profiles: build rpma-cli with `--no-default-features --features sim`";
    let has_profile = ["doctor", "ping", "check", "perf"].contains(&command.get_name());
    if cfg!(feature = "sim") || !has_profile {
        return command;
    }
    let refused = |_: &str| -> Result<String, &str> { Err(OTHER_BUILD) };
    let profile = Arg::new("profile").long("profile").value_name("NAME");
    command.arg(profile.hide(true).value_parser(refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the error of the wrong build names the right one.
    #[cfg(not(feature = "sim"))]
    #[test]
    fn a_profile_is_for_the_other_build() {
        for command in ["doctor", "ping", "check", "perf"] {
            let args = ["rpma", command, "--profile", "strict"];
            let error = Cli::definition()
                .try_get_matches_from(args)
                .expect_err("refused");
            let error = error.to_string();
            assert!(
                error.contains("only the simulated build has profiles"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Cli::definition().debug_assert();
    }
}
