//! The measurement of one point: its connections, its threads, and its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use rpma::commit::Replicas;
use rpma::{AlignedBuf, Conn, Mr, MrUsage};

use super::Bench;
use super::awaited;
use super::checks::{POINTER, reserved};
use super::job::{Clock, End, Job, STALL};
use super::load::{Commits, Copies, Empty, Load, Verbs};
use super::meter::Meter;
use super::pace::Pace;
use super::places::{Places, stride};
use super::progress;
use super::result::{Latency, Measured};
use super::session::flush_type;
use super::worker::{Lane, work};
use crate::args::Measure;
use crate::client::{Result, Stop, failed};
use crate::interrupt::Interrupt;
use crate::problem::one_line;
use crate::settings::{Completions, Op, Setting};
use crate::wire::FIRST;

/// The time for all threads to start.
const START: Duration = Duration::from_millis(20);
/// The time that the measurement of itself takes.
const ITSELF: u64 = 50_000_000;

/// The result of a point.
pub(super) struct Done {
    pub(super) result: Measured,
    pub(super) ended_early: Option<String>,
    /// Whether no other point can be measured.
    pub(super) is_over: bool,
}

/// The results of all threads, and why they ended before the end.
type Ended = (Meter, Result);

/// How long a measurement takes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    warm_up: u64,
    end: End,
}

/// Measures a point. The results until a failure or an interrupt are results too.
pub(super) fn measure(
    bench: &mut Bench,
    setting: &Setting,
    args: &Measure,
    interrupt: &Interrupt,
) -> Result<Done> {
    let own = own_cost(setting)?;
    let limits = Limits::of(args, setting);
    let run = Run {
        setting,
        limits,
        interrupt,
    };
    let ended = match setting.op {
        _ if setting.completions == Completions::Async => run.awaited(bench)?,
        Op::Empty => run.empty(bench)?,
        Op::Commit if setting.copies.is_some() => run.copies(bench)?,
        Op::Commit => run.commits(bench)?,
        _ => run.verbs(bench)?,
    };
    let (meter, ended) = ended;
    let cleared = bench
        .servers
        .iter_mut()
        .try_for_each(|server| server.clear());
    let is_over = cleared.is_err() || matches!(ended, Err(Stop::Interrupted));
    let ended = ended.and(cleared);
    if meter.operations == 0 {
        ended?;
        return failed(
            "no operation was complete in the time of the measurement: give a longer --time",
        );
    }
    Ok(Done {
        result: result(setting, &meter, limits, own, ended.is_ok())?,
        ended_early: ended.err().map(words),
        is_over,
    })
}

/// The processor's time for an operation that does nothing, in nanoseconds.
fn own_cost(setting: &Setting) -> Result<f64> {
    let limits = Limits {
        warm_up: ITSELF / 10,
        end: End::Time(ITSELF),
    };
    let job = Arc::new(limits.job(setting, 1));
    let slots = slots(setting);
    let (meter, ended) = match setting.completions {
        Completions::Async => awaited::work(awaited::empty(slots, 1)?, &job, 0),
        _ => work(
            vec![Lane::new(Empty::new(slots), Pace::Closed, slots)],
            &job,
            0,
        ),
    };
    ended?;
    Ok(meter.cpu_ns as f64 / meter.operations.max(1) as f64)
}

/// The groups of operations that are in flight on a connection.
pub(super) fn slots(setting: &Setting) -> u32 {
    setting.depth / setting.batch
}

impl Limits {
    fn of(args: &Measure, setting: &Setting) -> Self {
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let warm_up = nanos(args.warm_up);
        let end = match args.count {
            Some(count) => End::Count(count.div_ceil(setting.connections.into())),
            None => End::Time(warm_up + nanos(args.time)),
        };
        Self { warm_up, end }
    }

