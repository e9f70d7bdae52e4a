//! The power of all replicas fails at each event.

use std::collections::BTreeMap;

use rpma::sim::Visited;
use rpma::sync::{MutexGuard, PoisonError};
use rpma::thread::ScopedJoinHandle;

use crate::replicated_log::faults::find;
use crate::replicated_log::prelude::*;

/// What the program was told: the records that are acknowledged, and the first position that it
/// has not truncated.
#[derive(Clone, Default)]
pub(crate) struct Told {
    pub(crate) records: BTreeMap<u64, Vec<u8>>,
    pub(crate) head: u64,
}

pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Told {
    pub(crate) fn acknowledged(&mut self, at: u64, record: Vec<u8>) {
        let before = self.records.insert(at, record);
        assert_eq!(before, None, "{at} was acknowledged twice");
    }

    /// Looks into what a cut may leave, up to so many images.
    pub(crate) fn check_cut(&self, cut: &Cut<'_>, pmems: &[Pmem], limit: usize) {
        for images in cut.joint_images_up_to(&Vec::from_iter(pmems), limit) {
            let logs: Vec<_> = images.iter().map(|image| found(image.bytes())).collect();
            self.check(&logs);
        }
    }

    /// Looks into the memories of the replicas.
    pub(crate) fn check_memories(&self, pmems: &[Pmem]) {
        let logs: Vec<_> = pmems.iter().map(|pmem| found(&pmem.bytes())).collect();
        self.check(&logs);
    }

    /// An open log has all from this position on.
    pub(crate) fn check_read(&self, log: &Log, from: u64) {
        for (at, record) in self.records.range(from..) {
            let found = log.read(*at).map(|found| found.map(|record| record.bytes));
            assert_eq!(found.ok().flatten().as_ref(), Some(record), "at {at}");
        }
    }

    /// Looks into the logs of the replicas that can be read: any two of them have all.
    fn check(&self, logs: &[Result<Stored, LogError>]) {
        for (n, one) in logs.iter().enumerate() {
            for other in &logs[n + 1..] {
                self.check_pair([one, other]);
            }
        }
    }

    fn check_pair(&self, pair: [&Result<Stored, LogError>; 2]) {
        let whole = pair.map(|log| log.as_ref().unwrap_or_else(|error| panic!("{error}")));
        let logs = whole.into_iter().filter(|found| found.header.is_some());
        let logs: Vec<_> = logs.collect();
        let newest = Stored::newest(&logs);
        let records: BTreeMap<_, _> = newest.into_iter().flat_map(Stored::records).collect();
        for (at, record) in self.records.range(self.head..) {
            let found = records.get(at);
            assert_eq!(found, Some(&&record[..]), "the record at {at} is lost");
        }
    }
}

/// Threads that append at the same time.
const THREADS: u8 = 3;

/// Runs a writer's program, and cuts the power of all replicas at each event.
fn cut(
    seed: u64,
    way: Way,
    fault: Fault,
    program: impl Fn(&World, &Mutex<Told>) -> Result<(), LogError>,
) -> Result<(Visited, Result<(), LogError>), Loss> {
    let fabric = Rig::new().seed(seed).fabric();
    let mut world = World::idle(&fabric, way, fault);
    for n in 0..3 {
        if let Err(error) = world.start(n) {
            return Ok((fabric.visited(), Err(LogError::Rpma(format!("{error:#}")))));
        }
    }
    let told = Mutex::new(Told::default());
    let check = |cut: &Cut<'_>| locked(&told).check_cut(cut, &world.pmems, 20);
    // Off a host the order of threads would not be the seed's.
    let _entered = world.client.enter();
    let ended = fabric.find_loss(check, || program(&world, &told))?;
    assert_eq!(fabric.why_not_repeatable(), None);
    Ok((fabric.visited(), ended))
}

/// Starts all of these threads, and waits for their ends.
pub(crate) fn join<'scope>(
    threads: impl Iterator<Item = ScopedJoinHandle<'scope, Result<(), LogError>>>,
) -> Result<(), LogError> {
    let threads = Vec::from_iter(threads).into_iter();
    let mut ends = threads.map(|thread| thread.join().expect("no panic"));
    ends.try_for_each(|end| end)
}

