//! Small runs of a log in all orders that deviate little from a base order.
//!
//! The servers and the writers are tasks of one thread, so that the choices are those of the
//! devices. An order deviates only after the log was set up.

mod programs;
mod small;

use std::cell::Cell;

use rpma::sim::{Explore, Explored};

use crate::common::prelude::*;
use crate::common::share;
use crate::replicated_log::cuts::{Told, locked};
use crate::replicated_log::explored::programs::{self as of, PROGRAMS, Program};
use crate::replicated_log::explored::small::{Kind, is_interrupted, recover};
use crate::replicated_log::found_by::FOUND_BY;
use crate::replicated_log::prelude::{Fault, Method, Mutex, READING, Way, World, thread};

const RIGHT: Kind = Kind {
    way: READING,
    fault: Fault::Nothing,
};

/// Runs a program in so many orders with up to one deviation.
fn explore(profile: &Profile, runs: usize, program: impl Fn(&Fabric)) -> Explored {
    let explore = Explore::new(profile).deviations(1).runs(runs);
    let explored = explore.limit(Duration::from_secs(600)).run(program);
    assert_eq!(explored.diverged, 0, "{explored}");
    explored
}

/// Explores each program. The next writer recovers from one of `nth` images.
fn explore_all(runs: usize, nth: u64) {
    for profile in share("profiles of small logs", 4, Profile::ALL) {
        let (mut sums, recovered) = ([0; 3], Cell::new(0));
        for (name, program) in PROGRAMS {
            let explored = explore(&profile, runs, |fabric| {
                let left = program(fabric, RIGHT, nth);
                left.iter().for_each(|left| recover(&profile, RIGHT, left));
                recovered.set(recovered.get() + left.len());
            });
            let (runs, images) = (explored.runs(), explored.images());
            let counts = [runs, explored.sequences(), images];
            println!("{}, {name}: {counts:?}", profile.name());
            assert!(runs > 2 && images > 10, "{explored}");
            (0..3).for_each(|n| sums[n] += counts[n]);
        }
        let ([runs, sequences, images], recovered) = (sums, recovered.get());
        println!(
            "{}: {runs} runs, {sequences} sequences of events, {images} images, {recovered} recoveries",
            profile.name()
        );
        assert!(recovered > 0, "{recovered} recoveries");
    }
}

/// Promise: with one operation that is late, or never completes, each call of a log on three servers
/// succeeds. At each event any two servers have each acknowledged record, once and whole, and the
/// next writer has it.
#[test]
fn small_logs_keep_their_promises() {
    explore_all(8, 1000);
}

/// The same in all orders with one deviation.
#[test]
#[ignore = "long: 2 minutes"]
fn small_logs_keep_their_promises_in_all_orders() {
    explore_all(usize::MAX, 500);
}

/// Two threads append a record each to a log whose work is done by threads.
fn two_threads(fabric: &Fabric) {
    let world = World::new(fabric, READING);
    let log = world.open(1).expect("opens");
    let _entered = world.client.enter();
    world.until_all_have(&log);
    let told = Mutex::new(Told::default());
    let look = |cut: &Cut<'_>| locked(&told).check_cut(cut, &world.pmems, 20);
    fabric.on_every_event(look, || {
        thread::scope(|scope| {
            for byte in 1..=2 {
                let (log, told) = (&log, &told);
                scope.spawn(move || match log.append(&[byte; 30]) {
                    Ok(at) => locked(told).acknowledged(at, vec![byte; 30]),
                    Err(error) => assert!(is_interrupted(&error), "{error}"),
                });
            }
        });
    });
}

fn explore_threads(runs: usize) {
    for profile in share("profiles of threads", 4, Profile::ALL) {
        let explored = explore(&profile, runs, two_threads);
        assert!(explored.choices["thread"].0 > 100, "{explored}");
    }
}

/// Promise: as `small_logs_keep_their_promises`, in other orders of the threads as well.
#[test]
fn a_small_log_with_threads_keeps_its_promises() {
    explore_threads(20);
}

/// The same in all orders with one deviation.
#[test]
#[ignore = "long: 10 seconds"]
fn a_small_log_with_threads_keeps_its_promises_in_all_orders() {
    explore_threads(usize::MAX);
}

/// A fault, and the program that finds it.
const FOUND: [(Fault, Program); 18] = [
    (Fault::Visible, of::one_appender),
    (Fault::Platform, of::one_appender),
    (Fault::Posted, of::one_appender),
    (Fault::OneCopy, of::comes_back),
    (Fault::UnknownIsDone, of::unknown),
    (Fault::TailAhead, of::wraps),
    (Fault::RoomEarly, of::truncates),
    (Fault::ReadsOne, of::not_acknowledged),
    (Fault::BlankCounts, of::no_witness),
    (Fault::IgnoresEpochs, of::not_acknowledged),
    (Fault::KeepsEpoch, of::not_acknowledged),
    (Fault::TellsEarly, of::unknown),
    (Fault::SameInstance, of::same_epoch),
    (Fault::JoinsEarly, of::comes_back),
    (Fault::JoinsUngated, of::comes_back),
    (Fault::HeaderFirst, of::no_witness),
    (Fault::NoSetBack, of::not_acknowledged),
    (Fault::NoRecount, of::one_appender),
];

/// The faults of a change of the servers, which `replace.rs` finds, and that of a connection that
/// breaks between a word and its flush (`scenes.rs`).
const FOUND_ELSEWHERE: [Fault; 3] = [Fault::TrustsWords, Fault::ListInPlace, Fault::IgnoresLists];

/// Where a fault shows.
fn way(fault: Fault) -> Way {
    let (method, platform) = match fault {
        Fault::Visible | Fault::Platform => (Method::Reading, Platform::AdrDdioOn),
        Fault::RoomEarly => (Method::Server, Platform::AdrDdioOn),
        _ => return READING,
    };
    Way { method, platform }
}

/// Promise: each fault breaks a promise of a small run in one of the two base orders.
#[test]
fn each_fault_is_found_in_a_base_order() {
    assert_eq!(FOUND.len() + FOUND_ELSEWHERE.len(), FOUND_BY.len());
    for profile in share("profiles of faults", 4, Profile::ALL) {
        for (fault, program) in FOUND {
            let kind = Kind {
                way: way(fault),
                fault,
            };
            let explore = Explore::new(&profile).deviations(0);
            let found = explore.find(|fabric| drop(program(fabric, kind, u64::MAX)));
            let found = found.expect_err("the fault");
            let text = found.text.lines().next().unwrap_or_default();
            println!(
                "{}, {}: run {}, {text}",
                profile.name(),
                fault.name(),
                found.explored.runs()
            );
        }
    }
}
