//! A server that takes a message for the word that the data before it is durable.

use anyhow::Result;

use crate::common::prelude::*;
use crate::power::protocols::{check_log, place, record};
use crate::power::world::{ALWAYS, Ran, Way, World, arrives};

/// How the client makes sure that the flush comes before its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It polls the flush.
    Polled,
    /// It posts the message right after the flush.
    Posted,
    /// As that, with a fence.
    Fenced,
}

fn run(profile: &Profile, by_reading: bool, order: Order, seed: u64) -> Result<(), Loss> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    run_on(&fabric, by_reading, order)?.expect("nothing fails");
    Ok(())
}

/// Appends two records. The server answers its user when it gets the message of each.
pub(crate) fn run_on(fabric: &Fabric, by_reading: bool, order: Order) -> Ran {
    let platform = if by_reading {
        Platform::AdrDdioOff
    } else {
        Platform::AdrDdioOn
    };
    let way = Way::on(platform).by_reading(by_reading);
    let world = World::new(fabric, way).expect("a connection");
    let append = |number: u64, tell: &dyn Fn(u64)| -> Result<()> {
        let (bytes, tail) = (record(number), (number + 1).to_le_bytes());
        world.write(place(number), bytes)?;
        world.flush(place(number), bytes.len())?;
        world.write(0, &tail)?;
        match order {
            Order::Polled => world.flush(0, 8)?,
            _ => world.post_flush(0, 8, FlushType::Persistent)?,
        }
        world.notify(match order {
            Order::Fenced => ALWAYS | Flags::FENCE,
            _ => ALWAYS,
        })?;
        arrives(&world.far, 4)?;
        tell(number + 1);
        world.expect_request()
    };
    world.under_every_cut(check_log, |tell| {
        (0..2).try_for_each(|number| append(number, tell))
    })
}

/// In how many of 10 seeds something is lost.
fn losses(profile: &Profile, by_reading: bool, order: Order) -> usize {
    let lost = (1..=10).filter(|seed| run(profile, by_reading, order, *seed).is_err());
    lost.count()
}

/// Whether this device makes data durable in this way.
fn is_possible(profile: &Profile, by_reading: bool) -> bool {
    if by_reading {
        profile.is_adapter()
    } else {
        profile.flushes_natively()
    }
}

/// A message after a flush that was polled is sent when the data is durable.
#[test]
fn a_message_after_a_polled_flush_is_its_word() {
    for profile in Profile::EVERY {
        for by_reading in [false, true] {
            if is_possible(&profile, by_reading) {
                let lost = losses(&profile, by_reading, Order::Polled);
                assert_eq!(lost, 0, "{}, by reading: {by_reading}", profile.name());
            }
        }
    }
}

/// A message after a native flush that was not polled may be there first, on an adapter, also with
/// a fence.
#[test]
fn a_message_after_an_unpolled_flush_is_no_word() {
    for order in [Order::Posted, Order::Fenced] {
        let lost = losses(&Profile::STRICT, false, order);
        assert!(lost > 0, "{order:?}");
        // soft-RoCE executes in order in all observations.
        if order == Order::Posted {
            assert_eq!(losses(&Profile::RXE_6_12, false, order), 0);
        }
        // Where visible data is durable, a message is a flush itself: it makes the earlier writes
        // visible.
        assert_eq!(losses(&Profile::STRICT, true, order), 0, "{order:?}");
    }
}
