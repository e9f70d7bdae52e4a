//! Bad input: each has one clear error, and nothing is overwritten.

use std::fmt::Debug;
use std::net::SocketAddr;

use crate::replicated_log::prelude::*;
use rpma_async::Reactor;
use rpma_log::format::{HEAD, Header, RING, TAIL, Tail};
use rpma_log::{LogCfg, ServerCfg};

const RECORD: [u8; 100] = [7; 100];

/// Three replicas with a log of one record, which no program serves.
fn made() -> Result<World> {
    let mut world = World::seeded(1);
    let log = world.open(1)?;
    let at = log.append(&RECORD)?;
    assert_eq!(at, 0);
    world.until_all_have(&log);
    log.close()?;
    world.stop_all();
    Ok(world)
}

/// The same, with replicas that serve.
fn serving() -> Result<World> {
    let mut world = made()?;
    world.start_all();
    Ok(world)
}

/// The memory of the log on each replica.
fn memories(world: &World) -> Vec<Vec<u8>> {
    let all = 0..world.pmems.len();
    all.map(|n| world.bytes(n)[place()].to_vec()).collect()
}

/// Gives a replica other bytes of its log.
fn spoil(world: &mut World, n: usize, spoil: impl Fn(&mut [u8])) {
    let mut bytes = world.bytes(n);
    spoil(&mut bytes[place()]);
    world.refill(n, "spoilt", &bytes);
}

fn header(memory: &mut [u8], change: impl Fn(&mut Header)) {
    let mut header = Header::decode(memory).expect("whole").expect("a log");
    change(&mut header);
    memory[..Header::LEN].copy_from_slice(&header.encode());
}

