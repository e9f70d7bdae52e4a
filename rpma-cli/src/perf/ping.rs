//! `rpma ping`: does a server answer, and how long do a write and its flush take?

use std::time::Instant;

use serde::Serialize;

use super::Bench;
use super::measure::measure;
use super::result::{Latency, Point};
use crate::args::{Format, Ping, Span};
use crate::host;
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Outcome, Output, ResultFile};
use crate::settings::{Nanos, Op, Setting};
use crate::time::utc_now;

/// Long enough for a few thousand flushes.
const SPAN: Span = Span {
    warm_up: 0.0,
    time: 1.0,
    count: None,
};

/// The report.
#[derive(Serialize)]
struct Pinged {
    command: &'static str,
    result: Outcome,
    /// The time until the session with the server had begun, in nanoseconds.
    connected_ns: u64,
    /// As a line of `rpma perf`.
    measured: Point,
}

/// As a row of CSV.
#[derive(Serialize)]
struct Row {
    connected_ns: u64,
    operations: u64,
    least_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    most_ns: u64,
}

/// Connects, and writes and flushes for a second, one at a time.
pub(crate) fn run(
    args: &Ping,
    interrupt: &Interrupt,
    out: &mut Output,
) -> Result<Outcome, Problem> {
    let file = ResultFile::of(&args.form)?;
    let (began, now) = (utc_now(), Instant::now());
    let mut bench = Bench::connect(args.server.as_slice(), interrupt)?;
    let connected = now.elapsed().as_nanos() as u64;
    let setting = bench.completed(Setting {
        op: Op::WriteFlush,
        size: 64,
        depth: 1,
        batch: 1,
        threads: 1,
        connections: 1,
        servers: 1,
        ..Setting::default()
    });
    let measured = measure(&mut bench, &setting, &SPAN, interrupt)?;
    let point = bench.point(&began, setting, measured);
    if args.form.format == Format::Text {
        let server = &point.servers[0];
        let lines = host::lines(&point.client, &[server]);
        lines.iter().try_for_each(|line| out.line(line))?;
        let time = |nanos: u64| Nanos(nanos as f64);
        let Latency {
            least,
            p50,
            p99,
            most,
            ..
        } = point.result.latency;
        out.line(format!("connected in {}", time(connected)))?;
        out.line(format!(
            "{} of 64 B: {} times in {:.2} s; least {}, median {}, p99 {}, most {}",
            setting.operation(),
            point.result.operations,
            point.result.seconds,
            time(least),
            time(p50),
            time(p99),
            time(most)
        ))?;
        if let Some(why) = &point.ended_early {
            out.line(format!("ended early: {why}"))?;
        }
    }
    let latency = point.result.latency;
    let row = Row {
        connected_ns: connected,
        operations: point.result.operations,
        least_ns: latency.least,
        p50_ns: latency.p50,
        p99_ns: latency.p99,
        most_ns: latency.most,
    };
    let result = match point.ended_early {
        None => Outcome::Good,
        Some(_) => Outcome::Bad,
    };
    let report = Pinged {
        command: "ping",
        result,
        connected_ns: connected,
        measured: point,
    };
    out.report(&args.form, file, report, &[row])?;
    Ok(result)
}
