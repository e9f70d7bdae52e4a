//! The command `rpma`: does RDMA with persistent memory work here, and which promises hold?
//!
//! `rpma doctor` looks at one host. `rpma check` tries every operation of the library against
//! `rpma serve` on another host, and `rpma perf` measures the operations. The exit status is 0 for
//! a good result, 1 for a bad result or an error, and 2 for wrong arguments.
//!
//! A library, so that fuzz targets reach its decoders. Only the program uses it.

#![forbid(unsafe_code)]

mod args;
mod bytes;
mod check;
mod cli;
mod client;
mod doctor;
mod endpoint;
#[cfg(feature = "sim")]
mod fabric;
#[cfg_attr(
    feature = "sim",
    allow(dead_code, reason = "a simulated host has no files")
)]
mod facts;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod host;
mod interrupt;
mod mailbox;
mod perf;
mod problem;
mod report;
mod serve;
mod settings;
mod time;
mod wire;

use std::process::ExitCode;

use args::PerfCommand;
use cli::{Cli, Command};
use interrupt::Interrupt;
use problem::Result;
use report::{Outcome, Output};

/// The status of a program that SIGPIPE has ended, in a shell.
const CLOSED_PIPE: u8 = 141;

/// Runs the command with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    match run(Cli::read().command) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(problem) if problem.is_closed_pipe() => ExitCode::from(CLOSED_PIPE),
        Err(problem) => {
            report::error_line(&format!("error: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<Outcome> {
    let out = &mut Output::stdout();
    match command {
        Command::Doctor(args) => diagnose(&args, &Interrupt::install()?, out),
        Command::Serve(args) => serve(&args, &Interrupt::install()?, out),
        Command::Ping(args) => ping(&args, &Interrupt::install()?, out),
        Command::Check(args) => check(&args, &Interrupt::install()?, out),
        Command::Perf(args) => match &args.command {
            Some(PerfCommand::Report { files, out: page }) => perf::report::write(files, page, out),
            None => measure(&args.measure, &Interrupt::install()?, out),
        },
        Command::Completions { shell } => cli::completions(shell, out),
    }
}

#[cfg(not(feature = "sim"))]
use self::{
    check::run as check, doctor::run as diagnose, perf::ping::run as ping, perf::run as measure,
    serve::run as serve,
};

#[cfg(feature = "sim")]
use self::fabric::{check, diagnose, measure, ping, serve};