    fn job(self, setting: &Setting, threads: u32) -> Job {
        Job {
            clock: Clock::from(Instant::now() + START),
            batch: setting.batch.into(),
            warm_up: self.warm_up,
            end: self.end,
            sleeps: setting.completions == Completions::Wait,
            stall: STALL,
            stop: AtomicBool::new(false),
            completed: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

fn result(
    setting: &Setting,
    meter: &Meter,
    limits: Limits,
    own: f64,
    is_complete: bool,
) -> Result<Measured> {
    let latencies = meter.latencies();
    let mut bytes = Vec::new();
    let serialized = V2DeflateSerializer::new().serialize(latencies, &mut bytes);
    if let Err(error) = serialized {
        return failed(format!("the histogram cannot be written: {error}"));
    }
    let end = match limits.end {
        End::Time(end) if is_complete => end.max(meter.last),
        _ => meter.last,
    };
    let seconds = end.saturating_sub(limits.warm_up).max(1) as f64 / 1e9;
    let operations = meter.operations as f64;
    Ok(Measured {
        operations: meter.operations,
        seconds,
        operations_per_second: operations / seconds,
        bytes_per_second: operations * setting.size as f64 / seconds,
        cpu_ns_per_operation: meter.cpu_ns as f64 / operations,
        own_cpu_ns_per_operation: own,
        not_begun: meter.not_begun,
        latency: Latency::of(latencies),
        histogram: STANDARD.encode(bytes),
    })
}

/// Why a measurement ended, in one line.
fn words(stop: Stop) -> String {
    match stop {
        Stop::Failed(text) | Stop::NotPossible(text) => one_line(&text),
        Stop::Over(problem) => problem.to_string(),
        Stop::Interrupted => "interrupted".to_owned(),
    }
}

/// The measurement of a point.
struct Run<'a> {
    setting: &'a Setting,
    limits: Limits,
    interrupt: &'a Interrupt,
}

impl Run<'_> {
    fn empty(&self, bench: &mut Bench) -> Result<Ended> {
        let slots = slots(self.setting);
        let lanes = self.lanes(|lane| Ok(Lane::new(Empty::new(slots), self.pace(lane), slots)))?;
        self.work(bench, lanes)
    }

    fn verbs(&self, bench: &mut Bench) -> Result<Ended> {
        let conns: Vec<(Conn, Mr<AlignedBuf>)> = self.lanes(|_| {
            let conn = bench.servers[0].conn(&bench.peer, self.setting)?;
            Ok((conn, self.memory(bench)?))
        })?;
        let mut pairs = conns.iter();
        let slots = slots(self.setting);
        let of = (self.setting.op, flush_type(self.setting));
        let places: Vec<Places> = self.lanes(|lane| self.places(bench, lane))?;
        let lanes = places.into_iter().zip(&mut pairs).zip(0..);
        let lanes = lanes.map(|((places, (conn, memory)), lane)| {
            let load = Verbs::new(conn, memory, of, places, slots)?;
            Ok(Lane::new(load, self.pace(lane), slots))
        });
        self.work(bench, lanes.collect::<Result<_>>()?)
    }

    fn commits(&self, bench: &mut Bench) -> Result<Ended> {
        let memories: Vec<Mr<AlignedBuf>> = self.lanes(|_| self.memory(bench))?;
        let slots = slots(self.setting);
        let lanes = memories.iter().zip(0..).map(|(memory, lane)| {
            let writer = bench.servers[0].writer(&bench.peer, self.setting)?;
            let pointer = FIRST + POINTER * u64::from(lane);
            let pointer = bench.servers[0].memory.slice(pointer..pointer + 8)?;
            let places = self.places(bench, lane)?;
            let load = Commits::new(writer, memory, places, pointer, slots)?;
            Ok(Lane::new(load, self.pace(lane), slots))
        });
        let lanes = lanes.collect::<Result<_>>()?;
        self.work(bench, lanes)
    }

    fn copies(&self, bench: &mut Bench) -> Result<Ended> {
        let slots = slots(self.setting);
        let lanes = self.lanes(|lane| {
            let set = self.replicas(bench)?;
            let (places, pointer) = (self.places(bench, lane)?, FIRST + POINTER * u64::from(lane));
            let load = Copies::new(set, self.wanted_copies(), places, pointer, slots);
            Ok(Lane::new(load, self.pace(lane), slots))
        })?;
        self.work(bench, lanes)
    }

    fn awaited(&self, bench: &mut Bench) -> Result<Ended> {
        let setting = self.setting;
        let mut threads = Vec::new();
        for thread in 0..setting.threads {
            let own = setting.connections / setting.threads;
            let numbers = thread * own..(thread + 1) * own;
            threads.push(awaited::connect(bench, setting, numbers, |lane| {
                self.pace(lane)
            })?);
        }
        self.threads(bench, threads, awaited::work)
    }

    fn lanes<T>(&self, lane: impl FnMut(u32) -> Result<T>) -> Result<Vec<T>> {
        (0..self.setting.connections).map(lane).collect()
    }

    fn pace(&self, lane: u32) -> Pace {
        Pace::new(self.setting.rate, lane, self.setting.connections)
    }

    /// A part for each operation in flight.
    fn memory(&self, bench: &Bench) -> Result<Mr<AlignedBuf>> {
        let bytes = stride(self.setting.size).max(64) * u64::from(self.setting.depth);
        let usage = MrUsage::WRITE_SRC | MrUsage::READ_DST | MrUsage::SEND;
        let memory = AlignedBuf::zeroed(bytes as usize)?;
        Ok(Mr::reg(&bench.peer, memory, usage).map_err(rpma::Error::from)?)
    }

    fn places(&self, bench: &Bench, lane: u32) -> Result<Places> {
        places(bench, self.setting, lane)
    }

    fn replicas(&self, bench: &mut Bench) -> Result<Replicas> {
        replicas(bench, self.setting)
    }

    fn wanted_copies(&self) -> usize {
        self.setting.copies.unwrap_or(1) as usize
    }

    /// Runs the lanes on their threads.
    fn work<L: Load + Send>(&self, bench: &mut Bench, lanes: Vec<Lane<L>>) -> Result<Ended> {
        let own = (self.setting.connections / self.setting.threads) as usize;
        let mut lanes = lanes.into_iter();
        let threads = (0..self.setting.threads).map(|_| lanes.by_ref().take(own).collect());
        self.threads(bench, threads.collect(), work)
    }

    fn threads<T: Send>(
        &self,
        bench: &mut Bench,
        threads: Vec<T>,
        work: fn(T, &Arc<Job>, usize) -> Ended,
    ) -> Result<Ended> {
        let job = Arc::new(self.limits.job(self.setting, self.setting.threads));
        thread::scope(|scope| {
            let started = threads.into_iter().enumerate().map(|(number, thread)| {
                let job = Arc::clone(&job);
                scope.spawn(move || work(thread, &job, number))
            });
            let started: Vec<_> = started.collect();
            let is_over = || started.iter().all(thread::ScopedJoinHandle::is_finished);
            let mut ended = progress::watch(self.setting, &job, bench, self.interrupt, is_over);
            let mut all = Meter::new();
            for thread in started {
                match thread.join() {
                    Ok((meter, result)) => {
                        all.add(&meter);
                        ended = ended.and(result);
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok((all, ended))
        })
    }
}

/// The server's memory for a connection.
pub(super) fn places(bench: &Bench, setting: &Setting, lane: u32) -> Result<Places> {
    let memory = &bench.servers[0].memory;
    let of = (lane, setting.connections);
    match Places::new(memory, reserved(setting), of, (setting.size, setting.batch)) {
        Ok(places) => Ok(places?),
        Err(needed) => failed(format!("the operations need {needed} bytes of the server")),
    }
}

/// A set of replicas: one on each server.
pub(super) fn replicas(bench: &mut Bench, setting: &Setting) -> Result<Replicas> {
    let depth = setting.depth as usize;
    // A record does not wrap around the ring's end.
    let ring = 2 * depth * stride(setting.size) as usize;
    let mut set = Replicas::new(&bench.peer, ring, depth)?;
    for server in &mut bench.servers {
        let writer = server.writer(&bench.peer, setting)?;
        set.add(writer, server.memory).map_err(rpma::Error::from)?;
    }
    Ok(set)
}
