//! A writer that connects again after its connection failed, reads the tail and goes on
//! (docs/failures.md): the records that it may then acknowledge.

use anyhow::Result;

use crate::common::prelude::*;
use crate::power::protocols::{check_log, place, record};
use crate::power::world::{self, Ran, Way, World, fabric};

/// The writer's treatment of a tail that it has read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
    /// It writes it once more, and flushes it.
    WriteAgain,
    /// It flushes it, on the new connection.
    Flush,
    /// It takes it for durable.
    Trust,
}

/// The fault of one of the four requests of an append.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accident {
    Request(u32),
    Acknowledgement(u32),
    Rest,
}

fn arm(link: &Link, accident: Accident) {
    match accident {
        Accident::Request(nth) => link.lose_request(nth),
        Accident::Acknowledgement(nth) => link.lose_acknowledgement(nth),
        Accident::Rest => link.place_only(1, 40),
    }
}

/// Appends a record by four requests. The last one completes.
pub(crate) fn post_append(world: &World, number: u64, bytes: &[u8]) -> Result<Posted> {
    world.write(place(number), bytes)?;
    world.post_flush(place(number), bytes.len(), FlushType::Persistent)?;
    world.atomic_write(0, &(number + 1).to_le_bytes())?;
    world.begin_flush(0, 8)
}

fn append(world: &World, number: u64) -> Result<()> {
    world.wait(post_append(world, number, record(number))?)
}

/// Writes the tail once more that was read back, and makes it durable.
pub(crate) fn write_again(world: &World, tail: u64) -> Result<()> {
    world.atomic_write(0, &tail.to_le_bytes())?;
    world.flush(0, 8)
}

/// Appends three records, with an accident in the second.
fn write_log(first: World, recipe: Recipe, accident: Accident, tell: &dyn Fn(u64)) -> Result<()> {
    append(&first, 0)?;
    tell(1);
    arm(&first.link(), accident);
    append(&first, 1).expect_err("an accident");
    let hosts = first.hosts.clone();
    // The old connection goes before the next one is accepted.
    drop(first);
    let second = hosts.connect()?;
    let tail = second.read_word()?;
    match recipe {
        Recipe::WriteAgain => write_again(&second, tail)?,
        Recipe::Flush => second.flush(0, 8)?,
        Recipe::Trust => {}
    }
    tell(tail);
    for number in tail..3 {
        append(&second, number)?;
        tell(number + 1);
    }
    Ok(())
}

fn run(profile: &Profile, way: Way, recipe: Recipe, accident: Accident) -> Result<(), Loss> {
    run_on(&fabric(profile), way, recipe, accident)?.expect("nothing else fails");
    Ok(())
}

pub(crate) fn run_on(fabric: &Fabric, way: Way, recipe: Recipe, accident: Accident) -> Ran {
    let world = World::new(fabric, way).expect("a connection");
    let hosts = world.hosts.clone();
    hosts.under_every_cut(check_log, |tell| write_log(world, recipe, accident, tell))
}

/// Each device and platform on which a flush makes data durable, native and by reading.
pub(crate) fn ways() -> impl Iterator<Item = (Profile, Way)> {
    let flushes_natively = [Profile::RXE_6_12, Profile::STRICT];
    let ways = world::ways().into_iter();
    ways.filter(move |(profile, _)| flushes_natively.contains(profile))
}

fn accidents() -> impl Iterator<Item = Accident> {
    let each = |nth| [Accident::Request(nth), Accident::Acknowledgement(nth)];
    (1..=4).flat_map(each).chain([Accident::Rest])
}

/// In how many of its runs a recipe loses something, by device, platform and way of flushing.
fn losses(recipe: Recipe) -> Vec<(Profile, Way, usize)> {
    let mut losses = Vec::new();
    for (profile, way) in ways() {
        let is_lost = |accident: &Accident| run(&profile, way, recipe, *accident).is_err();
        let lost = accidents().filter(is_lost).count();
        println!("{recipe:?}: {}, {way:?}: {lost} of 9", profile.name());
        losses.push((profile, way, lost));
    }
    losses
}

/// The rule of docs/failures.md: a tail that is read back is written again and flushed.
#[test]
fn a_tail_that_is_written_again_survives() {
    for (profile, way, lost) in losses(Recipe::WriteAgain) {
        assert_eq!(lost, 0, "{profile:?}, {way:?}");
    }
}

/// A flush on the new connection covers no write of the old one. It does no harm if visible data is
/// durable, and on soft-RoCE, which writes back all data that is there.
#[test]
fn a_tail_that_is_only_flushed_may_be_lost() {
    for (profile, way, lost) in losses(Recipe::Flush) {
        let covers = !profile.is_adapter() || way.platform != Platform::AdrDdioOn;
        assert_eq!(lost == 0, covers, "{profile:?}, {way:?}");
    }
}

/// A tail that can be read need not be durable.
#[test]
fn a_tail_that_is_only_read_may_be_lost() {
    for (profile, way, lost) in losses(Recipe::Trust) {
        let keeps = match way.platform {
            Platform::Eadr => true,
            // When the old connection is gone its writes are visible.
            Platform::AdrDdioOff => profile.is_adapter(),
            _ => false,
        };
        assert_eq!(lost == 0, keeps, "{profile:?}, {way:?}");
    }
}
