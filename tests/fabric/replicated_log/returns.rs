//! Replicas that come back with something else than before, or do not answer when they are back.

use std::pin::pin;
use std::task::{Context, Waker};

use rpma_async::block_on;

use crate::replicated_log::cuts::{Told, locked};
use crate::replicated_log::network::is_unknown;
use crate::replicated_log::prelude::*;
use crate::replicated_log::sweep::in_time;
use rpma_log::format::{Header, TAIL, Tail};

/// Promise: a replica that has truncated more than the others keeps its records while it gets the
/// others again: any two replicas have each acknowledged record, whenever the power fails.
#[test]
fn a_replica_with_a_later_head_keeps_its_records() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut world = World::new(&fabric, READING);
    let entered = world.client.enter();
    let mut told = Told::default();
    let log = world.open(1)?;
    let mut append = |record: &[u8]| -> Result<u64> {
        let at = log.append(record)?;
        told.acknowledged(at, record.to_vec());
        Ok(at)
    };
    append(b"one")?;
    world.until_all_have(&log);
    world.stop(1);
    let two = append(b"two")?;
    append(b"three")?;
    world.until_they_have(&[0, 2], log.bounds().1);
    world.hosts[0].freeze();
    let truncated = log.truncate(two);
    is_unknown(&truncated.map(|()| two));
    told.head = two;
    drop(log);
    world.hosts[0].thaw();
    world.start(1)?;
    let heads = [0, 1, 2].map(|n| world.found(n).map(|found| found.head));
    assert!(
        matches!(heads, [Ok(0), Ok(0), Ok(head)] if head == two),
        "{heads:?}"
    );
    // The new writer reads the first two, and the third is up to date before the second one.
    world.link(1).delay(Duration::from_millis(50));
    world.link(2).delay(Duration::from_millis(60));
    let told = Mutex::new(told);
    let check = |cut: &Cut<'_>| locked(&told).check_cut(cut, &world.pmems, 20);
    let found = fabric.find_loss(check, || {
        let log = world.open(2)?;
        world.until_all_have(&log);
        log.close()
    });
    found.unwrap_or_else(|loss| panic!("{loss}"))?;
    drop(entered);
    world.stop_all();
    Ok(())
}

/// Promise: a replica that comes back with another log is away with the reason, and the log goes on
/// without it: also if that log has other numbers, or a writer with a higher epoch.
#[test]
fn a_replica_with_another_log_ends_none() -> Result {
    type Change = fn(&mut Header, &mut Tail);
    let others: [Change; 3] = [
        |header, _| header.log += 1,
        |header, _| (header.log, header.servers) = (7, 5),
        |header, tail| (header.log, tail.epoch) = (7, 9),
    ];
    for (n, change) in others.into_iter().enumerate() {
        let mut world = World::seeded(1);
        let client = world.client.clone();
        let _entered = client.enter();
        let log = world.open(1)?;
        log.append(b"one")?;
        world.until_all_have(&log);
        world.stop(2);
        let mut bytes = world.bytes(2);
        let memory = &mut bytes[place()];
        let mut header = Header::decode(memory)?.expect("a log");
        let mut tail = world.found(2)?.tail;
        change(&mut header, &mut tail);
        memory[..Header::LEN].copy_from_slice(&header.encode());
        memory[TAIL as usize..][..8].copy_from_slice(&tail.word().to_le_bytes());
        world.refill(2, "other", &bytes);
        world.start(2)?;
        sleep(SILENCE);
        let appended = log.append(b"two");
        appended.unwrap_or_else(|error| panic!("case {n}: {error}"));
        let state = log.state();
        let why = state.servers[2].away.as_deref().unwrap_or_default();
        assert!(why.contains("it has another log"), "case {n}: {why}");
        let is_same = world.bytes(2)[place()] == bytes[place()];
        assert!(is_same, "case {n}: it was overwritten");
    }
    Ok(())
}

/// Promise: a replica that comes back, and is slow, makes no append fail: the others wait for a part
/// of their limit at most while it gets the last records.
#[test]
fn a_slow_replica_that_comes_back_fails_no_append() -> Result {
    const SHORT: Duration = Duration::from_secs(4);
    for delay in [100, 400, 1500, 3500].map(Duration::from_millis) {
        let mut world = World::seeded(1);
        let client = world.client.clone();
        let _entered = client.enter();
        let mut cfg = world.cfg(1);
        cfg.set_limit(SHORT);
        let log = world.open_with(&cfg)?;
        log.append(b"one")?;
        world.until_all_have(&log);
        world.stop(2);
        log.append(b"two")?;
        world.link(2).delay(delay);
        world.start(2)?;
        for n in 0..100_u8 {
            let appended = in_time("append", SHORT, || log.append(&[n]));
            let at = appended.unwrap_or_else(|error| panic!("{delay:?}: {error}"));
            log.truncate(at)?;
            sleep(Duration::from_millis(200));
        }
        world.link(2).delay(Duration::ZERO);
        world.until_all_have(&log);
    }
    Ok(())
}

/// Promise: commits that can have too few copies, because their servers are gone, make place for later
/// ones. When the servers are back, the log goes on, and has the record that was in flight.
#[test]
fn commits_without_servers_make_place() -> Result {
    let mut world = World::seeded(1);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    let mut ends = Vec::new();
    for byte in 0..6 {
        log.append(&[byte; 10])?;
        ends.push(log.bounds().1);
    }
    world.until_all_have(&log);
    world.hosts.iter().for_each(Host::freeze);
    let before = log.counters().commits;
    // As many commits in flight as there may be: of a record, and of truncations.
    let mut cx = Context::from_waker(Waker::noop());
    let mut append = pin!((*log).append(b"in flight"));
    assert!(append.as_mut().poll(&mut cx).is_pending());
    for to in &ends[..5] {
        let mut truncate = pin!((*log).truncate(*to));
        assert!(truncate.as_mut().poll(&mut cx).is_pending());
        sleep(Duration::from_millis(1));
    }
    assert_eq!(log.counters().commits - before, 4);
    world.cut_all();
    for n in 0..3 {
        world.restart(n)?;
    }
    let at = block_on(append, LIMIT).expect("in time")?;
    assert_eq!(at, ends[5]);
    assert_eq!(log.append(b"later")?, at + 64);
    Ok(())
}
