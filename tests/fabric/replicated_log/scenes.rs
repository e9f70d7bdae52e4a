//! Writers and replicas that come and go. Each scene is a promise, and the faults that break it.

use std::sync::atomic::{AtomicBool, Ordering};

use rpma::sim::Entered;

use crate::replicated_log::faults::{find, panics};
use crate::replicated_log::network::is_unknown;
use crate::replicated_log::prelude::*;

/// The records of a log that is open.
pub(crate) fn records(log: &Log) -> Vec<Vec<u8>> {
    records_from(log.bounds().0, |at| log.read(at))
}

/// The same, for any front end of a log.
pub(crate) fn records_from(
    mut at: u64,
    read: impl Fn(u64) -> Result<Option<Record>, LogError>,
) -> Vec<Vec<u8>> {
    let next = || {
        let record = read(at).expect("a position")?;
        at = record.next;
        Some(record.bytes)
    };
    std::iter::from_fn(next).collect()
}

/// For the failure of a scene.
fn shown(log: &Log) -> String {
    let records = records(log);
    let texts = records.iter().map(|record| String::from_utf8_lossy(record));
    format!("the log has only {:?}", Vec::from_iter(texts))
}

fn has(log: &Log, record: &[u8]) -> bool {
    records(log).iter().any(|found| found == record)
}

/// Replicas that do not serve yet, and the calling thread on the client: off a host the order of
/// threads would not be the seed's.
fn idle(seed: u64, fault: Fault) -> (World, Entered) {
    let fabric = Rig::new().seed(seed).fabric();
    let world = World::idle(&fabric, READING, fault);
    let entered = world.client.enter();
    (world, entered)
}

/// Runs a scene with seeds: without a fault it passes with each, and each fault makes it fail with
/// one of them.
fn scene(seeds: u64, faults: &[Fault], run: impl Fn(&mut World)) -> Result {
    let play = |seed: u64, fault: Fault| {
        let (mut world, _entered) = idle(seed, fault);
        run(&mut world);
        world.stop_all();
    };
    (1..=seeds).for_each(|seed| play(seed, Fault::Nothing));
    for fault in faults {
        find(*fault, 1..=10 * seeds, |seed| panics(|| play(seed, *fault)))?;
    }
    Ok(())
}

/// A log with the record "one", which all replicas have.
fn log_with_one(world: &mut World) -> Log {
    world.only(&[0, 1, 2]);
    let log = world.open(1).expect("made");
    log.append(b"one").expect("appended");
    let end = log.bounds().1;
    until(|| (0..3).all(|n| world.found(n).is_ok_and(|found| found.tail.end == end)));
    log
}

/// A writer appends a record while these replicas are frozen, and ends: its outcome is unknown.
fn append_in_vain(world: &World, log: Log, frozen: [usize; 2], record: &[u8]) {
    let hosts = frozen.map(|n| &world.hosts[n]);
    hosts.into_iter().for_each(Host::freeze);
    let appended = log.append(record);
    is_unknown(&appended);
    drop(log);
    hosts.into_iter().for_each(Host::thaw);
}

/// The next writer finds a record.
fn finds(world: &World, epoch: u64, record: &[u8]) {
    let log = world.open(epoch).expect("opens");
    assert!(has(&log, record), "{}", shown(&log));
}

/// Promise: a record that one replica has is not acknowledged.
#[test]
fn one_copy_is_not_enough() -> Result {
    scene(3, &[Fault::OneCopy, Fault::UnknownIsDone], |world| {
        let log = log_with_one(world);
        append_in_vain(world, log, [1, 2], b"two");
    })
}

/// Promise: a record that was acknowledged while a replica was away is there after that replica
/// came back, whichever replica is read first.
#[test]
fn a_replica_that_was_away_is_not_the_newest() -> Result {
    scene(5, &[Fault::ReadsOne], |world| {
        let log = log_with_one(world);
        world.only(&[0, 1]);
        log.append(b"two").expect("appended");
        drop(log);
        world.only(&[0, 1, 2]);
        finds(world, 2, b"two");
    })
}

/// Promise: a replica without a log is no witness: with one that was away and one that was
/// replaced the log does not open. With the third it has all.
#[test]
fn a_replaced_replica_is_no_witness() -> Result {
    scene(3, &[Fault::BlankCounts], |world| {
        let log = log_with_one(world);
        world.only(&[0, 2]);
        log.append(b"two").expect("appended");
        drop(log);
        world.replace(2);
        world.only(&[1, 2]);
        let opened = world.open(2).err();
        assert!(matches!(opened, Some(LogError::TooFew(_))), "{opened:?}");
        world.only(&[0, 1, 2]);
        finds(world, 3, b"two");
    })
}

