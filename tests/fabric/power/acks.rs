//! A writer with several appends in flight. Their acknowledgements are lost from one on: the first
//! operation that failed need not be the first that was not executed.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::common::prelude::*;
use crate::power::again::{read_tail, ways};
use crate::power::protocols::{other_record, place, record};
use crate::power::world::{LIMIT, Way, World, fabric};

/// How many appends are in flight.
const DEPTH: u64 = 2;

/// From where the writer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoesOn {
    /// From the tail that it reads back, and writes again.
    AfterTheTail,
    /// From the first append that failed, which it takes for one that was not executed.
    AtTheFirstFailure,
}

fn post_append(world: &World, number: u64, bytes: &[u8]) -> Result<Posted> {
    world.write(place(number), bytes)?;
    world.post_flush(place(number), bytes.len(), FlushType::Persistent)?;
    world.atomic_write(0, &(number + 1).to_le_bytes())?;
    let (tail, _) = world.places(0, 8)?;
    let flags = Flags::COMPLETION_ALWAYS;
    Ok(world
        .conn
        .flush(tail, FlushType::Persistent, flags, number)?)
}

fn write_log(
    link: &Link,
    first: World,
    way: Way,
    nth: u32,
    goes_on: GoesOn,
    told: &AtomicU64,
) -> Result<()> {
    let (client, server, pmem) = (
        first.client.clone(),
        first.server.clone(),
        first.pmem.clone(),
    );
    link.lose_acknowledgements(nth);
    let posted = (0..DEPTH).map(|number| post_append(&first, number, &record(number)));
    let posted: Vec<_> = posted.collect::<Result<_>>()?;
    let mut failed = DEPTH;
    for (number, posted) in (0..).zip(posted) {
        match first.conn.wait_for(posted, LIMIT, |_| {}) {
            Ok(_) => told.store(number + 1, Ordering::Relaxed),
            Err(_) => failed = failed.min(number),
        }
    }
    drop(first);
    let second = World::connect(client, server, pmem, way)?;
    let next = match goes_on {
        GoesOn::AtTheFirstFailure => failed,
        GoesOn::AfterTheTail => {
            let tail = read_tail(&second)?;
            second.atomic_write(0, &tail.to_le_bytes())?;
            second.flush(0, 8)?;
            tail
        }
    };
    told.store(next, Ordering::Relaxed);
    for number in next..DEPTH + 1 {
        let posted = post_append(&second, number, &other_record(number))?;
        second.wait(posted)?;
        told.store(number + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// The acknowledged records are there, and each record is a whole one.
fn check(image: &[u8], told: u64) {
    let tail = u64::from_le_bytes(image[..8].try_into().expect("8 bytes"));
    assert!(
        tail >= told,
        "{told} were acknowledged, and {tail} are there"
    );
    for number in 0..tail {
        let whole = record(number);
        let bytes = &image[place(number)..][..whole.len()];
        assert!(
            bytes == whole || bytes == other_record(number),
            "record {number} is torn"
        );
    }
}

fn run(profile: &Profile, way: Way, nth: u32, goes_on: GoesOn) -> Result<(), Loss> {
    let fabric = fabric(profile);
    let world = World::new(&fabric, way).expect("a connection");
    let (pmem, told) = (world.pmem.clone(), AtomicU64::new(0));
    let link = fabric.between(&world.client, &world.server);
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&pmem) {
            check(image.bytes(), told.load(Ordering::Relaxed));
        }
    };
    let write_log = || write_log(&link, world, way, nth, goes_on, &told);
    fabric.find_loss(check, || write_log().expect("nothing else fails"))
}

/// A writer that reads the tail, and writes it again, loses no record, whichever acknowledgement is
/// the first that is lost.
#[test]
fn a_writer_that_reads_the_tail_survives() {
    for (profile, way) in ways() {
        for nth in 1..=4 * DEPTH as u32 {
            if let Err(loss) = run(&profile, way, nth, GoesOn::AfterTheTail) {
                panic!("{}, {way:?}, {nth}: {loss}", profile.name());
            }
        }
    }
}

/// A writer that takes the first operation that failed for the first that was not executed writes
/// over records that are there.
#[test]
fn the_first_failure_is_not_the_first_that_was_not_executed() {
    for (profile, way) in ways() {
        let is_lost = |nth: &u32| run(&profile, way, *nth, GoesOn::AtTheFirstFailure).is_err();
        let lost: Vec<u32> = (1..=4 * DEPTH as u32).filter(is_lost).collect();
        // An adapter's fence keeps the tail back until the flush by reading before it is
        // acknowledged.
        let first = match profile.is_adapter() && way.by_reading {
            true => 3,
            false => 1,
        };
        assert_eq!(lost.first(), Some(&first), "{}, {way:?}", profile.name());
    }
}
