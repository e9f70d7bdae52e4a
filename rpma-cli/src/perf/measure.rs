//! The measurement of one point: its connections, its threads, and its result.

use std::panic::resume_unwind;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use rpma::{AlignedBuf, Mr, MrUsage};

use super::Bench;
use super::job::{End, Job, Order};
use super::load::{Commits, Copies, Load, Verbs};
use super::meter::Meter;
use super::pace::Pace;
use super::places::{Places, stride};
use super::progress;
use super::worker::{Lane, work};
use crate::args::Span;
use crate::client::{Result, Stop, failed};
use crate::problem::Problem;
use crate::settings::{Latency, Measured, Op, Setting};

/// The result of a point.
pub(super) struct Done {
    pub(super) result: Measured,
    pub(super) ended_early: Option<String>,
    /// Whether no other point can be measured.
    pub(super) is_over: bool,
}

/// Measures a point. The results until a failure or an interrupt are results too.
pub(super) fn measure(bench: &mut Bench, setting: &Setting, span: &Span) -> Result<Done> {
    let (job, meter, ended) = match (setting.op, setting.copies) {
        (Op::Commit, Some(_)) => drive(bench, setting, span, Copies::new)?,
        (Op::Commit, None) => drive(bench, setting, span, Commits::new)?,
        _ => drive(bench, setting, span, Verbs::new)?,
    };
    let mut servers = bench.servers.iter_mut();
    let cleared = servers.try_for_each(|server| server.clear());
    let is_over = cleared.is_err() || matches!(ended, Err(Stop::Interrupted));
    let ended = ended.and(cleared);
    if meter.operations == 0 {
        ended?;
        return failed(
            "no operation was complete in the time of the measurement: give a longer --time",
        );
    }
    Ok(Done {
        result: result(setting, &meter, &job, ended.is_ok())?,
        ended_early: ended.err().map(|stop| Problem::from(stop).to_string()),
        is_over,
    })
}

fn result(setting: &Setting, meter: &Meter, job: &Job, is_complete: bool) -> Result<Measured> {
    let latencies = &meter.latencies;
    let mut bytes = Vec::new();
    let serialized = V2DeflateSerializer::new().serialize(latencies, &mut bytes);
    serialized
        .map_err(|error| Stop::Failed(format!("the histogram cannot be written: {error}")))?;
    let end = match job.end {
        End::Time(end) if is_complete => end.max(meter.last),
        _ => meter.last,
    };
    let seconds = end.saturating_sub(job.warm_up).max(1) as f64 / 1e9;
    let operations = meter.operations as f64;
    Ok(Measured {
        operations: meter.operations,
        seconds,
        operations_per_second: operations / seconds,
        bytes_per_second: operations * setting.size as f64 / seconds,
        cpu_ns_per_operation: meter.cpu_ns as f64 / operations,
        not_begun: meter.not_begun,
        latency: Latency::of(latencies),
        histogram: STANDARD.encode(bytes),
    })
}

/// Makes all connections, and works on them. Returns the results of all threads, and why they
/// ended before the end.
fn drive<L: Load>(
    bench: &mut Bench,
    setting: &Setting,
    span: &Span,
    load: impl Fn(&mut Bench, &Setting, u32) -> Result<L>,
) -> Result<(Job, Meter, Result)> {
    let count = setting.connections;
    let loads = (0..count).map(|lane| load(bench, setting, lane));
    let loads = loads.collect::<Result<Vec<_>>>()?;
    let job = Job::new(span, setting);
    let mut lanes = (0..).zip(loads).map(|(lane, load)| {
        let order = Order::new(&job, Pace::new(setting.rate, lane, count));
        Lane::new(load, order, setting.slots())
    });
    let own = (count / setting.threads) as usize;
    let threads: Vec<Vec<_>> = (0..setting.threads)
        .map(|_| lanes.by_ref().take(own).collect())
        .collect();
    let (meter, ended) = thread::scope(|scope| {
        let started = threads.into_iter();
        let started = started.map(|lanes| scope.spawn(|| work(lanes, &job)));
        let started: Vec<_> = started.collect();
        let is_over = || started.iter().all(thread::ScopedJoinHandle::is_finished);
        let mut ended = progress::watch(setting, &job, bench, is_over);
        let mut all = Meter::new();
        for thread in started {
            let joined = thread.join();
            let (meter, result) = joined.unwrap_or_else(|panic| resume_unwind(panic));
            all.add(&meter);
            ended = ended.and(result);
        }
        (all, ended)
    });
    Ok((job, meter, ended))
}

impl Bench {
    /// The local memory of a connection: a part for each operation in flight.
    pub(super) fn memory(&self, setting: &Setting) -> Result<Mr<AlignedBuf>> {
        let bytes = stride(setting.size).max(64) * u64::from(setting.depth);
        let usage = MrUsage::WRITE_SRC | MrUsage::READ_DST | MrUsage::SEND;
        let memory = AlignedBuf::zeroed(bytes as usize)?;
        Ok(Mr::reg(&self.peer, memory, usage)?)
    }

    /// The server's memory of a connection.
    pub(super) fn places(&self, setting: &Setting, lane: u32) -> Result<Places> {
        Ok(Places::new(&self.servers[0].arena, setting, lane)?)
    }
}
