//! A server takes the place of another one. Each scene is a promise, and the faults that break it.
//!
//! The hosts `a`, `b` and `c` have the log at first, and `d` and `e` are spare ones.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma::sim::Entered;
use rpma_log::LogCfg;
use rpma_log::format::Member;

use crate::replicated_log::faults::{find, panics};
use crate::replicated_log::network::is_unknown;
use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records;

pub(crate) const HOSTS: usize = 5;
pub(crate) const ABC: [usize; 3] = [0, 1, 2];
pub(crate) const ABD: [usize; 3] = [0, 1, 3];
const AED: [usize; 3] = [0, 4, 3];

/// Five hosts whose programs do not run yet, and the calling thread on the client.
pub(crate) fn idle(seed: u64, fault: Fault) -> (World, Entered) {
    let fabric = Rig::new().seed(seed).fabric();
    let world = World::of(&fabric, READING, fault, (HOSTS, 2));
    let entered = world.client.enter();
    (world, entered)
}

pub(crate) fn addrs(world: &World, servers: [usize; 3]) -> [SocketAddr; 3] {
    servers.map(|n| world.addr(n))
}

fn cfg(world: &World, servers: [usize; 3], epoch: u64) -> LogCfg {
    world.cfg_on(&addrs(world, servers), 2, epoch)
}

pub(crate) fn open(world: &World, servers: [usize; 3], epoch: u64) -> Result<Log, LogError> {
    world.open_with(&cfg(world, servers, epoch))
}

/// Opens with the first list, and follows the one of the log.
pub(crate) fn follow(world: &World, epoch: u64) -> Result<Log, LogError> {
    let mut cfg = cfg(world, ABC, epoch);
    world.open_with(cfg.set_follow(true))
}

/// A log on the first three servers with the record "one", which all of them have. The spare ones
/// run as well.
pub(crate) fn log_with_one(world: &mut World) -> Log {
    world.only(&[0, 1, 2, 3, 4]);
    let log = open(world, ABC, 1).expect("made");
    log.append(b"one").expect("appended");
    until_listed(world, &ABC);
    world.until_they_have(&ABC, log.bounds().1);
    log
}

/// Waits until each of these servers has a list of them.
pub(crate) fn until_listed(world: &World, servers: &[usize; 3]) {
    until(|| servers.iter().all(|n| is_told(world, *n, *servers)));
}

/// Whether a server has a list of these ones.
fn is_told(world: &World, n: usize, servers: [usize; 3]) -> bool {
    let list = world.found(n).ok().and_then(|found| found.list);
    list.is_some_and(|list| {
        let is_all = |member: &Member| member.server != 0;
        let found = list.members.iter().map(|member| member.addr);
        let is_stable = list.change.is_none() && list.members.iter().all(is_all);
        is_stable && found.eq(addrs(world, servers))
    })
}

pub(crate) fn until(is_true: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_true() {
            return;
        }
        sleep(Duration::from_millis(100));
    }
    panic!("it has not become true");
}

pub(crate) fn replace(world: &World, log: &Log, old: usize, new: usize) -> Result<(), LogError> {
    log.replace(world.addr(old), world.addr(new))
}

fn has(log: &Log, record: &[u8]) {
    let found = records(log);
    let is_there = found.iter().any(|found| found == record);
    assert!(is_there, "the log has only {found:?}");
}

/// The error of an open with other servers than those of the log.
fn others(opened: Result<Log, LogError>) -> Vec<SocketAddr> {
    match opened {
        Err(LogError::OtherServers { servers }) => servers,
        Err(error) => panic!("{error}"),
        Ok(log) => panic!("it opens, with {:?}", records(&log)),
    }
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

/// Promise: a server is replaced while others append, and from then on the new one counts, and the
/// old one does not.
#[test]
fn a_replaced_server_counts_no_more() -> Result {
    scene(3, &[Fault::KeepsOld], |world| {
        let log = log_with_one(world);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let at = log.append(&[7; 100]).expect("appended");
                    log.truncate(at).expect("truncated");
                    sleep(Duration::from_millis(1));
                }
            });
            sleep(Duration::from_millis(20));
            replace(world, &log, 2, 3).expect("replaced");
            is_over.store(true, Ordering::Relaxed);
        });
        let state = log.state();
        let shown: Vec<_> = state.servers.iter().map(|server| server.addr).collect();
        assert_eq!(shown, addrs(world, ABD));
        let frozen = [&world.hosts[0], &world.hosts[1]];
        frozen.into_iter().for_each(Host::freeze);
        is_unknown(&log.append(b"alone"));
        frozen.into_iter().for_each(Host::thaw);
        log.append(b"two").expect("appended");
        world.until_they_have(&ABD, log.bounds().1);
    })
}

