//! `rpma ping`: does a server answer, and how long do a write and its flush take?

use std::time::Instant;

use serde_json::json;

use super::Bench;
use super::measure::measure;
use crate::args::{Format, Ping, Span};
use crate::host;
use crate::interrupt::Interrupt;
use crate::problem::Result;
use crate::report::{Outcome, Output, ResultFile};
use crate::settings::{Nanos, Op, Setting};
use crate::time::utc_now;

/// Long enough for a few thousand flushes.
const SPAN: Span = Span {
    warm_up: 0.0,
    time: 1.0,
    count: None,
};

/// Connects, and writes and flushes for a second, one at a time.
pub(crate) fn run(args: &Ping, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
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
    let measured = measure(&mut bench, &setting, &SPAN)?;
    let point = bench.point(&began, setting, measured);
    let latency = point.result.latency;
    if args.form.format == Format::Text {
        let server = &point.servers[0];
        let lines = host::lines(&point.client, &[server]);
        lines.iter().try_for_each(|line| out.line(line))?;
        let time = |nanos: u64| Nanos(nanos as f64);
        out.line(format!("connected in {}", time(connected)))?;
        out.line(format!(
            "{} of 64 B: {} times in {:.2} s; least {}, median {}, p99 {}, most {}",
            setting.operation(),
            point.result.operations,
            point.result.seconds,
            time(latency.least),
            time(latency.p50),
            time(latency.p99),
            time(latency.most)
        ))?;
        if let Some(why) = &point.ended_early {
            out.line(format!("ended early: {why}"))?;
        }
    }
    let result = Outcome::of(point.ended_early.is_none());
    // `measured` is as a line of `rpma perf`.
    let report = json!({
        "command": "ping",
        "result": result,
        "connected_ns": connected,
        "measured": point,
    });
    out.report(&args.form, file, report, &[latency])?;
    Ok(result)
}
