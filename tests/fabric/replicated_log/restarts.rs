//! The hosts of one log lose their power again and again, at steps that a seed draws, and are
//! started again.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::sim::AtStep;

use crate::replicated_log::cuts::{Told, join, locked};
use crate::replicated_log::network::ways;
use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records;

/// Writers of one log. Each of them loses hosts.
const WRITERS: u64 = 10;
const THREADS: u64 = 2;
/// Records of a thread of a writer. Half of the ring has room for those of both threads.
const RECORDS: u64 = 3;

#[derive(Debug, Default)]
struct Figures {
    logs: AtomicU64,
    cuts: AtomicU64,
    /// Acknowledged records, and those with an unknown outcome.
    acknowledged: AtomicU64,
    unknown: AtomicU64,
}

fn add(to: &AtomicU64, count: u64) {
    to.fetch_add(count, Ordering::Relaxed);
}

/// A log, and its acknowledged records.
struct Run<'a> {
    world: World,
    random: Draw,
    told: Mutex<Told>,
    /// The epoch of the last writer.
    epoch: u64,
    /// The time between two writers.
    pause: Duration,
    figures: &'a Figures,
}

impl Run<'_> {
    /// Time passes. Then the network to a replica loses packets, or all of them, or is whole.
    fn pass(&mut self) {
        let link = self.world.link(self.random.below(3) as usize);
        match self.random.below(4) {
            0 => link.lose_packets(20),
            1 => link.partition(),
            _ => self.heal(),
        }
        let _entered = self.world.client.enter();
        sleep(self.pause);
    }

    fn heal(&self) {
        (0..3).for_each(|n| self.world.link(n).heal());
    }

    /// Draws hosts to cut, each at a step of its own, among so many steps from now on.
    fn draw(&mut self, steps: u64) -> Vec<(Host, AtStep)> {
        let hosts = self.world.hosts.iter().chain([&self.world.client]);
        let chosen = 1 + self.random.below(15);
        let is_chosen = |(n, host): &(usize, &Host)| chosen >> n & 1 == 1 && host.has_power();
        let chosen = hosts.enumerate().filter(is_chosen);
        let now = self.world.fabric.steps();
        let cuts = chosen.map(|(_, host)| {
            let (host, cut) = (host.clone(), host.clone());
            let step = now + 1 + self.random.below(steps);
            let cut = self.world.fabric.at_step(step, move || cut_power(&cut));
            (host, cut)
        });
        cuts.collect()
    }

    /// The next writer: it finds all, and appends with several threads. It truncates if half of the
    /// ring is used.
    fn write(&self) -> Result<(), LogError> {
        let _entered = self.world.client.enter();
        let log = self.world.open(self.epoch)?;
        self.judge(&log);
        let (head, end) = log.bounds();
        if end - head > RING_LEN / 2 {
            // The program does not need them from here on.
            locked(&self.told).head = end;
            log.truncate(end)?;
        }
        thread::scope(|scope| {
            let thread = |n| {
                let log = &log;
                scope.spawn(move || (0..RECORDS).try_for_each(|i| self.append(log, n, i)))
            };
            join((0..THREADS).map(thread))
        })?;
        log.close()
    }

    /// Appends a record that has no equal, of one line of the ring.
    fn append(&self, log: &Log, thread: u64, n: u64) -> Result<(), LogError> {
        let mut record = (100 * self.epoch + 10 * thread + n).to_le_bytes().to_vec();
        record.resize(8 + 11 * (n + self.epoch) as usize % 33, n as u8);
        match log.append(&record) {
            Ok(at) => {
                locked(&self.told).acknowledged(at, record);
                add(&self.figures.acknowledged, 1);
                Ok(())
            }
            Err(error) => {
                let is_unknown = matches!(error, LogError::Unknown { .. });
                add(&self.figures.unknown, is_unknown.into());
                Err(error)
            }
        }
    }

    /// Fails if an acknowledged record is missing, or if a record is there twice.
    fn judge(&self, log: &Log) {
        let told = locked(&self.told);
        let head = log.bounds().0;
        assert!(head <= told.head, "{head} was not truncated: {}", told.head);
        told.check_read(log, told.head);
        let all = records(log);
        let different: BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "a record is there twice");
    }

    /// Starts the hosts without power, and the replicas that do not serve: all of them but one.
    fn start(&mut self, but: Option<u64>) -> Result {
        if !self.world.client.has_power() {
            self.world.client.restart();
        }
        for n in (0..3).filter(|n| but != Some(*n as u64)) {
            self.world.restart(n)?;
        }
        Ok(())
    }

    /// One writer, and power cuts in the middle of it. Returns how many steps it had.
    fn round(&mut self, steps: u64) -> Result<u64> {
        self.epoch += 1;
        let cuts = self.draw(steps);
        let begin = self.world.fabric.steps();
        // The error is that of a host that has no power.
        let _ = self.write();
        let steps = self.world.fabric.steps() - begin;
        for (host, _) in cuts {
            // The writer may have been done before.
            cut_power(&host);
            add(&self.figures.cuts, 1);
        }
        let but = Some(self.random.below(6));
        self.start(but)?;
        Ok(steps)
    }
}

