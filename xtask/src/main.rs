//! The project's own commands, `cargo xtask …`: the demo, the tests, and the virtual machine with
//! RDMA and persistent memory in which both run.

mod guest;
mod host;
mod packages;
mod progress;
mod vm;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use guest::Guest;
use host::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// The guest machine: RDMA (soft-RoCE), persistent memory, this clone at /src
    #[command(subcommand)]
    Vm(VmAction),
}

#[derive(Debug, Subcommand)]
enum VmAction {
    /// Start the guest and leave it running
    Up {
        /// Install missing system packages without asking
        #[arg(long)]
        yes: bool,
    },
    /// Stop it
    Down,
    /// Run a command in it
    Exec {
        /// The command and its arguments
        #[arg(required = true, last = true)]
        command: Vec<String>,
    },
    /// Open a shell in it
    Shell,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(action: Action) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match action {
        Action::Vm(VmAction::Up { yes }) => {
            packages::ensure(&[packages::GUEST], yes)?;
            vm::up(&Guest::get(&workspace)?, &workspace)?;
        }
        Action::Vm(VmAction::Down) => vm::down(&workspace)?,
        Action::Vm(VmAction::Exec { command }) => {
            let terminal = std::io::stdin().is_terminal()
                && std::io::stdout().is_terminal()
                && std::io::stderr().is_terminal();
            return vm_command(&workspace, &command, terminal);
        }
        Action::Vm(VmAction::Shell) => {
            return vm_command(&workspace, &["bash".to_owned(), "-l".to_owned()], true);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command in the machine of `vm up` with our input and output; ends as it ends.
fn vm_command(workspace: &Workspace, argv: &[String], terminal: bool) -> Result<ExitCode> {
    let ssh = vm::attach(workspace)?;
    let status = ssh
        .command(argv, terminal)
        .status()
        .context("cannot run ssh")?;
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(255);
    Ok(ExitCode::from(code))
}
