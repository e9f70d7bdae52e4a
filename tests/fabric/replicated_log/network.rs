//! One-way partitions, a frozen host that thaws, writers that take over from each other, a slow
//! replica, and one that reconnects again and again.

use crate::replicated_log::cuts::{Told, locked};
use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records;
use crate::replicated_log::sweep::in_time;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn is_unknown(appended: &Result<u64, LogError>) {
    let is_unknown = matches!(appended, Err(LogError::Unknown { .. }));
    assert!(is_unknown, "the outcome is known: {appended:?}");
}

/// The ways from or to these replicas.
fn links(world: &World, replicas: &[usize], to_replica: bool) -> Vec<Link> {
    let link = |n: &usize| {
        if to_replica {
            world.link(*n)
        } else {
            world.fabric.between(&world.hosts[*n], &world.client)
        }
    };
    replicas.iter().map(link).collect()
}

/// Promise: while one direction between the writer and one replica is blocked, each append returns
/// `Ok` within its limit. While it is blocked for two replicas, an append returns `Unknown` within
/// its limit. After that all replicas get all records, and nothing is there twice.
#[test]
fn a_direction_is_blocked() -> Result {
    for to_replica in [true, false] {
        for blocked in [&[0][..], &[2], &[0, 1], &[1, 2]] {
            let world = World::seeded(1);
            let log = world.open(1)?;
            let _entered = world.client.enter();
            log.append(b"one")?;
            world.until_all_have(&log);
            let links = links(&world, blocked, to_replica);
            links.iter().for_each(Link::block);
            let appended = in_time("append", LIMIT, || log.append(b"two"));
            match blocked.len() {
                1 => drop(appended?),
                _ => is_unknown(&appended),
            }
            links.iter().for_each(Link::heal);
            log.append(b"three")?;
            world.until_all_have(&log);
            assert_eq!(records(&log), [&b"one"[..], b"two", b"three"]);
            log.close()?;
        }
    }
    Ok(())
}

/// Promise: writes of an old writer that come late, because it or a replica was frozen, change
/// nothing that the new writer has.
#[test]
fn late_writes_change_nothing() -> Result {
    for seed in 1..=10 {
        for frozen in 0..4 {
            let world = World::seeded(seed);
            let first = world.open(1)?;
            first.append(b"one")?;
            world.until_all_have(&first);
            let host = world.hosts.get(frozen).unwrap_or(&world.client);
            thread::scope(|scope| -> Result {
                let entered = world.client.enter();
                // Its writes are on their way to the frozen host, or have not left it.
                let appends = scope.spawn(|| [&[9; 300][..], &[8; 200]].map(|it| first.append(it)));
                drop(entered);
                host.freeze();
                let next = world.fabric.host("next");
                let second = World::open_on(&next, &world.cfg(2))?;
                let _entered = next.enter();
                second.append(b"two")?;
                second.append(&[3; 150])?;
                let bounds = second.bounds();
                host.thaw();
                sleep(SILENCE);
                let late = appends.join().expect("no panic");
                world.until_all_have(&second);
                for n in 0..3 {
                    let found = world.found(n)?;
                    assert_eq!((found.head, found.tail.end), bounds);
                    assert_eq!(found.tail.epoch, 2);
                    let has: Vec<_> = found.records().map(|(_, record)| record.to_vec()).collect();
                    assert_eq!(has, records(&second), "replica {n}");
                }
                let all = records(&second);
                for (record, at) in [vec![9; 300], vec![8; 200]].iter().zip(late) {
                    assert!(at.is_err() || all.contains(record), "{at:?} is lost");
                }
                Ok(())
            })?;
            let after = first.append(b"after").expect_err("it was cut off");
            assert!(!matches!(after, LogError::Full { .. }), "{after}");
        }
    }
    Ok(())
}

/// What several writers were told.
#[derive(Default)]
struct All {
    told: Told,
    epoch: u64,
    ends: u32,
}

impl All {
    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    fn appended(&mut self, at: u64, record: Vec<u8>) {
        self.told.acknowledged(at, record);
        self.ends += 1;
    }

    fn truncated(&mut self, at: u64) {
        self.told.head = self.told.head.max(at);
    }
}

/// A writer that takes over, appends and truncates, again and again.
fn writes(world: &World, host: &Host, all: &Mutex<All>, name: u8) {
    for round in 0..2_u8 {
        let epoch = locked(all).next_epoch();
        let mut cfg = world.cfg(epoch);
        cfg.set_create(false);
        let Ok(log) = World::open_on(host, &cfg) else {
            continue;
        };
        let _entered = host.enter();
        for n in 0..4_u8 {
            let record = vec![64 * name + 8 * round + n + 1; 40 + 50 * usize::from(n % 2)];
            let Ok(at) = log.append(&record) else {
                break;
            };
            locked(all).appended(at, record);
            if n % 2 == 1 {
                locked(all).truncated(at);
                // Another writer may have taken over.
                let _ = log.truncate(at);
            }
            sleep(Duration::from_millis(u64::from(name) + 1));
        }
    }
}