/// Appends with several threads, and truncates.
fn append_and_truncate(world: &World, told: &Mutex<Told>) -> Result<(), LogError> {
    let log = world.open(1)?;
    for round in 0..4_u8 {
        thread::scope(|scope| {
            let threads = (0..THREADS).map(|n| {
                let log = &log;
                scope.spawn(move || {
                    let record = vec![10 * round + n + 1; 30 + 40 * usize::from(n)];
                    let at = log.append(&record)?;
                    locked(told).acknowledged(at, record);
                    Ok::<_, LogError>(())
                })
            });
            join(threads)
        })?;
        // The last record is kept. The program may not rely on the others from here on.
        let last = *locked(told).records.keys().next_back().expect("some");
        locked(told).head = last;
        log.truncate(last)?;
    }
    log.close()
}

/// Fills the ring, and truncates while an append waits for room.
fn truncate_for_an_append(world: &World, told: &Mutex<Told>) -> Result<(), LogError> {
    let log = world.open(1)?;
    let append = |byte: u8| {
        // Four of them fill the ring.
        let record = vec![byte; 200];
        let at = log.append(&record)?;
        locked(told).acknowledged(at, record);
        Ok(at)
    };
    let positions: Vec<u64> = (1..=4).map(append).collect::<Result<_, LogError>>()?;
    thread::scope(|scope| {
        let waits = scope.spawn(|| append(5).map(drop));
        sleep(Duration::from_millis(1));
        locked(told).head = positions[1];
        log.truncate(positions[1])?;
        waits.join().expect("no panic")
    })?;
    log.close()
}

/// Promise: any two replicas have each acknowledged record that was not truncated, whenever the
/// power of all three fails: by each method, on each platform where it is durable. Elsewhere the
/// log does not open, and tells why.
#[test]
fn nothing_acknowledged_is_lost() {
    for platform in [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr] {
        for method in [Method::Reading, Method::Native, Method::Server] {
            let way = Way { method, platform };
            let found = cut(1, way, Fault::Nothing, append_and_truncate);
            let (visited, ended) = found.unwrap_or_else(|loss| panic!("{loss}"));
            println!("{platform} {method}: {visited:?} {ended:?}");
            match ended {
                Ok(()) => assert!(visited.images > 500, "{visited:?}"),
                Err(LogError::TooFew(why)) => {
                    let is_told = why.contains("durab") || why.contains("native flush");
                    assert!(is_told, "{why}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Promise: the room of truncated records is used again when no replica can lose the truncation:
/// also if an append waits for that room.
#[test]
fn room_is_used_again_after_the_truncation() -> Result {
    let way = Way {
        method: Method::Server,
        platform: Platform::AdrDdioOn,
    };
    let run = |seed: u64, fault: Fault| cut(seed, way, fault, truncate_for_an_append);
    for seed in 1..=3 {
        let (_, ended) = run(seed, Fault::Nothing).unwrap_or_else(|loss| panic!("{loss}"));
        ended?;
    }
    // Not each order of the threads lets the append come first.
    find(Fault::RoomEarly, 1..=30, |seed| {
        loss(run(seed, Fault::RoomEarly))
    })
}

/// The report of a loss.
fn loss<T>(run: Result<T, Loss>) -> Result<(), String> {
    run.map(drop).map_err(|loss| loss.to_string())
}

/// The promise of `nothing_acknowledged_is_lost` is broken by each of these faults.
#[test]
fn faults_of_commits_are_found() -> Result {
    let on = |method: Method, platform: Platform| Way { method, platform };
    for (fault, way) in [
        (Fault::Visible, on(Method::Reading, Platform::AdrDdioOn)),
        (Fault::Platform, on(Method::Reading, Platform::AdrDdioOn)),
        (Fault::Posted, on(Method::Reading, Platform::Eadr)),
        (Fault::Posted, on(Method::Server, Platform::AdrDdioOn)),
        (Fault::TailAhead, on(Method::Reading, Platform::Eadr)),
        (Fault::TailAhead, on(Method::Server, Platform::AdrDdioOn)),
    ] {
        let run = |seed| cut(seed, way, fault, append_and_truncate);
        find(fault, 1..=30, |seed| loss(run(seed)))?;
    }
    Ok(())
}