/// Promise: a long log of an old writer, which nobody acknowledged, does not win over a shorter
/// one of a newer writer.
#[test]
fn the_newer_epoch_wins() -> Result {
    scene(3, &[Fault::IgnoresEpochs, Fault::KeepsEpoch], |world| {
        let log = log_with_one(world);
        append_in_vain(world, log, [1, 2], &[7; 200]);
        world.only(&[1, 2]);
        let log = world.open(2).expect("opens");
        log.append(b"two").expect("appended");
        drop(log);
        world.only(&[0, 2]);
        finds(world, 3, b"two");
    })
}

/// Promise: when a log has opened, two replicas have its records under the new epoch.
#[test]
fn an_open_log_is_on_two_replicas() -> Result {
    scene(3, &[Fault::TellsEarly, Fault::NoRecount], |world| {
        drop(log_with_one(world));
        let _log = world.open(2).expect("opens");
        let logs = (0..3).filter_map(|n| world.found(n).ok());
        let ours = logs.filter(|found| found.tail.epoch == 2).count();
        assert!(ours >= 2, "{ours}");
    })
}

/// Promise: another process cannot write with the epoch of a living one. With a higher epoch it
/// takes over, has all records, and the first one can write no more.
#[test]
fn a_higher_epoch_takes_over() -> Result {
    scene(3, &[Fault::SameInstance], |world| {
        let first = log_with_one(world);
        let mut cfg = world.cfg(1);
        cfg.set_create(false);
        let second = world.open_with(&cfg).err();
        let is_fenced = matches!(second, Some(LogError::Fenced { epoch: 1 }));
        assert!(is_fenced, "{second:?}");
        let second = world.open(2).expect("takes over");
        assert!(has(&second, b"one"));
        second.append(b"two").expect("appended");
        let late = first.append(b"late");
        assert!(late.is_err(), "{late:?}");
        assert!(!has(&second, b"late"));
    })
}

/// Promise: a replica that comes back while others append has all records in the end. Its network
/// is slow, so that records are committed while it gets the ones before.
#[test]
fn a_replica_joins_while_others_append() -> Result {
    scene(3, &[Fault::JoinsEarly, Fault::JoinsUngated], |world| {
        let log = log_with_one(world);
        world.only(&[0, 1]);
        let away = log.append(b"away").expect("appended");
        world.link(2).delay(Duration::from_millis(20));
        let is_back = AtomicBool::new(false);
        thread::scope(|scope| {
            for n in 0..2_u8 {
                let (log, is_back) = (&log, &is_back);
                scope.spawn(move || {
                    while !is_back.load(Ordering::Relaxed) {
                        let at = log.append(&[n; 20]).expect("appended");
                        if n == 0 {
                            log.truncate(at).expect("truncated");
                        }
                        sleep(Duration::from_millis(7));
                    }
                });
            }
            world.only(&[0, 1, 2]);
            until(|| world.has(2, away + 65));
            is_back.store(true, Ordering::Relaxed);
        });
        let end = log.bounds().1;
        until(|| world.has(2, end));
        for n in 0..3 {
            world.found(n).expect("whole");
        }
    })
}

/// Lets time pass until something is true, for a minute at most.
fn until(is_true: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_true() {
            return;
        }
        sleep(Duration::from_millis(100));
    }
    panic!("it has not become true");
}

/// Promise: a writer that dies at any step while it brings replicas up to date leaves a log that
/// any two replicas open: with all that was acknowledged, or one that needs the third replica.
#[test]
fn a_writer_dies_while_replicas_join() -> Result {
    for (replaced, fault) in [(true, Fault::HeaderFirst), (false, Fault::NoSetBack)] {
        let steps = dies_at(u64::MAX, Fault::Nothing, replaced)?;
        let at = || (1..steps).step_by(steps as usize / DEATHS);
        for step in share("steps", 4, at()) {
            dies_at(step, Fault::Nothing, replaced)?;
        }
        // The later steps find it, so they are tried first. Over soft-iWARP these are few.
        let late = |parts: usize| {
            let each = (1..steps).step_by((steps as usize / parts).max(1));
            let mut late: Vec<_> = each.collect();
            late.reverse();
            late
        };
        let late = late(DEATHS).into_iter().chain(late(5 * DEATHS));
        find(fault, late, |step| {
            panics(|| {
                dies_at(step, fault, replaced).expect("appended");
            })
        })?;
    }
    Ok(())
}

const TWO: [u8; 150] = [2; 150];
/// Steps of the last writer but one at which it dies.
const DEATHS: usize = 20;