/// Promise: of writers that take over from each other while replicas lose their power, never two
/// are told that a record is at one position, and nothing that one of them was told is lost.
#[test]
fn writers_take_over_from_each_other() -> Result {
    let mut ends = 0;
    for seed in share("seeds", 5, 1..=100) {
        let mut world = World::seeded(seed);
        let log = world.open(1)?;
        world.until_all_have(&log);
        log.close()?;
        let all = Mutex::new(All::default());
        locked(&all).epoch = 1;
        let writers = ["one", "other"].map(|name| world.fabric.host(name));
        let cut = world.hosts[seed as usize % 3].clone();
        let step = world.fabric.steps() + 20 + seed * 37 % 1500;
        let _cut = world.fabric.at_step(step, move || cut.power_cut());
        thread::scope(|scope| {
            for (name, host) in writers.iter().enumerate() {
                let _entered = host.enter();
                let (world, all) = (&world, &all);
                scope.spawn(move || writes(world, host, all, name as u8));
            }
        });
        (0..3).try_for_each(|n| world.restart(n))?;
        let all = locked(&all);
        let log = world.open(all.epoch + 1)?;
        all.told.check_read(&log, all.told.head);
        log.append(b"last")?;
        world.until_all_have(&log);
        drop(log);
        world.cut_all();
        all.told.check_memories(&world.pmems);
        world.stop_all();
        ends += all.ends;
    }
    // Some writers are ended before their first record.
    assert!(ends > 150, "{ends} records");
    Ok(())
}

/// Appends into a log that is full most of the time, while another thread truncates it. One replica
/// is slow.
fn uses_room_again(seed: u64, way: Way) -> Result<(), Loss> {
    let fabric = Rig::new().seed(seed).fabric();
    let mut world = World::new(&fabric, way);
    let told = Mutex::new(Told::default());
    let check = |cut: &Cut<'_>| locked(&told).check_cut(cut, &world.pmems, 4);
    let log = match world.open(1) {
        Ok(log) => log,
        // This platform keeps nothing of what is written in this way.
        Err(LogError::TooFew(_)) => return Ok(()),
        Err(error) => panic!("{error}"),
    };
    world.link(2).delay(Duration::from_millis(5));
    fabric.find_loss(check, || {
        let _entered = world.client.enter();
        thread::scope(|scope| {
            let appends = scope.spawn(|| {
                for n in 0..30_u8 {
                    let record = vec![n + 1; 150];
                    let at = log.append(&record).expect("appended");
                    locked(&told).acknowledged(at, record);
                }
            });
            while !appends.is_finished() {
                let last = locked(&told).records.keys().next_back().copied();
                if let Some(last) = last {
                    locked(&told).head = last;
                    log.truncate(last).expect("truncated");
                }
                sleep(Duration::from_millis(3));
            }
            appends.join().expect("no panic");
        });
    })?;
    drop(log);
    world.stop_all();
    Ok(())
}

/// The ways in which records can be durable.
pub(crate) fn ways() -> [Way; 3] {
    [
        (Method::Reading, Platform::Eadr),
        (Method::Native, Platform::AdrDdioOff),
        (Method::Server, Platform::AdrDdioOn),
    ]
    .map(|(method, platform)| Way { method, platform })
}

/// Promise: room of truncated records is used again only when no replica shows them any more, also
/// if one is slow.
#[test]
fn a_slow_replica_has_no_record_overwritten() {
    for way in ways() {
        uses_room_again(1, way).unwrap_or_else(|loss| panic!("{way:?}: {loss}"));
    }
}

/// Promise: a replica that is far behind makes no append and no truncation fail: they wait for it,
/// within their limits.
#[test]
fn a_slow_replica_fails_no_call() -> Result {
    let world = World::seeded(1);
    let log = world.open(1)?;
    let _entered = world.client.enter();
    log.append(b"one")?;
    world.until_all_have(&log);
    let link = world.link(2);
    link.delay(Duration::from_millis(500));
    for round in 0..10_u8 {
        let at = log.append(&[round; 20])?;
        // Nothing forbids to do it twice.
        for _ in 0..3 {
            in_time("truncate", LIMIT, || log.truncate(at))?;
        }
    }
    link.delay(Duration::ZERO);
    world.until_all_have(&log);
    Ok(())
}

/// Promise: a replica that is slower than the limit of the calls makes none of them fail. It is set
/// aside, whether it holds the memory of commits or the room of truncated records.
#[test]
fn a_replica_slower_than_the_limit_fails_no_call() -> Result {
    const SHORT: Duration = Duration::from_secs(4);
    for (len, is_truncated) in [(20, true), (400, true), (10, false)] {
        let world = World::seeded(1);
        let _entered = world.client.enter();
        let mut cfg = world.cfg(1);
        cfg.set_limit(SHORT);
        let log = world.open_with(&cfg)?;
        world.until_all_have(&log);
        let link = world.link(2);
        // Less than the silence after which it counts as gone.
        link.delay(Duration::from_secs(9));
        let rounds = if is_truncated { 40 } else { 14 };
        for round in 0..rounds {
            let appended = in_time("append", SHORT, || log.append(&vec![round; len]));
            let at = appended.unwrap_or_else(|error| panic!("{len}, {round}: {error}"));
            if is_truncated {
                in_time("truncate", SHORT, || log.truncate(at))?;
            }
        }
        link.delay(Duration::ZERO);
        world.until_all_have(&log);
    }
    Ok(())
}

/// Promise: a replica that goes and comes back 100 times has all records in the end, and neither
/// the writer nor a replica keeps anything of the connections before.
#[test]
fn a_replica_reconnects_a_hundred_times() -> Result {
    let mut world = World::seeded(1);
    let log = world.open(1)?;
    let mut before = None;
    for round in 0..100_u8 {
        let entered = world.client.enter();
        let at = log.append(&[round; 50])?;
        log.truncate(at)?;
        world.until_all_have(&log);
        let objects = world.fabric.objects();
        let before = before.get_or_insert_with(|| objects.clone());
        assert_eq!(*before, objects, "{round}");
        drop(entered);
        world.stop(2);
        log.append(b"without it")?;
        world.start(2)?;
        sleep(SECOND);
    }
    world.until_all_have(&log);
    log.close()?;
    Ok(())
}
