//! Measurements that end before their end.

use std::error::Error;
use std::io;
use std::thread::{self, sleep};
use std::time::Duration;

use clap::Parser;
use rpma::sim::{Fabric, Profile};

use crate::args::Measure;
use crate::cli::{Cli, Command};
use crate::fabric::{Running, server};
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Outcome, Output};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The arguments of a measurement that would take an hour.
fn args(words: &str) -> Result<Measure> {
    let all = format!("rpma perf --time 3600 {words}");
    match Cli::try_parse_from(all.split_whitespace())?.command {
        Command::Perf(args) => Ok(args.measure),
        other => Err(format!("{other:?}").into()),
    }
}

/// Every way to await completions, of single operations and of commits.
const KINDS: [&str; 4] = [
    "--completions poll",
    "--completions wait",
    "--op commit --completions poll",
    "--op commit --completions wait",
];

/// Starts a measurement, and calls `end` some time later, whatever is done by then. Returns the
/// reason of a measurement that could not begin.
fn ended_by(words: &str, end: fn(&Interrupt, &mut Option<Running>)) -> Result<Option<Problem>> {
    let fabric = Fabric::new(Profile::RXE_6_12);
    let (running, addr) = server(&fabric.host("server"), None)?;
    let (mut running, interrupt) = (Some(running), Interrupt::default());
    let mut args = args(words)?;
    args.servers.push(addr);
    let client = fabric.host("client");
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            sleep(Duration::from_millis(300));
            end(&interrupt, &mut running);
        });
        let _entered = client.enter();
        crate::perf::run(&args, &interrupt, &mut Output::to(io::sink()))
    });
    running.map(Running::stop).transpose()?;
    match ended {
        Ok(Outcome::Good) => Err(format!("{words}: it took its hour").into()),
        Ok(Outcome::Bad) => Ok(None),
        Err(problem) => Ok(Some(problem)),
    }
}

/// Promise: a server that ends in the middle ends the measurement, with one line.
#[test]
fn a_server_that_dies_ends_the_measurement() -> Result {
    for words in KINDS {
        let problem = ended_by(words, |_, server| drop(server.take().map(Running::stop)))?;
        let lines = problem.map_or(1, |problem| problem.to_string().lines().count());
        assert_eq!(lines, 1, "{words}");
    }
    Ok(())
}

/// Promise: ctrl-c ends a measurement, with the results so far.
#[test]
fn an_interrupt_ends_the_measurement() -> Result {
    for words in KINDS {
        ended_by(words, |interrupt, _| interrupt.set())?;
    }
    Ok(())
}
