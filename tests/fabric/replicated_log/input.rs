//! Bad input: each has one clear error, and nothing is overwritten.

use std::net::SocketAddr;

use crate::common::prelude::*;
use crate::replicated_log::example::blocking::Log;
use crate::replicated_log::example::format::{HEAD, Header, RING, TAIL, Tail};
use crate::replicated_log::example::log::LogCfg;
use crate::replicated_log::example::{LogError, Lsn};
use crate::replicated_log::world::{READING, RING_LEN, World, place};

const RECORD: [u8; 100] = [7; 100];

/// Three replicas with a log of one record, which no program serves.
fn made(fabric: &Fabric) -> Result<World> {
    let mut world = World::new(fabric, READING);
    let log = world.open(1)?;
    let at = log.append(&RECORD)?;
    assert_eq!(at, 0);
    world.until_they_have(&[0, 1, 2], log.bounds().1);
    log.close()?;
    world.stop_all();
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

/// Memory that is not that of the log: its name, how it comes about, and a part of the error.
type Case = (&'static str, fn(&mut [u8]), &'static str);

const CASES: [Case; 10] = [
    (
        "garbage",
        |memory| memory.fill(0xA5),
        "the memory has other bytes than a log",
    ),
    (
        "another version",
        |memory| memory[7] = b'2',
        "the log is one of version '2', not 1",
    ),
    (
        "another key",
        |memory| header(memory, |header| header.key += 1),
        "it has another log",
    ),
    (
        "another ring",
        |memory| header(memory, |header| header.ring *= 2),
        "its ring has 2048 bytes, not 1024",
    ),
    (
        "a damaged header",
        |memory| memory[20] ^= 1,
        "the header of the log is damaged",
    ),
    (
        "a damaged record",
        |memory| memory[RING as usize + 50] ^= 1,
        "the record at 0 is damaged",
    ),
    (
        "half a log",
        |memory| memory[RING as usize..].fill(0),
        "the record at 0 is damaged",
    ),
    (
        "a tail beyond the ring",
        |memory| {
            word(
                memory,
                TAIL,
                Tail {
                    epoch: 1,
                    end: 4096,
                }
                .word(),
            )
        },
        "make no log",
    ),
    (
        "a head between lines",
        |memory| word(memory, HEAD, 65),
        "make no log",
    ),
    (
        "a head beyond every log",
        |memory| word(memory, HEAD, u64::MAX - 63),
        "make no log",
    ),
];

/// Promise: memory that is not that of the log is an error of that replica, which says why, and not
/// a byte of it changes. The log opens with the other two. With one other it does not open.
#[test]
fn memory_of_something_else_is_left_alone() -> Result {
    for (name, spoils, why) in CASES {
        let fabric = Rig::new().seed(1).fabric();
        let mut world = made(&fabric)?;
        spoil(&mut world, 2, spoils);
        let before = memories(&world);
        world.only(&[0, 1, 2]);
        let log = world
            .open(2)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        log.append(b"two")?;
        drop(log);
        world.only(&[1, 2]);
        let two = memories(&world)[1].clone();
        let opened = world.open(3).map(drop).expect_err("too few");
        world.stop_all();
        assert!(
            matches!(&opened, LogError::TooFew(all) if all.contains(why)),
            "{name}: {opened}"
        );
        let after = memories(&world);
        assert!(after[2] == before[2], "{name}: it was overwritten");
        assert!(after[1] == two, "{name}: the log was overwritten");
    }
    Ok(())
}

/// Opens in vain, and returns the error. No byte of any log changes.
fn refused(world: &mut World, cfg: &LogCfg) -> LogError {
    let before = memories(world);
    let opened = world.open_with(cfg).map(drop);
    world.stop_all();
    assert!(memories(world) == before, "something was overwritten");
    opened.expect_err("it opens")
}

/// Promise: replicas of different logs do not become one log, and two addresses of one replica are
/// not two replicas.
#[test]
fn replicas_that_do_not_belong_together_are_no_log() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    spoil(&mut world, 1, |memory| {
        header(memory, |header| header.log ^= 1)
    });
    spoil(&mut world, 2, |memory| {
        header(memory, |header| header.log ^= 2)
    });
    world.only(&[0, 1, 2]);
    let cfg = world.cfg(2);
    let error = refused(&mut world, &cfg);
    let different = "it has another log";
    assert!(
        matches!(&error, LogError::TooFew(why) if why.matches(different).count() == 2),
        "{error}"
    );

    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    let one = world.bytes(0);
    for n in [1, 2] {
        world.refill(n, "copy", &one);
    }
    world.only(&[0, 1, 2]);
    let cfg = world.cfg(2);
    let error = refused(&mut world, &cfg);
    let same = "two of the addresses lead to one replica";
    assert!(
        matches!(&error, LogError::Arguments(why) if why == same),
        "{error}"
    );
    Ok(())
}