fn word(memory: &mut [u8], at: u64, word: u64) {
    memory[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
}

fn head(memory: &mut [u8], head: u64) {
    word(memory, HEAD, head);
}

fn tail(memory: &mut [u8], end: u64) {
    word(memory, TAIL, Tail { epoch: 1, end }.word());
}

/// Memory that is not that of the log: its name, how it comes about, and a part of the error.
type Case = (&'static str, fn(&mut [u8]), &'static str);

const OTHER_BYTES: &str = "the memory has other bytes than a log";
const OTHER_VERSION: &str = "the log is one of version '1', not 3";
const OTHER_RING: &str = "its ring has 2048 bytes, not 1024";
const HEADER: &str = "the header of the log is damaged";
const RECORD_AT_0: &str = "the record at 0 is damaged";
const NO_LOG: &str = "make no log";
/// The last multiple of 64.
const LAST: u64 = u64::MAX - 63;
/// Where the records begin.
const FIRST: usize = RING as usize;

const CASES: [Case; 10] = [
    ("garbage", |log| log.fill(0xA5), OTHER_BYTES),
    ("another version", |log| log[7] = b'1', OTHER_VERSION),
    (
        "another key",
        |log| header(log, |of| of.key += 1),
        OTHER_LOG,
    ),
    (
        "another ring",
        |log| header(log, |of| of.ring *= 2),
        OTHER_RING,
    ),
    ("a damaged header", |log| log[20] ^= 1, HEADER),
    ("a damaged record", |log| log[FIRST + 50] ^= 1, RECORD_AT_0),
    ("half a log", |log| log[FIRST..].fill(0), RECORD_AT_0),
    ("a tail beyond the ring", |log| tail(log, 4096), NO_LOG),
    ("a head between lines", |log| head(log, 65), NO_LOG),
    ("a head beyond every log", |log| head(log, LAST), NO_LOG),
];

/// Promise: memory that is not that of the log is an error of that replica, which says why, and not
/// a byte of it changes. The log opens with the other two. With one other it does not open.
#[test]
fn memory_of_something_else_is_left_alone() -> Result {
    for (name, spoils, why) in CASES {
        let mut world = made()?;
        spoil(&mut world, 2, spoils);
        let before = memories(&world);
        world.only(&[0, 1, 2]);
        let opened = world.open(2);
        let log = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        log.append(b"two")?;
        drop(log);
        world.only(&[1, 2]);
        let two = memories(&world)[1].clone();
        let opened = too_few(world.open(3).map(drop).expect_err("too few"));
        world.stop_all();
        assert!(opened.contains(why), "{name}: {opened}");
        let after = memories(&world);
        assert!(after[2] == before[2], "{name}: it was overwritten");
        assert!(after[1] == two, "{name}: the log was overwritten");
    }
    Ok(())
}

/// Opens in vain with these settings, and returns the error. No byte of any log changes.
fn refused(world: &mut World, epoch: u64, change: impl FnOnce(&mut LogCfg)) -> LogError {
    let mut cfg = world.cfg(epoch);
    change(&mut cfg);
    let before = memories(world);
    let opened = world.open_with(&cfg).map(drop);
    world.stop_all();
    assert!(memories(world) == before, "something was overwritten");
    opened.expect_err("it opens")
}

/// Why too few replicas can be reached.
fn too_few(error: LogError) -> String {
    match error {
        LogError::TooFew(why) => why,
        error => panic!("{error}"),
    }
}

/// What is wrong with the settings.
fn arguments(error: LogError) -> String {
    match error {
        LogError::Settings(why) => why,
        error => panic!("{error}"),
    }
}

const OTHER_LOG: &str = "it has another log";
const SAME: &str = "two of the addresses lead to one server";

/// Promise: replicas of different logs do not become one log, and two addresses of one replica are
/// not two replicas.
#[test]
fn replicas_that_do_not_belong_together_are_no_log() -> Result {
    let mut world = made()?;
    for n in [1, 2] {
        spoil(&mut world, n, |memory| {
            header(memory, |header| header.log ^= n as u64)
        });
    }
    world.only(&[0, 1, 2]);
    let why = too_few(refused(&mut world, 2, |_| {}));
    assert_eq!(why.matches(OTHER_LOG).count(), 2, "{why}");

    let mut world = made()?;
    let one = world.bytes(0);
    for n in [1, 2] {
        world.refill(n, "copy", &one);
    }
    world.only(&[0, 1, 2]);
    assert_eq!(arguments(refused(&mut world, 2, |_| {})), SAME);
    Ok(())
}

/// Promise: a memory that is a copy of another replica's is not a second replica.
#[test]
fn a_copy_of_a_memory_is_one_replica() -> Result {
    for [one, other] in [[0, 1], [0, 2], [1, 2]] {
        let mut world = made()?;
        let bytes = world.bytes(one);
        world.refill(other, "copy", &bytes);
        world.only(&[one, other]);
        let error = world.open(2).map(drop).expect_err("one replica");
        assert_eq!(arguments(error), SAME);
    }
    Ok(())
}

/// Promise: of two servers of one memory, the second one does not start.
#[test]
fn one_memory_has_one_server() {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = World::idle(&fabric, READING, Fault::Nothing);
    world.hosts[1] = world.hosts[0].clone();
    world.pmems[1] = world.pmems[0].clone();
    world.start(0).expect("a server");
    let error = world.start(1).expect_err("refused");
    let text = format!("{error:#}");
    assert!(text.contains("one server for one memory"), "{text}");
}

/// Promise: two servers on one host are an error with the remedy, and nothing is written. A program
/// may permit them.
#[test]
fn two_servers_on_one_host_are_refused() -> Result {
    for (one, other, third) in [(0, 1, 2), (0, 2, 1), (1, 2, 0)] {
        let mut world = on_one_host(one, other);
        // It is read last.
        world.link(third).delay(Duration::from_millis(100));
        let error = arguments(refused(&mut world, 1, |_| {}));
        assert!(error.contains("are on one host"), "{error}");
        assert!(error.contains("LogCfg::permit_one_host"), "{error}");
        world.start_all();
        let mut cfg = world.cfg(2);
        cfg.set_create(true).permit_one_host();
        let log = world.open_with(&cfg)?;
        log.append(b"one")?;
        world.until_all_have(&log);
    }
    Ok(())
}

/// Promise: a server on the host of another one that is reached when the log is open is away with
/// the reason. Nothing is written to it.
#[test]
fn a_late_server_on_the_same_host_is_away() -> Result {
    let mut world = on_one_host(0, 2);
    world.stop(2);
    let client = world.client.clone();
    let _entered = client.enter();
    let log = world.open(1)?;
    world.start(2)?;
    sleep(SILENCE);
    log.append(b"one")?;
    let state = log.state();
    let why = state.servers[2].away.as_deref().unwrap_or_default();
    assert!(why.contains("are on one host"), "{why}");
    assert!(world.bytes(2)[place()].iter().all(|byte| *byte == 0));
    Ok(())
}

/// Three servers that run, two of them on one host.
fn on_one_host(one: usize, other: usize) -> World {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = World::idle(&fabric, READING, Fault::Nothing);
    world.hosts[other] = world.hosts[one].clone();
    world.pmems[other] = world.hosts[one].pmem("other", place().end);
    world.start_all();
    world
}

/// Promise: a log is made only where none is, and opened only where one is.
#[test]
fn a_log_is_made_once() -> Result {
    let mut world = serving()?;
    let error = refused(&mut world, 2, |cfg| _ = cfg.set_create(true));
    let first = [0, 1, 2].map(|n| world.addr(n));
    let is_right = matches!(error, LogError::Exists { server } if first.contains(&server));
    assert!(is_right, "{error}");
    // Zeros.
    (0..3).for_each(|n| world.replace(n));
    world.start_all();
    let error = refused(&mut world, 3, |_| {});
    assert!(matches!(error, LogError::Nothing), "{error}");
    Ok(())
}

/// Promise: replicas that offer too little are an error with both sizes.
#[test]
fn an_offer_that_is_too_small_is_an_error() -> Result {
    let mut world = serving()?;
    let error = too_few(refused(&mut world, 2, |cfg| _ = cfg.set_ring(8192)));
    let why = "the server offers 8192 bytes of memory, and the program needs 12672";
    assert_eq!(error.matches(why).count(), 3, "{error}");
    Ok(())
}

/// Promise: replicas with room for a longer ring are an error with both sizes: no log is made that
/// their settings do not find again.
#[test]
fn an_offer_that_is_too_large_is_an_error() -> Result {
    let world = World::idle(&Rig::new().seed(1).fabric(), READING, Fault::Nothing);
    let host = world.fabric.host("large");
    host.set_platform(Platform::Eadr);
    let pmem = host.pmem("log", 1 << 20);
    let addr = SocketAddr::from((host.addr(), 1));
    let entered = host.enter();
    let mut server = ServerCfg::new(addr, pmem.path());
    let mut server = server.set_keys(1).set_ring(8192).listen()?;
    drop(entered);
    let waker = server.waker();
    let serves = host.spawn(move || server.serve(drop));
    let mut cfg = world.cfg_on(&[addr], 1, 1);
    let opened = world.open_with(&cfg).map(drop);
    let error = too_few(opened.expect_err("it opens"));
    let why = "has 16384 bytes, and a ring of 1024 bytes takes 8192";
    assert!(error.contains(why), "{error}");
    drop(world.open_with(cfg.set_epoch(2).set_ring(8192))?);
    waker.wake();
    serves.join().expect("no panic")?;
    Ok(())
}

/// Promise: settings that make no log are an error before anything is connected.
#[test]
fn wrong_settings_are_an_error_at_once() -> Result {
    let world = serving()?;
    type Change = fn(&mut LogCfg) -> &mut LogCfg;
    let wrong: [(Change, &str); 8] = [
        (|cfg| cfg.set_epoch(0), "epochs are from 1 to 16777215"),
        (
            |cfg| cfg.set_epoch(1 << 24),
            "epochs are from 1 to 16777215",
        ),
        (|cfg| cfg.set_ring(960), "it has at least 1024"),
        (|cfg| cfg.set_ring(1 << 41), "at most 1099511627776"),
        (|cfg| cfg.set_ring(1025), "a multiple of 64"),
        (|cfg| cfg.set_limit(Duration::ZERO), "at least 10ms"),
        (|cfg| cfg.set_silence(Duration::ZERO), "set 1ms at least"),
        (|cfg| cfg.set_key(0), "the key is 0"),
    ];
    let [a, b, c] = [0, 1, 2].map(|n| world.addr(n));
    let wrong_servers: [(&[_], usize, &str); 6] = [
        (&[a, b, a], 2, "an address is there twice"),
        (&[a, a, c], 2, "an address is there twice"),
        (&[], 1, "a log of 0 servers"),
        (&[a, b, c], 0, "0 copies on 3 servers"),
        (&[a, b, c], 4, "4 copies on 3 servers"),
        (&[a; 65], 2, "a log of 65 servers"),
    ];
    let before = memories(&world);
    let connects = || world.fabric.calls().get("rdma_connect").copied();
    let connected = connects();
    let changed = wrong.map(|(change, why)| {
        let mut cfg = world.cfg(2);
        change(&mut cfg);
        (cfg, why)
    });
    let on_servers = |(servers, copies, why): (&[_], _, _)| (world.cfg_on(servers, copies, 2), why);
    for (cfg, why) in changed.into_iter().chain(wrong_servers.map(on_servers)) {
        let error = arguments(world.open_with(&cfg).map(drop).expect_err("it opens"));
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(connects(), connected);
    assert!(memories(&world) == before);
    // The highest one is one.
    let log = world.open(Tail::MOST_EPOCH)?;
    log.append(b"last")?;
    Ok(())
}

/// Promise: a server with a ring that no log has does not start.
#[test]
fn a_server_with_a_wrong_ring_does_not_start() {
    let world = World::idle(&Rig::new().seed(1).fabric(), READING, Fault::Nothing);
    let _entered = world.hosts[0].enter();
    for ring in [0, 100, 960, 1025, u64::MAX, 1 << 41] {
        let mut cfg = ServerCfg::new(world.addr(0), world.pmems[0].path());
        let error = cfg
            .set_ring(ring)
            .listen()
            .map(drop)
            .expect_err("it starts");
        let text = error.to_string();
        assert!(text.contains(&format!("a ring of {ring} bytes")), "{text}");
    }
    assert!(world.bytes(0).iter().all(|byte| *byte == 0));
}

/// Promise: if the driver of the reactor is gone, the log does not open, and the error is the reason.
#[test]
fn a_reactor_without_a_driver_opens_no_log() -> Result {
    let world = serving()?;
    let _entered = world.client.enter();
    let runtime = ::tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let opened = runtime.block_on(async {
        let peer = Peer::at(&world.client.addr().to_string())?;
        let (reactor, driver) = Reactor::new(&peer)?;
        drop(driver);
        rpma_log::Log::open(&reactor, &world.cfg(2)).await
    });
    let error = opened.map(drop).expect_err("it opens");
    assert!(error.to_string().contains("driver"), "{error}");
    Ok(())
}

/// An append or a truncation that is refused. Nothing changes.
fn unchanged(world: &World, log: &Log, call: impl FnOnce(&Log)) {
    let (before, bounds) = (memories(world), log.bounds());
    call(log);
    assert_eq!(log.bounds(), bounds);
    assert!(memories(world) == before, "something was written");
}

fn no_position<T: Debug>(result: Result<T, LogError>, at: u64) {
    let error = result.expect_err("no record");
    let is_right = matches!(error, LogError::NoPosition { at: of, .. } if of == at);
    assert!(is_right, "{error}");
}

/// Promise: a record that is too long, a log that is full, and a truncation to a position without a
/// record are errors, and nothing changes. After a truncation there is room again.
#[test]
fn calls_that_cannot_be_done_change_nothing() -> Result {
    let world = serving()?;
    let log = world.open(2)?;
    let _entered = world.client.enter();
    let most = RING_LEN as usize / 2 - 24;
    log.append(&vec![1; most])?;
    let mut records = vec![0, log.bounds().1];
    world.until_all_have(&log);
    unchanged(&world, &log, |log| {
        let error = log.append(&vec![2; most + 1]).expect_err("too long");
        let LogError::TooLong { len, most: of } = error else {
            panic!("{error}");
        };
        assert_eq!((len, of), (most + 1, most));
    });
    let error = loop {
        match log.append(&RECORD) {
            Ok(at) => records.push(at),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::Full { .. }), "{error}");
    world.until_all_have(&log);
    unchanged(&world, &log, |log| {
        let error = log.append(&RECORD).expect_err("full");
        let room = RING_LEN - (log.bounds().1 - log.bounds().0);
        let is_right = matches!(error, LogError::Full { bytes: 128, room: of } if of == room);
        assert!(is_right, "{error}");
    });
    let (head, end) = log.bounds();
    let wrong = [1, 64, end + 64, end - 1, u64::MAX, u64::MAX - 63];
    for at in wrong.into_iter().filter(|at| !records.contains(at)) {
        unchanged(&world, &log, |log| {
            no_position(log.truncate(at), at);
            no_position(log.read(at), at);
        });
    }
    log.truncate(end)?;
    no_position(log.truncate(head), head);
    log.append(&vec![3; most])?;
    Ok(())
}

/// Promise: a replica whose directory is garbage, or half of one, does not start, and says so. Not
/// a byte changes. One whose directory and log are gone is a replica without a log.
#[test]
fn a_broken_directory_is_an_error() -> Result {
    for (name, range, byte) in [("no first half", 0..32, 0), ("garbage", 0..32, 0xA5)] {
        let mut world = made()?;
        let mut bytes = world.bytes(0);
        bytes[range].fill(byte);
        world.refill(0, name, &bytes);
        let error = format!("{:#}", world.start(0).expect_err("it starts"));
        assert!(error.contains("directory"), "{name}: {error}");
        assert!(world.bytes(0) == bytes, "{name}: it was overwritten");
    }
    Ok(())
}

/// Promise: if the directories are gone, the tail of the log still refuses a writer with a lower
/// epoch than its own.
#[test]
fn a_lower_epoch_than_that_of_the_log_is_refused() -> Result {
    let mut world = serving()?;
    let log = world.open(5)?;
    log.append(b"five")?;
    world.until_all_have(&log);
    drop(log);
    world.stop_all();
    for n in 0..3 {
        let mut bytes = world.bytes(n);
        bytes[..place().start].fill(0);
        world.refill(n, "no directory", &bytes);
    }
    world.start_all();
    let error = refused(&mut world, 4, |_| {});
    assert!(matches!(error, LogError::Fenced { epoch: 5 }), "{error}");
    Ok(())
}

/// Promise: an address where no replica is is an error with the call that failed.
#[test]
fn an_address_without_a_replica_is_an_error() -> Result {
    let mut world = made()?;
    world.only(&[0]);
    let nobody = SocketAddr::from(([10, 99, 99, 99], 1));
    let servers = [world.addr(0), nobody, world.addr(2)];
    let other = world.cfg_on(&servers, 2, 2);
    let error = too_few(refused(&mut world, 2, |cfg| *cfg = other));
    let why = "10.99.99.99:1: gave up at the limit; the last error: rdma_resolve_addr failed";
    assert!(error.contains(why), "{error}");
    let numbers = "1 of the 2 that are needed, of 3, within 15s.";
    assert!(error.contains(numbers), "{error}");
    Ok(())
}
