//! The man pages and the completions, from the definition of the arguments.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::problem::Problem;
use crate::report::{Outcome, Output};

/// Prints the man page of `rpma`, or of one of its commands.
pub(crate) fn man(command: Option<&str>, out: &mut Output) -> Result<Outcome, Problem> {
    let mut cli = Cli::command();
    // Sets the full names of the commands.
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => named(&cli, name)?,
    };
    let mut bytes = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut bytes)
        .map_err(|error| Problem::new(format!("the page cannot be made: {error}"), ""))?;
    out.bytes(&bytes)?;
    Ok(Outcome::Good)
}

fn named(cli: &clap::Command, name: &str) -> Result<clap::Command, Problem> {
    let command = cli.find_subcommand(name).ok_or_else(|| {
        let remedy = "`rpma help` lists the commands";
        Problem::new(format!("there is no command {name:?}"), remedy)
    })?;
    Ok(command.clone())
}

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell, out: &mut Output) -> Result<Outcome, Problem> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rpma", &mut bytes);
    out.bytes(&bytes)?;
    Ok(Outcome::Good)
}
