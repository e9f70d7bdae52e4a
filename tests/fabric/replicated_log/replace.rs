//! A server takes the place of another one. Each scene is a promise, and the faults that break it.
//!
//! The hosts `a`, `b` and `c` have the log at first, and `d` and `e` are spare ones.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma::sim::Entered;
use rpma_log::LogCfg;
use rpma_log::format::{List, Member};

use crate::replicated_log::cuts::{Told, locked};
use crate::replicated_log::faults::{find, panics};
use crate::replicated_log::network::is_unknown;
use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records;

const HOSTS: usize = 5;
const ABC: [usize; 3] = [0, 1, 2];
const ABD: [usize; 3] = [0, 1, 3];
const AED: [usize; 3] = [0, 4, 3];

/// Five hosts whose programs do not run yet, and the calling thread on the client.
fn idle(seed: u64, fault: Fault) -> (World, Entered) {
    let fabric = Rig::new().seed(seed).fabric();
    let world = World::of(&fabric, READING, fault, (HOSTS, 2));
    let entered = world.client.enter();
    (world, entered)
}

fn addrs(world: &World, servers: [usize; 3]) -> [SocketAddr; 3] {
    servers.map(|n| world.addr(n))
}

fn cfg(world: &World, servers: [usize; 3], epoch: u64) -> LogCfg {
    world.cfg_on(&addrs(world, servers), 2, epoch)
}

fn open(world: &World, servers: [usize; 3], epoch: u64) -> Result<Log, LogError> {
    world.open_with(&cfg(world, servers, epoch))
}

/// Opens with the first list, and follows the one of the log.
fn follow(world: &World, epoch: u64) -> Result<Log, LogError> {
    let mut cfg = cfg(world, ABC, epoch);
    world.open_with(cfg.set_follow(true))
}

/// A log on the first three servers with the record "one", which all of them have. The spare ones
/// run as well.
fn log_with_one(world: &mut World) -> Log {
    world.only(&[0, 1, 2, 3, 4]);
    let log = open(world, ABC, 1).expect("made");
    log.append(b"one").expect("appended");
    until_listed(world, &ABC);
    world.until_they_have(&ABC, log.bounds().1);
    log
}

/// Waits until each of these servers has a list of them.
fn until_listed(world: &World, servers: &[usize; 3]) {
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

fn until(is_true: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_true() {
            return;
        }
        sleep(Duration::from_millis(100));
    }
    panic!("it has not become true");
}