/// Promise: a memory that is a copy of another replica's is not a second replica.
#[test]
fn a_copy_of_a_memory_is_one_replica() -> Result {
    for [one, other] in [[0, 1], [0, 2], [1, 2]] {
        let fabric = Rig::new().seed(1).fabric();
        let mut world = made(&fabric)?;
        let bytes = world.bytes(one);
        world.refill(other, "copy", &bytes);
        world.only(&[one, other]);
        let error = world.open(2).map(drop).expect_err("one replica");
        let why = "two of the addresses lead to one replica";
        assert!(
            matches!(&error, LogError::Arguments(text) if text == why),
            "{error}"
        );
    }
    Ok(())
}

/// Promise: of two servers of one memory, the second one does not start.
#[test]
fn one_memory_has_one_server() {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = World::idle(&fabric, READING);
    world.hosts[1] = world.hosts[0].clone();
    world.pmems[1] = world.pmems[0].clone();
    world.start(0).expect("a server");
    let error = world.start(1).expect_err("refused");
    let text = format!("{error:#}");
    assert!(text.contains("one server for one memory"), "{text}");
}

/// Promise: a log is made only where none is, and opened only where one is.
#[test]
fn a_log_is_made_once() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    world.only(&[0, 1, 2]);
    let mut cfg = world.cfg(2);
    cfg.create = true;
    let error = refused(&mut world, &cfg);
    assert!(matches!(error, LogError::Exists), "{error}");
    // Zeros.
    for n in 0..3 {
        world.replace(n);
    }
    world.only(&[0, 1, 2]);
    cfg = world.cfg(3);
    let error = refused(&mut world, &cfg);
    assert!(matches!(error, LogError::Nothing), "{error}");
    Ok(())
}

/// Promise: replicas that offer too little are an error with both sizes.
#[test]
fn an_offer_that_is_too_small_is_an_error() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    world.only(&[0, 1, 2]);
    let mut cfg = world.cfg(2);
    cfg.ring = 8192;
    let error = refused(&mut world, &cfg);
    let why = "the server offers 4096 bytes of memory, and the program needs 8448";
    assert!(
        matches!(&error, LogError::TooFew(all) if all.matches(why).count() == 3),
        "{error}"
    );
    Ok(())
}

/// Promise: settings that make no log are an error before anything is connected.
#[test]
fn wrong_settings_are_an_error_at_once() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    world.only(&[0, 1, 2]);
    type Change = fn(&mut LogCfg);
    let wrong: [(Change, &str); 6] = [
        (|cfg| cfg.epoch = 0, "epochs are from 1 to 16777215"),
        (|cfg| cfg.epoch = 1 << 24, "epochs are from 1 to 16777215"),
        (|cfg| cfg.ring = 960, "the ring has at least 1024 bytes"),
        (|cfg| cfg.ring = 1025, "a multiple of 64"),
        (|cfg| cfg.replicas[2] = cfg.replicas[0], "an address each"),
        (|cfg| cfg.replicas[1] = cfg.replicas[0], "an address each"),
    ];
    let (before, connects) = (memories(&world), || {
        fabric.calls().get("rdma_connect").copied()
    });
    let connected = connects();
    for (change, why) in wrong {
        let mut cfg = world.cfg(2);
        change(&mut cfg);
        let error = world.open_with(&cfg).map(drop).expect_err("it opens");
        assert!(
            matches!(&error, LogError::Arguments(text) if text.contains(why)),
            "{error}"
        );
    }
    assert_eq!(connects(), connected);
    assert!(memories(&world) == before);
    // The highest one is one.
    let log = world.open(Tail::MOST_EPOCH)?;
    log.append(b"last")?;
    Ok(())
}

/// An append or a truncation that is refused. Nothing changes.
fn unchanged(world: &World, log: &Log, call: impl FnOnce(&Log)) {
    let (before, bounds) = (memories(world), log.bounds());
    call(log);
    assert_eq!(log.bounds(), bounds);
    assert!(memories(world) == before, "something was written");
}

