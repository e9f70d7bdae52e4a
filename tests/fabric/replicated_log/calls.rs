//! The calls of a log: several records at once, futures that are dropped, the state, and other
//! numbers of servers and copies.

use std::pin::pin;
use std::task::{Context, Waker};

use rpma::sim::now;
use rpma_async::block_on;
use rpma_log::ServerState;
use rpma_log::format::entry_len;

use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records;

fn idle(seed: u64, numbers: (usize, usize)) -> World {
    let fabric = Rig::new().seed(seed).fabric();
    World::of(&fabric, READING, Fault::Nothing, numbers)
}

/// Promise: a log of N servers and K copies goes on without N - K of them, whichever these are. The
/// next writer finds each acknowledged record on any N - K + 1 servers that were there.
#[test]
fn other_numbers_of_servers_and_copies() -> Result {
    for (servers, copies) in [(1, 1), (2, 1), (2, 2), (3, 3), (4, 3), (5, 3)] {
        for first in 0..servers {
            let mut world = idle(1, (servers, copies));
            let _entered = world.client.enter();
            world.start_all();
            let log = world.open(1)?;
            log.append(b"all")?;
            world.until_all_have(&log);
            let up: Vec<_> = (0..copies).map(|n| (first + n) % servers).collect();
            world.only(&up);
            log.append(b"some")?;
            log.close()?;
            drop(log);
            // Those that were away are there again, and enough of those that were not.
            let read = servers - copies + 1;
            let asked: Vec<_> = (0..servers.max(read))
                .map(|n| (first + n) % servers)
                .collect();
            let asked = &asked[..read.max(copies)];
            world.only(asked);
            let log = world.open(2)?;
            let found = records(&log);
            assert_eq!(
                found,
                [&b"all"[..], b"some"],
                "{copies} of {servers}, {asked:?}"
            );
            drop(log);
        }
    }
    Ok(())
}

/// Promise: a log that is opened with other numbers than it was created with is refused with both,
/// and not a byte changes.
#[test]
fn other_numbers_than_those_of_the_log_are_refused() -> Result {
    let mut world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    log.append(b"one")?;
    world.until_all_have(&log);
    log.close()?;
    drop(log);
    let servers = [0, 1, 2].map(|n| world.addr(n));
    for (epoch, count, copies) in [(2, 2, 2), (3, 3, 1), (4, 3, 3)] {
        let before = [0, 1, 2].map(|n| world.bytes(n)[place()].to_vec());
        let mut cfg = world.cfg_on(&servers[..count], copies, epoch);
        cfg.set_create(false);
        let error = world.open_with(&cfg).expect_err("it opens");
        let text = format!(
            "the log was created with 2 copies on 3 servers, and is opened with {copies} on {count}"
        );
        assert_eq!(error.to_string(), text);
        assert!(before == [0, 1, 2].map(|n| world.bytes(n)[place()].to_vec()));
    }
    world.stop_all();
    Ok(())
}

/// Promise: records that are appended together have positions one behind the other, also beyond
/// the end of the ring, and are all there.
#[test]
fn several_records_at_once() -> Result {
    let world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    for round in 0..20_u8 {
        let all = [[round; 10], [round + 1; 10], [round + 2; 10]];
        let positions = log.append_many(&all)?;
        assert_eq!(positions.len(), 3);
        for (at, record) in positions.iter().zip(all) {
            let found = log.read(*at)?.ok_or("a record")?;
            assert_eq!((found.at, &found.bytes[..]), (*at, &record[..]));
        }
        assert!(positions.is_sorted());
        log.truncate(positions[2])?;
    }
    let counters = log.counters();
    assert_eq!((counters.records, counters.bytes), (60, 600));
    Ok(())
}

/// Promise: an empty record, no record, and more records than half of the ring are errors, and
/// nothing changes. After `close` nothing can be appended or truncated.
#[test]
fn appends_that_cannot_be_done_change_nothing() -> Result {
    let world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    let at = log.append(b"one")?;
    let before = log.bounds();
    for records in [&[][..], &[""], &["two", ""]] {
        let error = log.append_many(records).expect_err("empty");
        assert!(matches!(error, LogError::Empty), "{error}");
    }
    let error = log.append_many(&[[1; 100]; 5]).expect_err("too many");
    let is_right = matches!(
        error,
        LogError::TooMany {
            bytes: 640,
            most: 512
        }
    );
    assert!(is_right, "{error}");
    assert_eq!(log.bounds(), before);
    let other = log.clone();
    log.close()?;
    other.close()?;
    for closed in [other.append(b"two").map(drop), other.truncate(at)] {
        assert!(matches!(closed, Err(LogError::Closed)), "{closed:?}");
    }
    // Records are still there to be read.
    assert_eq!(
        other.read(at)?.map(|record| record.bytes),
        Some(b"one".to_vec())
    );
    Ok(())
}