/// Promise: an old list opens no log, also if only the replaced server and one that has not got the
/// last records are there. The error has the servers of the log, and a writer may follow them.
#[test]
fn an_old_list_opens_no_log() -> Result {
    scene(3, &[Fault::IgnoresLists], |world| {
        let log = log_with_one(world);
        world.stop(2);
        replace(world, &log, 2, 3).expect("replaced");
        world.only(&[0, 3]);
        log.append(b"two").expect("appended");
        drop(log);
        world.only(&[1, 2]);
        assert_eq!(others(open(world, ABC, 2)), addrs(world, ABD));
        world.only(&[1, 2, 3]);
        let log = follow(world, 3).expect("it follows");
        has(&log, b"two");
        let shown: Vec<_> = log.state().servers.iter().map(|of| of.addr).collect();
        assert_eq!(shown, addrs(world, ABD));
        drop(log);
        world.only(&[0, 1, 2, 3]);
        assert_eq!(others(open(world, ABC, 4)), addrs(world, ABD));
        has(&open(world, ABD, 5).expect("opens"), b"two");
    })
}

/// Promise: a replaced server answers as such when it was told, also after a loss of power: also
/// alone, and also to a writer that has the new list.
#[test]
fn a_replaced_server_answers_for_ever() -> Result {
    scene(2, &[], |world| {
        let log = log_with_one(world);
        replace(world, &log, 2, 3).expect("replaced");
        until(|| is_told(world, 2, ABD));
        drop(log);
        world.hosts[2].power_cut();
        world.restart(2).expect("it starts");
        world.only(&[2]);
        assert_eq!(others(open(world, ABC, 2)), addrs(world, ABD));
        let mut other = cfg(world, [0, 1, 2], 3);
        other.set_follow(true);
        let alone = world.open_with(&other).map(drop);
        assert!(matches!(alone, Err(LogError::TooFew(_))), "{alone:?}");
    })
}

/// Promise: K servers of the list before know of the new server before it counts: so the other ones
/// open no log without it, when they come back.
#[test]
fn the_old_servers_know_of_the_new_one() -> Result {
    scene(3, &[Fault::NoJointList], |world| {
        let log = log_with_one(world);
        world.only(&[0, 2, 3]);
        log.append(b"both").expect("appended");
        world.until_they_have(&[0, 2], log.bounds().1);
        // It is told late that it was replaced.
        world.link(2).delay(Duration::from_millis(400));
        replace(world, &log, 2, 3).expect("replaced");
        log.append(b"two").expect("appended");
        drop(log);
        world.link(2).delay(Duration::ZERO);
        world.only(&[1, 2]);
        let opened = open(world, ABC, 2);
        assert!(
            opened.is_err(),
            "it opens, with {:?}",
            opened.map(|log| records(&log))
        );
        world.only(&[0, 1, 2]);
        has(&follow(world, 3).expect("it follows"), b"two");
    })
}

/// Promise: two servers are replaced one after the other. The log opens with its last list, with
/// servers of it only, and with no earlier one.
#[test]
fn two_replacements_one_after_the_other() -> Result {
    scene(3, &[], |world| {
        let log = log_with_one(world);
        replace(world, &log, 2, 3).expect("replaced");
        log.append(b"two").expect("appended");
        replace(world, &log, 1, 4).expect("replaced");
        log.append(b"three").expect("appended");
        world.until_they_have(&AED, log.bounds().1);
        until_listed(world, &AED);
        until(|| is_told(world, 1, AED));
        drop(log);
        for (epoch, up) in [(2, [0, 1, 2]), (4, [1, 2, 4])] {
            world.only(&up);
            let opened = open(world, ABC, epoch).map(drop);
            let servers = addrs(world, AED);
            let is_refused = match &opened {
                Err(LogError::OtherServers { servers: named }) => named == &servers,
                _ => false,
            };
            assert!(is_refused, "{up:?}: {opened:?}");
        }
        world.only(&[3, 4]);
        let log = open(world, AED, 6).expect("opens");
        assert_eq!(records(&log), [&b"one"[..], b"two", b"three"]);
    })
}

/// Promise: a server that comes back while it is replaced is a server of the log until the new one
/// counts, and then is none.
#[test]
fn a_replaced_server_comes_back_during_the_change() -> Result {
    for delay in [0, 5, 20, 60, 150, 400] {
        let (mut world, _entered) = idle(1 + delay, Fault::Nothing);
        let log = log_with_one(&mut world);
        world.stop(2);
        log.append(b"away").expect("appended");
        world.link(3).delay(Duration::from_millis(20));
        let [old, new] = [2, 3].map(|n| world.addr(n));
        thread::scope(|scope| {
            let replaced = scope.spawn(|| log.replace(old, new));
            sleep(Duration::from_millis(delay));
            world.start(2).expect("a server");
            replaced.join().expect("no panic").expect("replaced");
        });
        log.append(b"two").expect("appended");
        sleep(SILENCE);
        log.append(b"three").expect("appended");
        world.until_they_have(&ABD, log.bounds().1);
        let found = world.found(2).expect("a log");
        assert!(found.tail.end < log.bounds().1, "it still gets records");
        log.close()?;
        drop(log);
        world.stop_all();
    }
    Ok(())
}