/// Runs one log through its writers, if it opens in this way on these devices.
fn lives(seed: u64, way: Way, fault: Fault, figures: &Figures) -> Result {
    lives_for(seed, way, fault, (WRITERS, Duration::ZERO), figures)
}

/// With so many writers, and so much time between two of them.
fn lives_for(
    seed: u64,
    way: Way,
    fault: Fault,
    (writers, pause): (u64, Duration),
    figures: &Figures,
) -> Result {
    let fabric = Rig::new().seed(seed).fabric();
    let mut world = World::idle(&fabric, way, fault);
    world.start_all();
    let mut run = Run {
        world,
        random: Draw(seed),
        told: Mutex::default(),
        epoch: 1,
        pause,
        figures,
    };
    let begin = fabric.steps();
    match run.write() {
        Err(LogError::TooFew(_)) => return Ok(()),
        written => written?,
    }
    let mut steps = fabric.steps() - begin;
    for _ in 0..writers {
        if !pause.is_zero() {
            run.pass();
            let left = run.world.client.objects();
            assert!(left.is_empty(), "the last writer has left {left:?}");
        }
        steps = run.round(steps)?.max(200);
    }
    run.heal();
    run.start(None)?;
    run.epoch += 1;
    run.write()?;
    run.world.cut_all();
    locked(&run.told).check_memories(&run.world.pmems);
    run.world.stop_all();
    let client = run.world.client.clone();
    drop(run);
    {
        // Over soft-iWARP a connection without an answer is freed by then.
        let _entered = client.enter();
        sleep(Duration::from_secs(140));
    }
    let left = fabric.objects();
    assert!(left.is_empty(), "objects are left: {left:?}");
    add(&figures.logs, 1);
    Ok(())
}

/// Runs logs until so many hosts have lost their power.
fn cut(count: u64) -> Result {
    let figures = Figures::default();
    for seed in 1.. {
        for way in ways() {
            lives(seed, way, Fault::Nothing, &figures)?;
        }
        if figures.cuts.load(Ordering::Relaxed) >= count {
            break;
        }
    }
    println!("{figures:?}");
    let acknowledged = figures.acknowledged.load(Ordering::Relaxed);
    assert!(acknowledged > count, "{acknowledged} records");
    Ok(())
}

/// Promise: each writer finds each acknowledged record of the writers before it, and no record
/// twice. Any hosts may lose their power meanwhile, at any step: replicas and the writer's host. It
/// is so with each method, on a platform where it is durable.
#[test]
fn each_power_cut_is_survived() -> Result {
    cut(40)
}

/// The same with more power cuts.
#[test]
#[ignore = "long: 4 minutes"]
fn each_power_cut_is_survived_of_many() -> Result {
    cut(1_000)
}

/// A log lives in this way for so many hours, with a writer in each.
fn hours(way: Way, count: u64) -> Result {
    let figures = Figures::default();
    let hour = Duration::from_secs(3600);
    lives_for(1, way, Fault::Nothing, (count, hour), &figures)?;
    println!("{figures:?}");
    let acknowledged = figures.acknowledged.load(Ordering::Relaxed);
    assert!(acknowledged > count, "{acknowledged} records");
    Ok(())
}

/// Promise: the same for one log that lives long. Hosts lose their power in each hour, the network
/// loses packets or fails for an hour, each writer takes the log over, and the ring wraps around. A
/// writer leaves no object.
#[test]
fn a_day() -> Result {
    hours(ways()[0], 24)
}

/// The same for a month.
#[test]
#[ignore = "long: 2 minutes"]
fn a_month() -> Result {
    ways().into_iter().try_for_each(|way| hours(way, 30 * 24))
}

/// The promise is broken by each of these faults.
#[test]
fn faults_are_found() {
    let caches = Way {
        method: Method::Reading,
        platform: Platform::AdrDdioOn,
    };
    for (fault, way) in [
        (Fault::Visible, caches),
        (Fault::Platform, caches),
        (Fault::Posted, ways()[0]),
        (Fault::OneCopy, ways()[2]),
        (Fault::ReadsOne, ways()[0]),
    ] {
        let lives =
            |seed| lives(seed, way, fault, &Figures::default()).expect("all hosts have power");
        let fails = |seed| catch_unwind(AssertUnwindSafe(|| lives(seed))).is_err();
        assert!((1..=30).any(fails), "{fault:?} is not found");
    }
}