/// Promise: an append whose future is dropped after any poll leaves a log that goes on: its record
/// is acknowledged all the same, in its place, and those behind it as well.
#[test]
fn a_dropped_append_holds_up_no_other() -> Result {
    for (seed, polls) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
        let world = World::seeded(seed);
        let _entered = world.client.enter();
        let log = world.open(1)?;
        log.append(b"one")?;
        (0..3).for_each(|n| world.link(n).delay(Duration::from_millis(5)));
        {
            let mut dropped = pin!((*log).append(b"dropped"));
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                assert!(dropped.as_mut().poll(&mut cx).is_pending());
            }
        }
        log.append(b"two")?;
        let found = records(&log);
        assert_eq!(found, [&b"one"[..], b"dropped", b"two"], "seed {seed}");
        // Also if no other one follows.
        {
            let mut dropped = pin!((*log).append(b"last"));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(dropped.as_mut().poll(&mut cx).is_pending());
        }
        log.close()?;
        assert_eq!(records(&log).len(), 4);
    }
    Ok(())
}

/// Promise: an append whose future is not polled any more, and is not dropped, holds up no other one:
/// a program may keep it, or forget it. `close` needs no poll of it either.
#[test]
fn an_append_that_is_not_polled_holds_up_no_other() -> Result {
    for others in [0, 3] {
        let world = World::seeded(1);
        let _entered = world.client.enter();
        let log = world.open(1)?;
        log.append(b"one")?;
        world.until_all_have(&log);
        (0..3).for_each(|n| world.link(n).delay(Duration::from_millis(5)));
        let mut kept = pin!((*log).append(b"kept"));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(kept.as_mut().poll(&mut cx).is_pending());
        let began = now();
        for _ in 0..others {
            log.append(b"other")?;
        }
        log.close()?;
        assert!(now() - began < Duration::from_secs(1), "{others} others");
        assert_eq!(records(&log).len(), 2 + others);
    }
    Ok(())
}

/// Promise: the same if records of other tasks are in the commit of that append.
#[test]
fn an_append_that_is_not_polled_holds_up_no_record_of_its_commit() -> Result {
    for seed in 1..=20 {
        let world = World::seeded(seed);
        let _entered = world.client.enter();
        let log = world.open(1)?;
        log.append(b"one")?;
        world.until_all_have(&log);
        (0..3).for_each(|n| world.link(n).delay(Duration::from_millis(5)));
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = pin!((*log).append(b"first"));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        let mut waits = pin!((*log).append(b"waits"));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        block_on(first, LIMIT).expect("in time")?;
        // It may post the record that waits.
        let mut kept = pin!((*log).append(b"kept"));
        assert!(kept.as_mut().poll(&mut cx).is_pending());
        let waited = block_on(waits, Duration::from_secs(1));
        waited.unwrap_or_else(|| panic!("seed {seed}: it waits for a future that is kept"))?;
    }
    Ok(())
}

/// Promise: records that are appended at the same time share commits, however many threads there are,
/// and an append that is alone waits for no other.
#[test]
fn appenders_share_commits() -> Result {
    const THREADS: u64 = 14;
    // With two records more they fill the ring.
    const ROUNDS: u64 = 1;
    let world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    log.append(b"first")?;
    world.until_all_have(&log);
    (0..3).for_each(|n| world.link(n).delay(Duration::from_millis(1)));
    let began = now();
    log.append(b"alone")?;
    assert!(now() - began < Duration::from_millis(10));
    let before = log.counters();
    thread::scope(|scope| {
        for n in 0..THREADS {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    log.append(&[n as u8; 10]).expect("appended");
                }
            });
        }
    });
    let after = log.counters();
    assert_eq!(after.records - before.records, THREADS * ROUNDS);
    let commits = after.commits - before.commits;
    println!("{} records in {commits} commits", THREADS * ROUNDS);
    assert!(commits <= 3, "{commits} commits");
    Ok(())
}

