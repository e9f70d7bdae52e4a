//! Requests that are on their way when their writer goes: they may land after it has connected
//! again, for as long as the server keeps the old connection (docs/failures.md).

use anyhow::Result;
use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::power::again::ways;
use crate::power::protocols::{other_record, place, record};
use crate::power::world::{Ran, Way, World};

/// How long requests travel.
const DELAY: Duration = Duration::from_millis(20);

/// When the server drops the old connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drops {
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
fn write_log(first: World, drops: Drops, tell: &dyn Fn(u64)) -> Result<()> {
    append(&first, 0, record(0))?;
    tell(1);
    first.link().delay(DELAY);
    first.write(place(1), record(1))?;
    drop(first.conn);
    first.hosts.link().delay(Duration::ZERO);
    if drops == Drops::BeforeItAccepts {
        drop((first.far, first.other));
    }
    let second = first.hosts.connect()?;
    for number in second.read_word()?..3 {
        append(&second, number, &other_record(number))?;
        tell(number + 1);
        sleep(DELAY);
    }
    Ok(())
}

/// All acknowledged records are there, with their contents.
fn check(image: &[u8], told: u64) {
    for number in 0..told {
        let whole = match number {
            0 => *record(0),
            _ => other_record(number),
        };
        let is_there = image[place(number)..].starts_with(&whole);
        assert!(
            is_there,
            "record {number} is not the one that was acknowledged"
        );
    }
}

fn run(profile: &Profile, way: Way, drops: Drops, seed: u64) -> Result<(), Loss> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    run_on(&fabric, way, drops)?.expect("nothing else fails");
    Ok(())
}

pub(crate) fn run_on(fabric: &Fabric, way: Way, drops: Drops) -> Ran {
    let world = World::new(fabric, way).expect("a connection");
    let hosts = world.hosts.clone();
    hosts.under_every_cut(check, |tell| write_log(world, drops, tell))
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
    let way = Way::on(Platform::AdrDdioOff).by_reading(true);
    for profile in [Profile::STRICT, Profile::ADAPTER] {
        for seed in 1..=30 {
            let fabric = Rig::of(&profile).seed(seed).fabric();
            let world = World::new(&fabric, way)?;
            world.link().delay(DELAY);
            let (at, bytes) = (place(0), record(0));
            let end = at + bytes.len();
            world.source.write_at(at, bytes)?;
            let to = world.remote.slice(at as u64..end as u64)?;
            let part = (to, world.source.slice(at..end)?);
            let tail = (world.remote.slice(..8)?, 1_u64.to_le_bytes());
            let check = |image: &[u8], _| {
                let is_whole = image[at..].starts_with(bytes);
                assert!(image[..8] == [0; 8] || is_whole, "the record is torn");
            };
            let conn = world.conn;
            let found = world.hosts.under_every_cut(check, |_| {
                let posted = conn.commit(&[part], Some(tail), FlushType::Persistent, 0);
                posted.expect("posted");
                drop(conn);
                sleep(2 * DELAY);
            });
            found.unwrap_or_else(|loss| panic!("{}, seed {seed}: {loss}", profile.name()));
        }
    }
    Ok(())
}