fn replace(world: &World, log: &Log, old: usize, new: usize) -> Result<(), LogError> {
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

/// Promise: if the new server dies during the change, the log goes on, whether it counts or not. Then
/// another server is taken, or the place of the dead one is. All records are there.
#[test]
fn the_new_server_dies_during_the_change() -> Result {
    for millis in share("deaths of the new one", 2, (0..30).map(|n| 10 * n)) {
        let (mut world, entered) = idle(1 + millis, Fault::Nothing);
        let log = log_with_one(&mut world);
        world.link(3).delay(Duration::from_millis(20));
        let replaced = thread::scope(|scope| {
            let new = world.hosts[3].clone();
            cut_later(&world.fabric, scope, millis, move || new.power_cut());
            let appends = scope.spawn(|| {
                (0..6_u8).try_for_each(|n| {
                    sleep(Duration::from_millis(40));
                    log.append(&[n; 10]).map(drop)
                })
            });
            let replaced = replace(&world, &log, 2, 3);
            appends.join().expect("no panic").expect("appended");
            replaced
        });
        let is_in = log.state().servers[2].addr == world.addr(3);
        assert!(is_in || replaced.is_err(), "{millis}");
        let old = if is_in { 3 } else { 2 };
        let again = || replace(&world, &log, old, 4).is_ok();
        until(again);
        world.until_they_have(&[0, 1, 4], log.bounds().1);
        let all = records(&log);
        assert_eq!(all.len(), 7, "{millis}");
        drop((log, entered));
        let _entered = world.client.enter();
        world.only(&[1, 4]);
        let log = open(&world, [0, 1, 4], 2).expect("opens");
        assert_eq!(records(&log), all);
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

/// The records with which a writer would open the log from these servers, as docs/log-format.md has
/// it. `None`: they are too few.
fn opens(found: &[&Stored]) -> Option<Vec<Vec<u8>>> {
    let logs: Vec<_> = found.iter().filter(|of| of.header.is_some()).collect();
    let lists = logs.iter().filter_map(|of| of.list.as_ref());
    let list: &List = lists.max_by_key(|list| list.number)?;
    let is_of = |of: &Stored, members: &[Member]| {
        let header = of.header.expect("a log");
        members.iter().any(|member| member.server == header.server)
    };
    let (before, after) = (list.members.clone(), list.last());
    for members in [&before, &after] {
        let count = logs.iter().filter(|of| is_of(of, members)).count();
        if count < 2 {
            return None;
        }
    }
    let is_read = |of: &&&&Stored| is_of(of, &before) || is_of(of, &after);
    let read: Vec<_> = logs.iter().filter(is_read).map(|of| **of).collect();
    let newest = Stored::newest(&read)?;
    Some(
        newest
            .records()
            .map(|(_, record)| record.to_vec())
            .collect(),
    )
}

/// The memories of the servers after a cut, and what was acknowledged before it.
type Left = (Vec<Vec<u8>>, Told);

/// Whatever servers are left after a cut: if they open the log, it has each acknowledged record.
/// Some of the memories are kept.
fn check_cut(cut: &Cut<'_>, world: &World, told: &Told, left: &Mutex<Vec<Left>>) {
    let pmems = Vec::from_iter(&world.pmems[..4]);
    for (n, images) in cut.joint_images_up_to(&pmems, 20).enumerate() {
        if n == 3 {
            let memories = images
                .iter()
                .map(|image| image.bytes()[..place().end].to_vec());
            locked(left).push((memories.collect(), told.clone()));
        }
        let logs = images.iter().map(|image| found(image.bytes()));
        let logs: Result<Vec<_>, _> = logs.collect();
        let logs = logs.unwrap_or_else(|error| panic!("{error}"));
        for up in 0_usize..16 {
            let up = logs.iter().enumerate().filter(|(n, _)| up >> n & 1 == 1);
            let up: Vec<_> = up.map(|(_, found)| found).collect();
            let Some(records) = opens(&up) else { continue };
            for record in told.records.range(told.head..).map(|(_, record)| record) {
                assert!(records.contains(record), "{record:?} is lost: {records:?}");
            }
        }
    }
}

/// The next writer opens a log of these memories, and finishes the change.
fn recover((memories, told): &Left) {
    let (mut world, _entered) = idle(1, Fault::Nothing);
    for (n, memory) in memories.iter().enumerate() {
        // The directory names a host of the other fabric.
        let mut memory = memory.clone();
        memory[..place().start].fill(0);
        world.refill(n, "left", &memory);
    }
    world.only(&[0, 1, 2, 3]);
    let log = follow(&world, 9).expect("opens");
    told.check_read(&log, told.head);
    log.append(b"after").expect("appended");
    let shown: Vec<_> = log.state().servers.iter().map(|of| of.addr).collect();
    let found = [ABC, ABD]
        .into_iter()
        .find(|of| shown == addrs(&world, *of));
    let servers = found.unwrap_or_else(|| panic!("{shown:?}"));
    until_listed(&world, &servers);
    world.until_they_have(&servers, log.bounds().1);
}

/// Promise: whenever the power of all servers fails while one is replaced, each set of servers that
/// opens the log has each acknowledged record. The next writer finishes the change or undoes it.
#[test]
fn the_power_fails_at_each_event() -> Result {
    let run = |seed: u64, fault: Fault, way: Way| -> Result<(), String> {
        let fabric = Rig::new().seed(seed).fabric();
        let mut world = World::of(&fabric, way, fault, (HOSTS, 2));
        let _entered = world.client.enter();
        let log = log_with_one(&mut world);
        let (told, left) = (Mutex::new(Told::default()), Mutex::new(Vec::new()));
        let check = |cut: &Cut<'_>| check_cut(cut, &world, &locked(&told), &left);
        let append = |byte: u8| {
            let record = vec![byte; 40];
            let at = log.append(&record)?;
            locked(&told).acknowledged(at, record);
            Ok::<_, LogError>(())
        };
        let ended = fabric.find_loss(check, || {
            append(1)?;
            thread::scope(|scope| {
                let appends = scope.spawn(|| (2..5).try_for_each(append));
                let replaced = replace(&world, &log, 2, 3);
                appends.join().expect("no panic").and(replaced)
            })?;
            append(5)
        });
        let ended = ended.map_err(|loss| loss.to_string())?;
        let visited = fabric.visited();
        println!("{way:?}: {visited:?}");
        assert!(visited.images > 100, "{visited:?}");
        let left = locked(&left);
        left.iter().step_by(1 + left.len() / 60).for_each(recover);
        ended.map_err(|error| error.to_string())
    };
    let caches = Way {
        method: Method::Server,
        platform: Platform::AdrDdioOn,
    };
    for (seed, way) in [(1, READING), (2, caches)] {
        run(seed, Fault::Nothing, way)?;
    }
    find(Fault::ListInPlace, 1..=10, |seed| {
        run(seed, Fault::ListInPlace, caches)
    })
}

/// The writer dies after so many milliseconds: the server `a` is 100 ms away from it.
const DEATHS: std::ops::Range<u64> = 0..70;
const EACH: u64 = 12;

/// Another host writes from now on. The server `a` is far from it.
fn next_writer(world: &mut World, name: &str) -> Entered {
    world.client = world.fabric.host(name);
    let entered = world.client.enter();
    world.link(0).delay(Duration::from_millis(100));
    entered
}

/// Does something after so many milliseconds, on a host of its own.
fn cut_later<'scope>(
    fabric: &Fabric,
    scope: &'scope thread::Scope<'scope, '_>,
    millis: u64,
    cut: impl FnOnce() + Send + 'scope,
) {
    let killer = fabric.host(&format!("killer {}", fabric.steps()));
    let _entered = killer.enter();
    scope.spawn(move || {
        sleep(Duration::from_millis(millis));
        cut();
    });
}

/// A writer dies while it replaces `c`, which is gone, and appends, and `a` loses its power. Then a
/// writer with this fault finds what it finds: of `a` and `c`, or of all but `c`, before `a` and `c`
/// are asked.
fn dies_after(millis: u64, fault: Fault, finishes: bool) {
    let (mut world, entered) = idle(1, Fault::Nothing);
    let log = log_with_one(&mut world);
    world.stop(2);
    world.link(0).delay(Duration::from_millis(100));
    let told = Mutex::new(Told::default());
    let append = |log: &Log, byte: u8| {
        let at = log.append(&[byte; 10])?;
        locked(&told).acknowledged(at, vec![byte; 10]);
        Ok::<_, LogError>(())
    };
    // Of a change that is to be finished only `b` and the new server know.
    let dies = if finishes { EACH * 4 } else { millis };
    let writer = world.client.clone();
    // The errors are those of a host that is gone.
    thread::scope(|scope| {
        let a = &world.hosts[0];
        cut_later(&world.fabric, scope, dies, || {
            writer.kill();
            a.power_cut();
        });
        scope.spawn(|| (1..7).try_for_each(|byte| append(&log, byte)));
        let _ = replace(&world, &log, 2, 3);
    });
    drop((log, entered));
    world.restart(0).expect("it starts");
    let mut epoch = 2;
    let mut open = |world: &mut World, fault: Fault| {
        world.fault = fault;
        let log = follow(world, epoch);
        world.fault = Fault::Nothing;
        epoch += 1;
        let log = log?;
        locked(&told).check_read(&log, 0);
        Ok::<_, LogError>(log)
    };
    if finishes {
        let _entered = next_writer(&mut world, "second");
        let (fabric, a) = (world.fabric.clone(), world.hosts[0].clone());
        let opened = thread::scope(|scope| {
            cut_later(&fabric, scope, millis, || a.power_cut());
            open(&mut world, fault)
        });
        if let Ok(log) = opened {
            append(&log, 99).expect("appended");
            world.client.kill();
        }
        world.restart(0).expect("it starts");
    }
    let entered = next_writer(&mut world, "third");
    // It answers after `a` and `c` were read.
    world.link(3).delay(Duration::from_millis(300));
    world.only(&[0, 2, 3]);
    let fault = if finishes { Fault::Nothing } else { fault };
    match open(&mut world, fault) {
        Ok(_) | Err(LogError::TooFew(_) | LogError::OtherServers { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    drop(entered);
    let _entered = next_writer(&mut world, "last");
    world.only(&[0, 1, 2, 3]);
    let log = open(&mut world, Fault::Nothing).expect("opens");
    log.append(b"last").expect("appended");
    drop(log);
    world.stop_all();
}

/// Runs this with each time at which the first writer may die, and with a fault.
fn each_death(fault: Fault, finishes: bool) -> Result {
    for after in share("deaths", 4, DEATHS) {
        dies_after(EACH * after, Fault::Nothing, finishes);
    }
    find(fault, DEATHS, |after| {
        panics(|| dies_after(EACH * after, fault, finishes))
    })
}

/// Promise: a writer that dies at any time while it replaces a server leaves a log that has each
/// acknowledged record, or one that needs more servers. A writer that finds the change asks the
/// servers after it as well as those before it.
#[test]
fn the_writer_dies_during_the_change() -> Result {
    each_death(Fault::ReadsOldList, false)
}

/// Promise: the next writer finishes a change that was cut, and acknowledges no record before K
/// servers of the list before know of it.
#[test]
fn the_next_writer_finishes_a_change() -> Result {
    each_death(Fault::FinishesEarly, true)
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
