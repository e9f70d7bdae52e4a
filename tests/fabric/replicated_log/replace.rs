//! A server takes the place of another one: the promises that only this log makes, for instance its
//! errors. Those of any log are scenes of `rpma-scenes`.
//!
//! The hosts `a`, `b` and `c` have the log at first, and `d` and `e` are spare ones.

use std::net::SocketAddr;

use rpma::sim::Entered;
use rpma_log::LogCfg;
use rpma_log::format::Member;

use crate::replicated_log::faults::{find, panics};
use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records;

pub(crate) const HOSTS: usize = 5;
pub(crate) const ABC: [usize; 3] = [0, 1, 2];
pub(crate) const ABD: [usize; 3] = [0, 1, 3];

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
