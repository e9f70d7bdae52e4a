//! The project's own commands, `cargo xtask …`: the demo, the tests, and the virtual machine with
//! RDMA and persistent memory in which both run.

#[cfg(test)]
mod addresses;
mod bench;
mod demo;
mod guest;
mod host;
mod host_device;
mod lab;
mod packages;
mod process;
mod progress;
mod test;
mod vm;

use std::io::IsTerminal;
use std::process::{ExitCode, ExitStatus};

use anyhow::Result;
use clap::{Parser, Subcommand};
use rustix::process::Signal;

use demo::Demo;
use host::Workspace;
use process::spawn;
use vm::Machines;

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
    },
    /// Everything that has to hold before a change lands: format, lints, documentation, tests; or
    /// the device tests of one program, with all that they print
    #[command(after_help = TEST_HELP)]
    Test {
        /// Run only the device tests about this subject, such as connect
        subject: Option<String>,
        /// Of these, only the tests that have one of these in their names, also the long
        /// ones
        names: Vec<String>,
        /// List the device tests instead of running them
        #[arg(long)]
        list: bool,
        /// Also run the tests that are marked as long and, where everything is run, the checks of
        /// versions
        #[arg(long)]
        long: bool,
        /// Use this host's RDMA device instead of the guest
        #[arg(long)]
        host: bool,
        /// Over the guest's soft-iWARP instead of soft-RoCE. Without a subject: only the tests that
        /// run over it as a part of everything
        #[arg(long, conflicts_with_all = ["list", "host"])]
        iwarp: bool,
        /// Only Miri and the sanitizers, over the library on the simulated fabric; part of
        /// `--long`. Needs a nightly toolchain, which it names
        #[arg(long, conflicts_with_all = ["subject", "list", "long", "host", "iwarp"])]
        miri: bool,
        /// Only the fuzz targets, a minute of each; part of `--long`. Needs a nightly toolchain and
        /// cargo-fuzz
        #[arg(long, conflicts_with_all = ["subject", "list", "long", "host", "iwarp", "miri"])]
        fuzz: bool,
    },
    /// Measure, in the guest
    #[command(subcommand)]
    Bench(BenchAction),
    /// The versions that are promised: publishing (dry run), cargo-deny, the oldest Rust and the
    /// oldest dependencies. Needs the network; part of `test --long`
    Versions,
    /// The guest machine: RDMA (soft-RoCE), persistent memory, this clone at /src
    #[command(subcommand)]
    Vm(VmAction),
}

const TEST_HELP: &str = "\
Examples:
  cargo xtask test                             everything (the logs are in target/xtask/logs)
  cargo xtask test --list                      the device tests
  cargo xtask test connect                     all tests about connections
  cargo xtask test connect a_dropped_request   one of them
  cargo xtask test hosts                       what runs between two guests
  cargo xtask test hosts \"power cuts\"          a part of that
  cargo xtask test --iwarp                     what runs over soft-iWARP
  cargo xtask test --iwarp connect             all tests about connections over soft-iWARP

RPMA_TEST_LIMIT=SECONDS sets the longest that one device test may take (300, with --long 10800).";

#[derive(Debug, Subcommand)]
enum BenchAction {
    /// The instructions that each operation costs, beside librpma's and those of bare verbs
    Cost {
        /// Write those of this library to tests/cost/counts.txt, with which `test` compares
        #[arg(long)]
        record: bool,
    },
    /// Those of a write and a poll with 1 to 1,000 connections, and what each connection takes of
    /// memory
    Connections,
    /// How long a write with its flush takes, beside librpma, in turn: in a guest whose clock
    /// counts instructions
    Time,
    /// What `rpma perf` measures with other settings, and beside `ib_write_bw`: in the same guest
    Perf,
}

#[derive(Debug, Subcommand)]
enum VmAction {
    /// Start the guest and leave it running; or two or three, with a link between them
    Up {
        /// How many: 1, 2 or 3
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
        peers: u8,
    },
    /// Stop all that run
    Down,
    /// Run a command in it
    Exec {
        #[command(flatten)]
        which: Which,
        /// The command and its arguments
        #[arg(required = true, last = true)]
        command: Vec<String>,
    },
    /// Open a shell in it
    Shell {
        #[command(flatten)]
        which: Which,
    },
    /// Stop one of several machines with everything in it, so that it answers no packet
    Freeze(Number),
    /// Let a frozen machine go on
    Thaw(Number),
    /// Cut the power of one of several machines
    Cut(Number),
    /// Boot a machine of several again, with the persistent memory that it had
    Boot(Number),
    /// Spoil what a machine sends to its peers, as netem does: `loss 1%`, `delay 10ms`, `off`
    Net {
        #[command(flatten)]
        which: Number,
        /// `off`, or what `tc qdisc … netem` takes
        #[arg(required = true)]
        how: Vec<String>,
    },
}

