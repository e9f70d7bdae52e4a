//! `rpma perf`: how fast operations are, and where the time goes.
//!
//! The settings of a run are a grid ([`Sweep`](crate::settings::Sweep)). For each point the client makes its connections
//! ([`session`]), and each thread works through its share of the operations ([`worker`]). An operation of the server's side is an RDMA operation, or one that `rpma serve`
//! answers. Results are lines of JSON ([`result`]), from which `rpma perf report` makes a page.

mod checks;
mod job;
mod load;
mod measure;
mod meter;
mod pace;
pub(crate) mod ping;
mod places;
mod print;
mod progress;
pub(crate) mod read;
pub(crate) mod report;
mod result;
#[cfg(any(test, fuzzing))]
pub(crate) mod samples;
mod session;
#[cfg(all(test, feature = "sim"))]
mod tests;
mod worker;

use rpma::Peer;

use self::print::Printer;
use self::result::Point;
use crate::args::{Endpoint, Measure};
use crate::client::{Session, Stop};
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::problem::Result;
use crate::report::{Outcome, Output};
use crate::settings::Setting;
use crate::time::utc_now;

/// Measures all points, and prints their results.
pub(crate) fn run(args: &Measure, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
    let points = checks::points(args)?;
    let mut printer = Printer::new(args, out)?;
    let mut bench = Bench::connect(&args.servers, interrupt)?;
    for point in &points {
        checks::fits(point, &bench)?;
    }
    let began = utc_now();
    let servers: Vec<&Host> = bench.hosts().collect();
    printer.head(&bench.client, &servers)?;
    let mut outcome = Outcome::Good;
    for point in &points {
        let setting = bench.completed(*point);
        let measured = match measure::measure(&mut bench, &setting, &args.span) {
            Ok(measured) => measured,
            Err(Stop::Over(problem)) => return Err(problem),
            Err(Stop::Interrupted) => {
                printer.note("ended early: interrupted")?;
                return Ok(Outcome::Bad);
            }
            Err(Stop::Failed(text) | Stop::NotPossible(text)) => {
                printer.note(&format!("{setting}: not measured: {text}"))?;
                outcome = Outcome::Bad;
                continue;
            }
        };
        let is_over = measured.is_over;
        let point = bench.point(&began, setting, measured);
        printer.point(&point)?;
        for limit in &args.fail_if {
            if let Some(fault) = limit.fault(&point.result) {
                outcome = Outcome::Bad;
                printer.note(&fault)?;
            }
        }
        if point.ended_early.is_some() {
            outcome = Outcome::Bad;
        }
        if is_over {
            return Ok(Outcome::Bad);
        }
    }
    printer.end()?;
    Ok(outcome)
}

/// The device of this host, and the sessions with all servers.
struct Bench {
    peer: Peer,
    client: Host,
    servers: Vec<Session>,
    interrupt: Interrupt,
}

impl Bench {
    fn connect(all: &[Endpoint], interrupt: &Interrupt) -> crate::client::Result<Self> {
        // The arguments have one server at least. The others are reached through the same device.
        let (peer, first) = Session::begin(None, &all[0], interrupt)?;
        let mut servers = vec![first];
        for server in &all[1..] {
            servers.push(Session::begin(Some(&peer), server, interrupt)?.1);
        }
        Ok(Self {
            servers,
            interrupt: interrupt.clone(),
            client: Host::of(&peer),
            peer,
        })
    }

    /// A setting with the method and the flush that were left open.
    fn completed(&self, setting: Setting) -> Setting {
        let is_native = |host: &Host| host.native_flush && host.native_atomic_write;
        let all_native = is_native(&self.client) && self.hosts().all(is_native);
        checks::completed(setting, &self.servers[0].offer, all_native)
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.servers.iter().map(|server| &server.server.host)
    }

    fn point(&self, began: &str, setting: Setting, measured: measure::Done) -> Point {
        Point {
            format: result::FORMAT.to_owned(),
            version: result::VERSION,
            simulated: cfg!(feature = "sim"),
            began: began.to_owned(),
            client: self.client.clone(),
            servers: self.hosts().cloned().collect(),
            setting,
            result: measured.result,
            ended_early: measured.ended_early,
        }
    }
}