/// Promise: a record that is too long, a log that is full, and a truncation to a position without a
/// record are errors, and nothing changes. After a truncation there is room again.
#[test]
fn calls_that_cannot_be_done_change_nothing() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    world.only(&[0, 1, 2]);
    let log = world.open(2)?;
    let entered = world.client.enter();
    let most = RING_LEN as usize / 2 - 24;
    log.append(&vec![1; most])?;
    let mut records = vec![0, log.bounds().1];
    world.until_they_have(&[0, 1, 2], log.bounds().1);
    unchanged(&world, &log, |log| {
        let error = log.append(&vec![2; most + 1]).expect_err("too long");
        assert!(
            matches!(error, LogError::TooLong { len, most: of } if len == most + 1 && of == most),
            "{error}"
        );
    });
    let full = |records: &mut Vec<Lsn>| {
        loop {
            match log.append(&RECORD) {
                Ok(at) => records.push(at),
                Err(error) => return error,
            }
        }
    };
    let error = full(&mut records);
    assert!(matches!(error, LogError::Full), "{error}");
    world.until_they_have(&[0, 1, 2], log.bounds().1);
    unchanged(&world, &log, |log| {
        let error = log.append(&RECORD).expect_err("full");
        assert!(matches!(error, LogError::Full), "{error}");
    });
    let (head, end) = log.bounds();
    let wrong = [1, 64, end + 64, end - 1, Lsn::MAX, Lsn::MAX - 63];
    for at in wrong.into_iter().filter(|at| !records.contains(at)) {
        unchanged(&world, &log, |log| {
            let error = log.truncate(at).expect_err("no record");
            assert!(
                matches!(error, LogError::NoPosition(of) if of == at),
                "{error}"
            );
            let error = log.read(at).expect_err("no record");
            assert!(
                matches!(error, LogError::NoPosition(of) if of == at),
                "{error}"
            );
        });
    }
    log.truncate(end)?;
    let error = log.truncate(head).expect_err("it was truncated");
    assert!(
        matches!(error, LogError::NoPosition(at) if at == head),
        "{error}"
    );
    log.append(&vec![3; most])?;
    drop(entered);
    Ok(())
}

/// Promise: a replica whose directory is garbage, or half of one, does not start, and says so. Not
/// a byte changes. One whose directory and log are gone is a replica without a log.
#[test]
fn a_broken_directory_is_an_error() -> Result {
    let broken = [("no first half", 0..32, 0), ("garbage", 0..32, 0xA5)];
    for (name, range, byte) in broken {
        let fabric = Rig::new().seed(1).fabric();
        let mut world = made(&fabric)?;
        let mut bytes = world.bytes(0);
        bytes[range].fill(byte);
        world.refill(0, name, &bytes);
        let started = world.start(0).map_err(|error| format!("{error:#}"));
        let error = started.expect_err("it starts");
        assert!(error.contains("directory"), "{name}: {error}");
        assert!(world.bytes(0) == bytes, "{name}: it was overwritten");
    }
    Ok(())
}

/// Promise: if the directories are gone, the tail of the log still refuses a writer with a lower
/// epoch than its own.
#[test]
fn a_lower_epoch_than_that_of_the_log_is_refused() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    world.only(&[0, 1, 2]);
    let log = world.open(5)?;
    log.append(b"five")?;
    world.until_they_have(&[0, 1, 2], log.bounds().1);
    drop(log);
    world.stop_all();
    for n in 0..3 {
        let mut bytes = world.bytes(n);
        bytes[..place().start].fill(0);
        world.refill(n, "no directory", &bytes);
    }
    world.only(&[0, 1, 2]);
    let cfg = world.cfg(4);
    let error = refused(&mut world, &cfg);
    assert!(matches!(error, LogError::Fenced { epoch: 5 }), "{error}");
    Ok(())
}

/// Promise: an address where no replica is is an error with the call that failed.
#[test]
fn an_address_without_a_replica_is_an_error() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = made(&fabric)?;
    world.only(&[0]);
    let mut cfg = world.cfg(2);
    let nobody = SocketAddr::from(([10, 99, 99, 99], 1));
    cfg.replicas[1] = nobody;
    let error = refused(&mut world, &cfg);
    let why = "replica 1: gave up at the limit; the last error: rdma_resolve_addr failed";
    assert!(
        matches!(&error, LogError::TooFew(all) if all.contains(why)),
        "{error}"
    );
    Ok(())
}