/// Which machine is meant: an option.
#[derive(Debug, clap::Args)]
struct Which {
    /// The number of one of several
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    peer: u8,
}

/// Which machine is meant.
#[derive(Debug, clap::Args)]
struct Number {
    #[arg(value_parser = clap::value_parser!(u8).range(1..=3))]
    peer: u8,
}

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(action: Action) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match action {
        Action::Demo { name, all, host } => {
            let demo = Demo::parse(name.as_deref(), all)?;
            packages::ensure(host, !host)?;
            demo.run(&workspace, host).map(verdict)
        }
        Action::Test {
            subject,
            names,
            list,
            long,
            host,
            iwarp,
            miri,
            fuzz,
        } => {
            if miri {
                return test::checkers(&workspace).map(verdict);
            }
            if fuzz {
                return test::fuzz(&workspace).map(verdict);
            }
            let options = test::Options { long, host, iwarp };
            // Code for the guest is compiled in the guest's root.
            let is_all = subject.is_none() && !list && !iwarp;
            packages::ensure(host || is_all, !host)?;
            match subject.as_deref() {
                subject if list => {
                    test::list(&workspace, subject, &names, host).map(|()| ExitCode::SUCCESS)
                }
                None if iwarp => test::iwarp(&workspace, options).map(verdict),
                Some("hosts") if !iwarp => test::hosts(&workspace, &names, options).map(verdict),
                Some(subject) => test::some(&workspace, subject, &names, options).map(code),
                None => test::all(&workspace, options).map(verdict),
            }
        }
        Action::Bench(action) => {
            let in_guest = !matches!(action, BenchAction::Cost { record: true });
            packages::ensure(!in_guest, in_guest)?;
            match action {
                BenchAction::Cost { record: true } => {
                    bench::record_cost(&workspace).map(|()| ExitCode::SUCCESS)
                }
                BenchAction::Cost { record: false } => bench::cost(&workspace, &[]).map(code),
                BenchAction::Connections => bench::cost(&workspace, &["connections"]).map(code),
                BenchAction::Time => bench::time(&workspace).map(code),
                BenchAction::Perf => bench::perf(&workspace).map(code),
            }
        }
        Action::Versions => {
            packages::ensure(true, true)?;
            test::versions(&workspace).map(verdict)
        }
        Action::Vm(action) => vm(&workspace, action),
    }
}

fn vm(workspace: &Workspace, action: VmAction) -> Result<ExitCode> {
    let machines = Machines::of_up(workspace)?;
    // In a machine, with our input and output; it ends as the command does.
    let run = |peer, argv: &[String], terminal| {
        let mut command = machines.ssh(peer)?.command(argv, terminal);
        Ok(code(spawn(&mut command)?.wait()?))
    };
    match action {
        VmAction::Up { peers } => {
            packages::ensure(false, true)?;
            vm::up(workspace, peers)?;
        }
        VmAction::Boot(Number { peer }) => vm::boot(workspace, peer)?,
        VmAction::Down => vm::down(workspace)?,
        VmAction::Freeze(Number { peer }) => machines.signal(peer, Signal::STOP)?,
        VmAction::Thaw(Number { peer }) => machines.signal(peer, Signal::CONT)?,
        VmAction::Cut(Number { peer }) => machines.cut(peer)?,
        VmAction::Net { which, how } => return run(which.peer, &vm::netem(&how.join(" ")), false),
        VmAction::Exec { which, command } => {
            let terminal = std::io::stdin().is_terminal()
                && std::io::stdout().is_terminal()
                && std::io::stderr().is_terminal();
            return run(which.peer, &command, terminal);
        }
        VmAction::Shell { which } => {
            return run(which.peer, &["bash", "-l"].map(str::to_owned), true);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn verdict(ok: bool) -> ExitCode {
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Our exit code for that of a program.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(255))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that no machine has is refused before a guest is built.
    #[test]
    fn a_wrong_number_is_refused() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        for command in [
            "up --peers N",
            "exec --peer N -- true",
            "freeze N",
            "boot N",
        ] {
            for (number, is_right) in [("0", false), ("1", true), ("3", true), ("4", false)] {
                let line = format!("xtask vm {}", command.replace('N', number));
                assert_eq!(parse(&line), is_right, "{line}");
            }
        }
    }
}
