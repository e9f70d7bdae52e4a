//! The project's own commands, `cargo xtask …`: the demo, the tests, and the virtual machine with
//! RDMA and persistent memory in which both run.

mod demo;
mod guest;
mod host;
mod host_device;
mod packages;
mod progress;
mod test;
mod vm;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use demo::Demo;
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
    /// Write to persistent memory over RDMA, flush, cut the power, and look what is still there; or
    /// run librpma's examples
    Demo {
        /// Run this example instead; the beginning of its name is enough, such as 05 or 08srq
        name: Option<String>,
        /// Run all examples, with one line for each
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Use this host's RDMA device instead of the guest (no power cut)
        #[arg(long)]
        host: bool,
        /// Install missing system packages without asking
        #[arg(long)]
        yes: bool,
    },
    /// Everything that has to hold before a change lands: format, lints, documentation, tests
    Test {
        /// Also run the tests that are marked as long
        #[arg(long)]
        long: bool,
        /// Use this host's RDMA device instead of the guest
        #[arg(long)]
        host: bool,
        /// Install missing system packages without asking
        #[arg(long)]
        yes: bool,
    },
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
        Action::Demo {
            name,
            all,
            host,
            yes,
        } => {
            let demo = Demo::parse(name.as_deref(), all)?;
            let needs = if host {
                packages::BUILD
            } else {
                packages::GUEST
            };
            packages::ensure(&[needs], yes)?;
            if !demo.run(&workspace, host)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Action::Test { long, host, yes } => {
            let guest: &[packages::Need] = if host { &[] } else { packages::GUEST };
            packages::ensure(&[packages::BUILD, guest], yes)?;
            if !test::run(&workspace, test::Options { long, host })? {
                return Ok(ExitCode::FAILURE);
            }
        }
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