/// Promise: the limit of an append counts from its own begin, whichever commit its record waits for,
/// and a later one does not shorten it. The outcome is unknown, and known to the next writer.
#[test]
fn each_append_has_its_own_limit() -> Result {
    let world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open_with(world.cfg(1).set_limit(Duration::from_secs(4)))?;
    log.append(b"one")?;
    world.until_all_have(&log);
    // No answer comes, and no connection ends.
    (0..3).for_each(|n| world.link(n).delay(Duration::from_secs(1000)));
    let began = now();
    thread::scope(|scope| {
        for n in 0..4 {
            let log = &log;
            scope.spawn(move || {
                sleep(n * Duration::from_secs(1));
                let began = now();
                let error = log.append(b"late").expect_err("no server answers");
                let took = now() - began;
                let is_unknown =
                    matches!(&error, LogError::Unknown { why, .. } if matches!(**why, LogError::TimedOut));
                assert!(is_unknown, "{n}: {error}");
                assert_eq!(took.as_secs(), 4, "{n}: {took:?}");
            });
        }
    });
    assert!(now() - began < Duration::from_secs(8));
    Ok(())
}

/// Promise: a truncation does not wait for the commit before it, nor does a full group: several
/// commits are in flight.
#[test]
fn a_commit_does_not_wait_for_the_one_before() -> Result {
    let world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    let mut ends = Vec::new();
    for byte in 0..3 {
        log.append(&[byte; 10])?;
        ends.push(log.bounds().1);
    }
    world.until_all_have(&log);
    (0..3).for_each(|n| world.link(n).delay(Duration::from_millis(100)));
    let began = now();
    log.truncate(ends[0])?;
    let alone = now() - began;
    let mut first = pin!((*log).truncate(ends[1]));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    sleep(alone / 4);
    let began = now();
    log.truncate(ends[2])?;
    let took = now() - began;
    assert!(took < alone * 5 / 4, "{took:?} beside {alone:?}");
    Ok(())
}

/// Promise: the room is that of the ring without the entries from the head on, so a program can
/// reserve some of it.
#[test]
fn the_room_is_known() -> Result {
    let world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    let ring = log.room();
    assert_eq!(ring, 1024);
    let mut used = 0;
    for len in [1, 40, 41, 104, 105] {
        let at = log.append(&vec![1; len])?;
        assert_eq!(at, used);
        used += entry_len(len);
        assert_eq!((log.room(), log.bounds().1), (ring - used, used), "{len}");
    }
    log.truncate(used)?;
    assert_eq!(log.room(), ring);
    Ok(())
}

/// Promise: a full log fails at once if the program wants that, and waits for a truncation
/// otherwise.
#[test]
fn a_full_log_waits_or_fails_at_once() -> Result {
    let world = World::seeded(1);
    let _entered = world.client.enter();
    let mut cfg = world.cfg(1);
    cfg.set_room_limit(Duration::ZERO);
    let log = world.open_with(&cfg)?;
    let fills = |log: &Log| loop {
        if let Err(error) = log.append(&[7; 100]) {
            return error;
        }
    };
    let began = now();
    let error = fills(&log);
    assert!(matches!(error, LogError::Full { .. }), "{error}");
    assert!(now() - began < Duration::from_secs(1));
    let waits = (*log).append(&[7; 100]);
    assert!(block_on(waits, Duration::from_millis(1)).is_some_and(|full| full.is_err()));
    Ok(())
}

/// Promise: the state has how far each server is, and the reason for which one is away.
#[test]
fn the_state_has_each_server() -> Result {
    let mut world = World::seeded(1);
    let client = world.client.clone();
    let _entered = client.enter();
    let log = world.open(1)?;
    log.append(b"one")?;
    world.until_all_have(&log);
    log.append(b"two")?;
    world.until_all_have(&log);
    let all_have = |log: &Log| {
        let state = log.state();
        let has = |of: &ServerState| of.durable == Some(state.end) && of.away.is_none();
        state.durable == state.end && state.servers.iter().all(has)
    };
    for _ in (0..100).take_while(|_| !all_have(&log)) {
        sleep(Duration::from_millis(10));
    }
    assert!(all_have(&log), "{:?}", log.state());
    world.stop(1);
    log.append(b"three")?;
    for _ in (0..100).take_while(|_| log.state().servers[1].away.is_none()) {
        sleep(Duration::from_millis(100));
    }
    let state = log.state();
    let [one, other, third] = &state.servers[..] else {
        panic!("{state:?}");
    };
    assert_eq!(other.durable, None);
    assert!(other.away.as_ref().is_some_and(|why| !why.is_empty()));
    let ends = [one.durable, third.durable];
    assert!(ends.contains(&Some(state.end)), "{state:?}");
    assert_eq!((one.addr, other.addr), (world.addr(0), world.addr(1)));
    world.start(1)?;
    world.until_all_have(&log);
    for _ in (0..100).take_while(|_| !all_have(&log)) {
        sleep(Duration::from_millis(100));
    }
    assert!(all_have(&log), "{:?}", log.state());
    Ok(())
}
