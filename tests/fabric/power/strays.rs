//! Requests that are on their way when their writer goes: they may land after it has connected
//! again, for as long as the server keeps the old connection (docs/reconnecting.md).

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::power::again::{read_tail, ways};
use crate::power::protocols::{other_record, place, record};
use crate::power::world::{Way, World};

/// How long requests travel.
const DELAY: Duration = Duration::from_millis(20);

/// When the server drops the old connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drops {
    BeforeItAccepts,
    Later,
}

fn append(world: &World, number: u64, bytes: &[u8]) -> Result<()> {
    world.write(place(number), bytes)?;
    world.flush(place(number), bytes.len())?;
    world.write(0, &(number + 1).to_le_bytes())?;
    world.flush(0, 8)
}

/// Appends a record, and loses the connection in the middle of the next one; connects again, and
/// goes on.
fn write_log(link: &Link, first: World, way: Way, drops: Drops, told: &AtomicU64) -> Result<()> {
    append(&first, 0, &record(0))?;
    told.store(1, Ordering::Relaxed);
    link.delay(DELAY);
    first.write(place(1), &record(1))?;
    let World {
        client,
        server,
        pmem,
        conn,
        far,
        target,
        other: others,
        ..
    } = first;
    drop(conn);
    link.delay(Duration::ZERO);
    let old = match drops {
        Drops::BeforeItAccepts => {
            drop((far, others));
            None
        }
        Drops::Later => Some((far, others)),
    };
    let second = World::connect(client, server, pmem, way)?;
    let tail = read_tail(&second)?;
    for number in tail..3 {
        append(&second, number, &other_record(number))?;
        told.store(number + 1, Ordering::Relaxed);
        sleep(DELAY);
    }
    drop((old, target));
    Ok(())
}

/// All acknowledged records are there, with their contents.
fn check(image: &[u8], told: u64) {
    for number in 0..told {
        let whole = match number {
            0 => record(0),
            _ => other_record(number),
        };
        let bytes = &image[place(number)..][..whole.len()];
        assert!(
            bytes == whole,
            "record {number} is not the one that was acknowledged"
        );
    }
}

fn run(profile: &Profile, way: Way, drops: Drops, seed: u64) -> Result<(), Loss> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    let world = World::new(&fabric, way).expect("a connection");
    let (link, pmem) = (
        fabric.between(&world.client, &world.server),
        world.pmem.clone(),
    );
    let told = AtomicU64::new(0);
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&pmem) {
            check(image.bytes(), told.load(Ordering::Relaxed));
        }
    };
    let write_log = || write_log(&link, world, way, drops, &told);
    fabric.find_loss(check, || write_log().expect("nothing else fails"))
}

/// A server that drops the old connection before it accepts the next one loses no record.
#[test]
fn an_old_connection_that_is_dropped_first() {
    for (profile, way) in ways() {
        for seed in 1..=10 {
            if let Err(loss) = run(&profile, way, Drops::BeforeItAccepts, seed) {
                panic!("{}, {way:?}, {seed}: {loss}", profile.name());
            }
        }
    }
}

/// A server that keeps it longer lets an old record overwrite a newer one, in some of the runs.
#[test]
fn an_old_connection_that_is_dropped_later() {
    for (profile, way) in ways() {
        let is_lost = |seed: &u64| run(&profile, way, Drops::Later, *seed).is_err();
        let lost = (1..=10).filter(is_lost).count();
        assert!(lost > 0, "{}, {way:?}", profile.name());
    }
}

/// A write with a fence has not left the device before the read that it waits for is answered. So
/// no end of a connection shows a pointer to data that the flush by reading did not make durable.
#[test]
fn a_pointer_after_a_read_is_never_left_in_flight() -> Result<()> {
    let way = Way {
        platform: Platform::AdrDdioOff,
        by_reading: true,
        promise: None,
    };
    for profile in [Profile::STRICT, Profile::ADAPTER] {
        for seed in 1..=30 {
            let fabric = Rig::of(&profile).seed(seed).fabric();
            let World {
                client,
                server,
                pmem,
                conn,
                remote,
                source,
                far,
                target,
                ..
            } = World::new(&fabric, way)?;
            fabric.between(&client, &server).delay(DELAY);
            let check = |cut: &Cut<'_>| {
                for image in cut.images(&pmem) {
                    let bytes = image.bytes();
                    let is_whole = bytes[place(0)..].starts_with(&record(0));
                    assert!(bytes[..8] == [0; 8] || is_whole, "the record is torn");
                }
            };
            let commit_and_go = || {
                let (at, bytes) = (place(0), record(0));
                source.write_at(at, &bytes).expect("inside");
                let part = remote.slice(at as u64..(at + bytes.len()) as u64);
                let part = part.expect("inside");
                let bytes = source.slice(at..at + bytes.len()).expect("inside");
                let tail = (remote.slice(..8).expect("inside"), 1_u64.to_le_bytes());
                let kind = FlushType::Persistent;
                conn.commit(&[(part, bytes)], Some(tail), kind, 0)
                    .expect("posted");
                drop(conn);
                sleep(2 * DELAY);
            };
            if let Err(loss) = fabric.find_loss(check, commit_and_go) {
                panic!("{}, seed {seed}: {loss}", profile.name());
            }
            drop((far, target));
        }
    }
    Ok(())
}