/// Promise: what this does not do is refused with a sentence, and changes nothing.
#[test]
fn changes_that_cannot_be_made_are_refused() -> Result {
    let (mut world, _entered) = idle(1, Fault::Nothing);
    drop(log_with_one(&mut world));
    // The memory of this one has another log.
    let other = world.cfg_on(&[world.addr(4)], 1, 1);
    drop(world.open_with(&other)?);
    let log = open(&world, ABC, 2)?;
    world.until_they_have(&ABC, log.bounds().1);
    let has_epoch = |n: usize| world.found(n).is_ok_and(|found| found.tail.epoch == 2);
    until(|| ABC.into_iter().all(has_epoch));
    let before = [0, 1, 2].map(|n| world.bytes(n)[place()].to_vec());
    let refused = |old: usize, new: usize| match replace(&world, &log, old, new) {
        Err(error) => error.to_string(),
        Ok(()) => panic!("it is replaced"),
    };
    for (old, new, why) in [
        (3, 4, "is not in the list of the log"),
        (2, 1, "is in the list of the log already"),
        (2, 2, "is in the list of the log already"),
    ] {
        let error = refused(old, new);
        assert!(error.contains(why), "{error}");
    }
    let error = refused(2, 4);
    assert!(error.contains("it has another log"), "{error}");
    assert!(before == [0, 1, 2].map(|n| world.bytes(n)[place()].to_vec()));
    // Nobody is there.
    world.only(&[0, 1, 2]);
    assert!(replace(&world, &log, 2, 3).is_err());
    log.append(b"two")?;
    world.only(&[0, 3]);
    sleep(SILENCE);
    let error = replace(&world, &log, 2, 3).expect_err("too few");
    assert!(matches!(error, LogError::TooFew(_)), "{error}");
    world.only(&[0, 1, 2, 3]);
    until(|| log.state().servers.iter().all(|of| of.away.is_none()));
    thread::scope(|scope| {
        world.link(3).delay(Duration::from_millis(50));
        let first = scope.spawn(|| replace(&world, &log, 2, 3));
        sleep(Duration::from_millis(10));
        let error = replace(&world, &log, 1, 4).expect_err("two changes");
        assert!(
            error.to_string().contains("one change at a time"),
            "{error}"
        );
        first.join().expect("no panic")
    })?;
    log.append(b"three")?;
    // A server that was replaced is taken only when its memory was cleared.
    let error = refused_again(&world, &log);
    assert!(error.contains("clear its memory"), "{error}");
    world.stop_all();
    Ok(())
}

fn refused_again(world: &World, log: &Log) -> String {
    let error = replace(world, log, 1, 2).expect_err("it has a copy");
    error.to_string()
}

/// Promise: a writer that is replaced during the change, and is frozen meanwhile, changes nothing
/// when it thaws.
#[test]
fn the_writer_is_replaced_during_the_change() -> Result {
    for delay in [1, 3, 10, 30, 60, 90, 130, 200, 300] {
        let (mut world, entered) = idle(delay, Fault::Nothing);
        let log = log_with_one(&mut world);
        world.link(3).delay(Duration::from_millis(20));
        let first = world.client.clone();
        let [old, new] = [2, 3].map(|n| world.addr(n));
        thread::scope(|scope| -> Result {
            let replaced = scope.spawn(|| log.replace(old, new));
            sleep(Duration::from_millis(delay));
            drop(entered);
            first.freeze();
            world.client = world.fabric.host("next");
            let _entered = world.client.enter();
            let second = follow(&world, 2)?;
            has(&second, b"one");
            second.append(b"two")?;
            first.thaw();
            sleep(SILENCE);
            let _ = replaced.join().expect("no panic");
            second.append(b"three")?;
            let shown: Vec<_> = second.state().servers.iter().map(|of| of.addr).collect();
            assert!(shown == addrs(&world, ABC) || shown == addrs(&world, ABD));
            let found = records(&second);
            assert_eq!(found, [&b"one"[..], b"two", b"three"], "{delay}");
            drop(second);
            let third = follow(&world, 3)?;
            assert_eq!(records(&third), found);
            Ok(())
        })?;
        assert!(log.append(b"late").is_err());
        drop(log);
        world.stop_all();
    }
    Ok(())
}
