//! Every call of a client that commits fails once, by each method: of an awaited `Writer`, and of
//! `Replicas` on three servers. In each run another call of the client's host has no effect, or its
//! full effect, or a post leaves its last request out, and returns an error.
//!
//! Promises, beside those of `sweeping.rs`: acknowledged data is in the memory after a power cut.
//! No source is free while a device can use it: another task takes each block that is free, and
//! writes over it, and no server gets these bytes. After the error each call ends in time: it
//! works, or names the end. A set loses at most one replica by it.

use log::LevelFilter;
use rpma::commit::{self, Method};
use rpma::sim::Errno;
use rpma_async::{Pool, Writer};
use tokio::time::timeout;

use crate::awaited::hosts::{Far, fars, methods, spoil};
use crate::awaited::replicas::{self, add, new_set};
use crate::awaited::served::{block, commit};
use crate::awaited::support::{in_time, turns};
use crate::awaited::sweeping::calls_since;
use crate::awaited::world::{World, impatient, leaving};
use crate::common::failing_calls::{Calls, Fails, Run, every_call};
use crate::common::prelude::*;

/// The ring of a set, for four records.
const RING: usize = 448;
/// A limit of the program.
const SHORT: Duration = Duration::from_secs(5);

/// The findings of the program.
#[derive(Default)]
struct Found {
    /// The error of the first step that failed.
    error: Option<String>,
    /// The last commit that was acknowledged, for each server, and the last one.
    acknowledged: [u64; 3],
    last: u64,
}

impl Found {
    /// Notes the first error.
    fn note<T, E: ToString>(&mut self, result: Result<T, E>) -> Option<T> {
        let noted = result.map_err(|error| self.error.get_or_insert(error.to_string()).len());
        noted.ok()
    }
}

/// Commits, two at a time, while requests are on their way, and waits for them, for room and for
/// the end. It goes on after an error, for as long as it has sources.
async fn by_writer(world: &World, fars: &[Far], writer: commit::Writer, found: &mut Found) {
    let there = &fars[0].there;
    let Some(pool) = found.note(Pool::new(&world.peers[0], 100, 2)) else {
        return;
    };
    let Some(writer) = found.note(Writer::new(&world.reactors[0], writer)) else {
        return;
    };
    for _ in 0..3 {
        there.hold();
        let mut posted = None;
        for _ in 0..2 {
            let Ok(bytes) = timeout(SHORT, block(&pool, found.last + 1)).await else {
                break;
            };
            found.last += 1;
            posted = found.note(commit(&writer, bytes, found.last)).or(posted);
        }
        let last = found.last;
        let spoiling = spoil(&pool);
        turns(1).await;
        there.release();
        if let Some(ticket) = posted {
            let waited = in_time(writer.durable(ticket)).await;
            if found.note(waited).is_some() && ticket.number() == last {
                found.acknowledged[0] = last;
            }
        }
        found.note(in_time(writer.room()).await);
        // It goes on until the writer is dropped, if a source is not free before.
        let spoiled = timeout(SHORT, spoiling).await;
        let is_missing = spoiled.is_err() && found.error.is_none();
        assert!(!is_missing, "a source stays away");
    }
    found.note(in_time(writer.close(SHORT)).await);
    if found.error.is_none() {
        assert_eq!((found.last, found.acknowledged[0]), (6, 6));
    }
}

/// Commits on three servers, twice around the ring, and sets one aside.
async fn by_set(
    world: &World,
    fars: &[Far],
    writers: Vec<commit::Writer>,
    found: &mut Found,
) -> Result {
    let Some(set) = found.note(new_set(&world.reactors[0], RING)) else {
        return Ok(());
    };
    let added = writers
        .into_iter()
        .map(|writer| found.note(add(&set, writer)));
    let ids: Vec<_> = added.collect();
    for number in 1..=8 {
        if number % 4 == 1 {
            fars.iter().for_each(|far| far.there.hold());
        }
        let id = replicas::commit(&set, number, 2);
        if number % 4 == 0 {
            fars.iter().for_each(|far| far.there.release());
        }
        let id = id?;
        found.last = number;
        if number % 4 != 0 {
            continue;
        }
        let outcome = in_time(set.settle(id, 2, SHORT)).await?;
        assert!(outcome.copies() >= 2, "{outcome:?}");
        let outcome = in_time(set.settle(id, 3, SHORT)).await?;
        let durable = set.durable(outcome);
        for (n, id) in ids.iter().enumerate() {
            if id.is_some_and(|id| durable.contains(&id)) {
                found.acknowledged[n] = number;
            }
        }
        let room = in_time(set.room(RING, SHORT)).await;
        if let Err(Error::RingFull) = &room {
            // A post has failed, and the device may read its bytes.
            let holders = set.holders();
            let &[holder] = &holders[..] else {
                panic!("{holders:?}");
            };
            in_time(set.set_aside(holder, SHORT)).await?;
            in_time(set.room(RING, SHORT)).await?;
        }
        found.note(room);
    }
    if let Some(&Some(last)) = ids.last() {
        found.note(in_time(set.set_aside(last, SHORT)).await);
    }
    if found.error.is_none() {
        assert!(set.able() >= 1);
    }
    Ok(())
}

/// A run with so many servers, and the calls of the program. `None` if no call has failed.
fn run(method: Method, servers: usize, fails: Option<Fails>) -> Option<(Run, Calls)> {
    lines::keep(LevelFilter::Debug);
    let (ran, left) = leaving(async |world| {
        let mut fars = fars(world, servers, method);
        let mut writers = Vec::new();
        for far in &mut fars {
            let writer = far.connect(world, 2, &impatient()).await;
            writers.push(writer.expect("connected"));
        }
        let failing = fails.map(|(call, nth, how)| world.fail(call).how(how).nth(nth, Errno::IO));
        let before = world.fabric.calls();
        let mut found = Found::default();
        if servers == 1 {
            by_writer(world, &fars, writers.remove(0), &mut found).await;
        } else {
            let ran = by_set(world, &fars, writers, &mut found).await;
            ran.expect("the ring is free");
        }
        turns(8).await;
        let calls = calls_since(world, &before);
        let is_made = failing.is_none_or(|failing| !failing.disarm());
        for (mut far, acknowledged) in fars.into_iter().zip(found.acknowledged) {
            far.keeps(acknowledged..=found.last).await;
            far.end().await;
        }
        is_made.then_some((found.error, calls))
    });
    let (error, calls) = ran?;
    let log = lines::take();
    Some((Run { error, left, log }, calls))
}

/// Lets every call fail in each of these ways, by each method.
fn every_call_of(servers: usize) -> Result {
    for method in methods() {
        let (clean, calls) = run(method, servers, None).ok_or("it runs")?;
        assert_eq!(clean.error, None, "nothing fails by itself");
        assert!(clean.left.is_empty(), "{:?}", clean.left);
        for how in [How::Refused, How::Done, How::LastRefused] {
            let mut calls = calls.clone();
            calls.retain(|call, _| how != How::LastRefused || *call == "ibv_post_send");
            let swept = every_call(&calls, how, "mr", is_in_share, |fails| {
                run(method, servers, Some(fails)).map(|ran| ran.0)
            });
            println!("{}, {method}, {how:?}: {swept}", profile().name());
        }
    }
    Ok(())
}

#[test]
fn every_call_of_a_writer_fails() -> Result {
    every_call_of(1)
}

#[test]
fn every_call_of_a_set_fails() -> Result {
    every_call_of(3)
}
