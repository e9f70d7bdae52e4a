//! A writer with several appends in flight. Their acknowledgements are lost from one on: the first
//! operation that failed need not be the first that was not executed.

use anyhow::Result;

use crate::common::prelude::*;
use crate::power::again::{post_append, ways, write_again};
use crate::power::protocols::{assert_log, other_record, place, record};
use crate::power::world::{Ran, Way, World, fabric, word};

/// How many appends are in flight.
const DEPTH: u64 = 2;

/// From where the writer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoesOn {
    /// From the tail that it reads back, and writes again.
    AfterTheTail,
    /// From the first append that failed, which it takes for one that was not executed.
    AtTheFirstFailure,
}

fn write_log(first: World, nth: u32, goes_on: GoesOn, tell: &dyn Fn(u64)) -> Result<()> {
    let hosts = first.hosts.clone();
    hosts.link().lose_acknowledgements(nth);
    let posted = (0..DEPTH).map(|number| post_append(&first, number, record(number)));
    let posted: Vec<_> = posted.collect::<Result<_>>()?;
    let mut failed = DEPTH;
    for (number, posted) in (0..).zip(posted) {
        match first.wait(posted) {
            Ok(()) => tell(number + 1),
            Err(_) => failed = failed.min(number),
        }
    }
    drop(first);
    let second = hosts.connect()?;
    let next = match goes_on {
        GoesOn::AtTheFirstFailure => failed,
        GoesOn::AfterTheTail => {
            let tail = second.read_word()?;
            write_again(&second, tail)?;
            tail
        }
    };
    tell(next);
    for number in next..DEPTH + 1 {
        second.wait(post_append(&second, number, &other_record(number))?)?;
        tell(number + 1);
    }
    Ok(())
}

/// The acknowledged records are there, and each record is a whole one.
fn check(image: &[u8], told: u64) {
    assert_log(word(image), told, |number| {
        let bytes = &image[place(number)..];
        bytes.starts_with(record(number)) || bytes.starts_with(&other_record(number))
    });
}

fn run(profile: &Profile, way: Way, nth: u32, goes_on: GoesOn) -> Result<(), Loss> {
    run_on(&fabric(profile), way, nth, goes_on)?.expect("nothing else fails");
    Ok(())
}

pub(crate) fn run_on(fabric: &Fabric, way: Way, nth: u32, goes_on: GoesOn) -> Ran {
    let world = World::new(fabric, way).expect("a connection");
    let hosts = world.hosts.clone();
    hosts.under_every_cut(check, |tell| write_log(world, nth, goes_on, tell))
}

/// A writer that reads the tail, and writes it again, loses no record, whichever acknowledgement is
/// the first that is lost.
#[test]
fn a_writer_that_reads_the_tail_survives() {
    for (profile, way) in ways() {
        for nth in 1..=4 * DEPTH as u32 {
            let found = run(&profile, way, nth, GoesOn::AfterTheTail);
            found.unwrap_or_else(|loss| panic!("{}, {way:?}, {nth}: {loss}", profile.name()));
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
        let first = if profile.is_adapter() && way.by_reading {
            3
        } else {
            1
        };
        assert_eq!(lost.first(), Some(&first), "{}, {way:?}", profile.name());
    }
}