/// The last writer but one dies at a step after its begin. Returns how many steps it had.
fn dies_at(step: u64, fault: Fault, replaced: bool) -> Result<u64> {
    let (mut world, entered) = idle(1, Fault::Nothing);
    let fabric = world.fabric.clone();
    let log = log_with_one(&mut world);
    if replaced {
        // Acknowledged by the first and the third, which is replaced then.
        world.only(&[0, 2]);
        log.append(&TWO)?;
        drop(log);
        world.replace(2);
        // The second one, which has not got the record, is slower than the third one.
        world.link(1).delay(Duration::from_millis(20));
    } else {
        // The third one has a record in its place, which nobody acknowledged.
        append_in_vain(&world, log, [0, 1], &[3; 250]);
        world.only(&[0, 1]);
        let log = world.open(2)?;
        log.append(&TWO)?;
    }
    world.only(&[0, 1, 2]);
    world.fault = fault;
    let begin = fabric.steps();
    let killed = world.client.clone();
    let dies = fabric.at_step(begin.saturating_add(step), move || killed.kill());
    let last = world.open(3);
    // It brings the third one up to date as well, unless it dies before.
    let is_member = || world.found(2).is_ok_and(|found| found.tail.epoch == 3);
    for _ in (0..30).take_while(|_| !is_member()) {
        sleep(Duration::from_millis(100));
    }
    let steps = fabric.steps() - begin;
    drop((last, dies, entered));
    world.fault = Fault::Nothing;
    world.client = fabric.host("next");
    let _entered = world.client.enter();
    world.only(&[1, 2]);
    match world.open(4) {
        Ok(log) => assert!(has(&log, &TWO), "{}", shown(&log)),
        Err(LogError::TooFew(why)) if replaced => {
            // The first replica has to be asked until the third one is in the list.
            let needs_first = why.contains("has no log") || why.contains("was cut");
            assert!(needs_first, "{why}");
        }
        Err(error) => panic!("{error}"),
    }
    Ok(steps)
}

/// Promise: a log opens from two replicas, at whichever step of its opening the third one dies.
#[test]
fn a_replica_dies_while_the_log_opens() {
    let opens = |step: u64, n: usize| {
        let (mut world, _entered) = idle(1, Fault::Nothing);
        let fabric = world.fabric.clone();
        drop(log_with_one(&mut world));
        let begin = fabric.steps();
        let host = world.hosts[n].clone();
        let dies = fabric.at_step(begin.saturating_add(step), move || host.kill());
        let opened = world.open(2);
        let steps = fabric.steps() - begin;
        drop(dies);
        let log = opened.unwrap_or_else(|error| panic!("replica {n} dies at {step}: {error}"));
        assert!(has(&log, b"one"), "{}", shown(&log));
        steps
    };
    let steps = opens(u64::MAX, 0);
    for step in share("steps", 3, (1..steps).step_by(steps as usize / 90)) {
        opens(step, step as usize % 3);
    }
}

/// The flush of a truncation does not arrive at a replica, and ends its connection: so it does on
/// soft-RoCE of Linux 6.12. The replica comes back, and then loses its power.
fn comes_back_with_a_visible_head(fault: Fault, seed: u64) -> Result<(), String> {
    /// A byte, its flush, the head, and the flush of the head.
    const FLUSH: u32 = 4;
    let way = Way {
        method: Method::Native,
        platform: Platform::AdrDdioOff,
    };
    let text = |error: LogError| error.to_string();
    let fabric = Rig::of(&Profile::RXE_6_12).seed(seed).fabric();
    let mut world = World::idle(&fabric, way, fault);
    world.start_all();
    let log = world.open(1).map_err(text)?;
    log.append(b"one").map_err(text)?;
    world.until_all_have(&log);
    let (_, end) = log.bounds();
    let joins = log.counters().joins;
    world.link(2).lose_packet(FLUSH);
    log.truncate(end).map_err(text)?;
    let entered = world.client.enter();
    sleep(Duration::from_secs(60));
    drop(entered);
    assert!(log.counters().joins > joins, "the replica has come back");
    fabric.set_seed(seed);
    world.hosts[2].power_cut();
    let left = found(&world.pmems[2].bytes()).map_err(text)?;
    let lost = format!("it has the head {}, and {end} was truncated", left.head);
    (left.head == end).then_some(()).ok_or(lost)
}

/// Promise: a truncation is not lost on a replica that came back with it after the end of its
/// connection, because its room may be used again.
#[test]
fn a_visible_head_is_made_durable() -> Result {
    let seeds = 1..=8;
    for seed in seeds.clone() {
        comes_back_with_a_visible_head(Fault::Nothing, seed)?;
    }
    find(Fault::TrustsWords, seeds, |seed| {
        comes_back_with_a_visible_head(Fault::TrustsWords, seed)
    })
}
