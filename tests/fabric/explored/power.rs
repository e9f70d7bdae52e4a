//! The wrong programs of `power` under an exploration, with at most three records.
//!
//! `table`, `large`, `cuts` and `reports` have more tests of these programs. `late`, `hosts`, `storm`
//! and `declared` have no wrong ones.

use crate::common::prelude::*;
use crate::explored::cases::Case;
use crate::power::acks::{self, GoesOn};
use crate::power::again::{self, Accident, Recipe};
use crate::power::commits::{self, Parts};
use crate::power::cuts::{persists, writes_an_index};
use crate::power::early::{self, Flag};
use crate::power::forgotten;
use crate::power::group::{self, Size, Wakes};
use crate::power::joint::{self, Safe};
use crate::power::protocols::{self, Fault, Protocol, mixed_on};
use crate::power::recovering::{self, Folds};
use crate::power::rules;
use crate::power::served;
use crate::power::sim_log::{self, Found};
use crate::power::stores;
use crate::power::strays::{self, Drops};
use crate::power::threads;
use crate::power::told::{self, Order};
use crate::power::torn::{self, Number};
use crate::power::world::{Ran, Way, World};

/// How many records most programs append.
const RECORDS: u64 = 2;
/// In the columns of `table.md`.
const BOTH: [Profile; 2] = [Profile::RXE_6_12, Profile::STRICT];
const ADAPTERS: [Profile; 2] = [Profile::STRICT, Profile::ADAPTER];

/// A program that may fail, and must not lose anything.
fn program(run: impl Fn(&Fabric) -> Ran + 'static) -> impl Fn(&Fabric) + 'static {
    move |fabric| {
        if let Err(loss) = run(fabric) {
            panic!("{loss}");
        }
    }
}

/// The same, in a world of this kind.
fn in_world(way: Way, run: impl Fn(&World) -> Ran + 'static) -> impl Fn(&Fabric) + 'static {
    program(move |fabric| run(&World::new(fabric, way).expect("a connection")))
}

fn protocol(way: Way, protocol: Protocol, fault: Fault) -> impl Fn(&Fabric) + 'static {
    in_world(way, move |world| {
        protocols::run_on(world, protocol, fault, RECORDS)
    })
}

fn of_protocols() -> Vec<Case> {
    let way = Way::on(Platform::AdrDdioOn);
    let polls = move |fault| protocol(way, Protocol::PollInBetween, fault);
    let atomic = move |fault| protocol(way, Protocol::AtomicWrite, fault);
    let fenced = Way::on(Platform::AdrDdioOff).by_reading(true);
    let fenced = move |fault| protocol(fenced, Protocol::FencedWrite, fault);
    vec![
        Case::new(&BOTH, polls(Fault::None))
            .wrong(
                "the record is not flushed",
                "is torn",
                polls(Fault::NoFlushOfTheRecord),
            )
            .wrong(
                "the record is flushed before it is written",
                "is torn",
                polls(Fault::FlushTooEarly),
            )
            .wrong(
                "the tail is not flushed",
                "were acknowledged",
                polls(Fault::NoFlushOfTheTail),
            )
            .wrong(
                "the flushes are for visibility",
                "is torn",
                polls(Fault::OnlyVisible),
            )
            .wrong(
                "a part of the record is flushed",
                "is torn",
                polls(Fault::PartOfTheRecord),
            )
            .wrong(
                "the record is flushed on another connection",
                "is torn",
                polls(Fault::OtherConnection),
            ),
        Case::new(&BOTH, atomic(Fault::None)).wrong_on(
            &[Profile::STRICT],
            "a plain tail right after a flush, in the place of an atomic one",
            "is torn",
            atomic(Fault::TailBeforeThePoll),
        ),
        Case::new(&ADAPTERS, fenced(Fault::None)).wrong(
            "a plain tail right after a flush by reading, in the place of a fenced one",
            "is torn",
            fenced(Fault::TailBeforeThePoll),
        ),
    ]
}

/// Wrong declarations.
fn of_declarations() -> Vec<Case> {
    let right = Way::on(Platform::AdrDdioOff).by_reading(true);
    let wrong = Way::on(Platform::AdrDdioOn).by_reading(true).promising();
    let polls = |way| protocol(way, Protocol::PollInBetween, Fault::None);
    let log = commits::Log {
        parts: Parts::Two,
        in_flight: 1,
    };
    let commits = move |way| program(move |fabric| log.run_on(fabric, way, RECORDS));
    let mixed = |protocol| {
        program(move |fabric| {
            let world = mixed_on(fabric, Profile::STRICT).expect("a connection");
            protocols::run_on(&world, protocol, Fault::None, RECORDS)
        })
    };
    let sim_log = |fault| {
        program(move |fabric| {
            let records = RECORDS as usize;
            let found = sim_log::cut_on(fabric, Platform::AdrDdioOn, fault, records);
            match found {
                Ok(Found::Lost(loss)) => Err(loss),
                found => Ok(found.map(drop)),
            }
        })
    };
    vec![
        Case::new(&[Profile::STRICT], polls(right)).wrong(
            "a flush by reading, and a platform that does not keep it",
            "is torn",
            polls(wrong),
        ),
        Case::new(&[Profile::STRICT], commits(right)).wrong(
            "a commit by reading, and a platform that does not keep it",
            "is torn",
            commits(wrong),
        ),
        Case::new(&[Profile::RXE_6_12], mixed(Protocol::PollInBetween))
            .wrong(
                "an atomic tail from soft-RoCE to an adapter that is not declared",
                "is torn",
                mixed(Protocol::AtomicWrite),
            )
            .wrong(
                "a batch from soft-RoCE to an adapter that is not declared",
                "is torn",
                mixed(Protocol::Batch),
            )
            .wrong(
                "a fenced tail from soft-RoCE to an adapter that is not declared",
                "is torn",
                mixed(Protocol::FencedWrite),
            ),
        Case::new(&BOTH, sim_log(sim_log::Fault::Nothing))
            .wrong(
                "`sim-log --break flush`",
                "is not what was appended",
                sim_log(sim_log::Fault::Flush),
            )
            .wrong_on(
                &[Profile::STRICT],
                "`sim-log --break tail`",
                "is not what was appended",
                sim_log(sim_log::Fault::Tail),
            ),
        Case::new(&[Profile::RXE_6_1], sim_log(sim_log::Fault::Nothing)).wrong(
            "`sim-log --break platform`",
            "is not what was appended",
            sim_log(sim_log::Fault::Platform),
        ),
    ]
}

fn of_rules() -> Vec<Case> {
    let on = |platform| Way::on(platform).promising();
    let tells = |run: fn(&World) -> Ran| in_world(on(Platform::AdrDdioOn), run);
    let large = |flushes| {
        in_world(on(Platform::AdrDdioOff), move |world| {
            rules::writes_behind_a_large_write(world, flushes)
        })
    };
    let index = |flushes| {
        in_world(on(Platform::AdrDdioOff), move |world| {
            writes_an_index(world, flushes)
        })
    };
    let seen = |sees| in_world(on(Platform::AdrDdioOn), move |world| persists(world, sees));
    let visible =
        |kind| program(move |fabric| forgotten::append_on(fabric, Platform::AdrDdioOn, kind));
    vec![
        Case::new(&BOTH, tells(rules::tells_after_the_poll))
            .wrong(
                "acknowledged before the poll",
                "lost",
                tells(rules::tells_before_the_poll),
            )
            .wrong(
                "acknowledged when the write has completed",
                "lost",
                tells(rules::tells_when_the_write_has_completed),
            )
            .wrong(
                "acknowledged before another program reads it",
                "lost",
                tells(rules::tells_before_it_is_read),
            )
            .wrong(
                "acknowledged before its region is deregistered",
                "lost",
                tells(rules::tells_before_the_region_goes),
            )
            .wrong(
                "acknowledged after the poll of one of two connections",
                "lost",
                tells(rules::polls_one_of_two),
            ),
        Case::new(&BOTH, large(true)).wrong(
            "a flag right after its value, after a large record",
            "flag without value",
            large(false),
        ),
        Case::new(&BOTH, index(true)).wrong(
            "an index to data that is not flushed",
            "the index leads nowhere",
            index(false),
        ),
        Case::new(&BOTH, seen(true)).wrong_on(
            &[Profile::STRICT],
            "a persist of bytes that are still in the device",
            "told",
            seen(false),
        ),
        Case::new(&BOTH, visible(FlushType::Persistent)).wrong(
            "a forgotten `FlushType::Persistent`",
            "is torn",
            visible(FlushType::Visibility),
        ),
    ]
}

/// Writers that connect again, and checks of what is there.
fn of_recoveries() -> Vec<Case> {
    let way = Way::on(Platform::AdrDdioOn);
    let again = move |recipe| {
        program(move |fabric| again::run_on(fabric, way, recipe, Accident::Request(4)))
    };
    let acks = move |goes_on| program(move |fabric| acks::run_on(fabric, way, 1, goes_on));
    let strays = move |drops| program(move |fabric| strays::run_on(fabric, way, drops));
    let torn =
        move |is_valid| program(move |fabric| torn::run_on(fabric, way.platform, is_valid, 2));
    let number = |how| program(move |fabric| torn::count_on(fabric, how));
    let joint = |safe| program(move |fabric| joint::run_on(fabric, safe, RECORDS));
    let folds = |folds| program(move |fabric| recovering::explored_on(fabric, folds));
    vec![
        Case::new(&BOTH, again(Recipe::WriteAgain))
            .wrong(
                "a tail that is read back, and taken for durable",
                "were acknowledged",
                again(Recipe::Trust),
            )
            .wrong_on(
                &[Profile::STRICT],
                "a tail that is read back, and flushed on the new connection",
                "were acknowledged",
                again(Recipe::Flush),
            ),
        Case::new(&BOTH, acks(GoesOn::AfterTheTail)).wrong(
            "the first failure, taken for the first operation that was not executed",
            "is torn",
            acks(GoesOn::AtTheFirstFailure),
        ),
        Case::new(&BOTH, strays(Drops::BeforeItAccepts)).wrong(
            "the old connection is dropped after the next one is accepted",
            "is not the one that was acknowledged",
            strays(Drops::Later),
        ),
        Case::new(&BOTH, torn(torn::has_sum)).wrong(
            "a record without a checksum and a tail",
            "is torn",
            torn(|_| true),
        ),
        Case::new(&BOTH, number(Number::Alone)).wrong(
            "a number in a longer write",
            "0x1ff",
            number(Number::InAHeader),
        ),
        Case::new(&ADAPTERS, joint(Safe::TwoFlushed)).wrong(
            "a copy of three that is written and not flushed",
            "is on 1 of 3 replicas",
            joint(Safe::OneFlushed),
        ),
        Case::new(&BOTH, folds(Folds::InOneWord)).wrong(
            "a recovery that counts twice if it is cut",
            "The recovery lost its power",
            folds(Folds::InTwoWords),
        ),
    ]
}

/// Programs of two sides, and of threads.
fn of_servers() -> Vec<Case> {
    let flag = |flag| {
        move |fabric: &Fabric| {
            let world = World::new(fabric, Way::on(Platform::Eadr)).expect("a connection");
            // From here on, choices deviate.
            let old = fabric.on_every_event(|_| (), || early::run_on(&world, flag, 1));
            assert!(!matches!(old, Ok(1..)), "the data is old");
        }
    };
    let told = |order| program(move |fabric| told::run_on(fabric, false, order));
    let served = |early| program(move |fabric| served::two_records_on(fabric, early));
    let threads = |forgets| program(move |fabric| threads::run_on(fabric, RECORDS, forgets));
    let way = Way::on(Platform::AdrDdioOn);
    const GROUPS: Size = Size {
        writers: 2,
        each: 1,
        collects: Duration::from_secs(1),
    };
    let group = move |wakes| program(move |fabric| group::run_on(fabric, way, wakes, GROUPS));
    vec![
        Case::new(&ADAPTERS, flag(Flag::AfterAFlush))
            .wrong(
                "a plain flag right after its data",
                "the data is old",
                flag(Flag::Plain),
            )
            .wrong(
                "a plain flag after the completion of its data",
                "the data is old",
                flag(Flag::AfterItsCompletion),
            ),
        Case::new(&[Profile::ADAPTER], flag(Flag::AtomicAfterAFlush)).wrong(
            "an atomic flag without a native atomic write",
            "the data is old",
            flag(Flag::Atomic),
        ),
        Case::new(&BOTH, told(Order::Polled))
            .wrong_on(
                &[Profile::STRICT],
                "a message right after a flush",
                "were acknowledged",
                told(Order::Posted),
            )
            .wrong_on(
                &[Profile::STRICT],
                "a fenced message right after a flush",
                "were acknowledged",
                told(Order::Fenced),
            ),
        Case::new(&BOTH, served(false)).wrong(
            "the server's method, acknowledged before the answer",
            "were acknowledged",
            served(true),
        ),
        Case::new(&BOTH, threads(false)).wrong(
            "a server that forgets a persist, in a thread of its own",
            "was acknowledged",
            threads(true),
        ),
        Case::new(&BOTH, group(Wakes::InTime)).wrong(
            "a group commit that wakes its writers too early",
            "were acknowledged",
            group(Wakes::TooEarly),
        ),
    ]
}

/// A program's own stores, on eADR.
fn of_stores() -> Vec<Case> {
    let mut cases: Vec<Case> = stores::WAYS
        .into_iter()
        .map(|by| {
            let append =
                |tail_first| program(move |fabric| stores::append_on(fabric, by, tail_first));
            let fault = match by {
                stores::By::WriteAt => "a tail before its record, by `PmemMap::write_at`",
                stores::By::StoreWords => "a tail before its record, by `store_u64`",
                stores::By::Region => "a tail before its record, by `Mr::write_at`",
                stores::By::Pointer => "a tail before its record, by a pointer",
            };
            Case::new(&[Profile::STRICT], append(false)).wrong(fault, "a torn record", append(true))
        })
        .collect();
    let count = |early| program(move |fabric| stores::count_on(fabric, early));
    let send = |first| program(move |fabric| stores::send_on(fabric, first));
    let recover = |right| program(move |fabric| stores::recover_on(fabric, right));
    let strict = &[Profile::STRICT];
    cases.push(Case::new(strict, count(false)).wrong(
        "a promise before its store",
        "3 is told, and 2 is there",
        count(true),
    ));
    cases.push(Case::new(strict, send(false)).wrong(
        "a tail before its record, and a call of `sync` in between",
        "a torn record",
        send(true),
    ));
    cases.push(Case::new(strict, recover(true)).wrong(
        "a recovery that stores two words in the wrong order",
        "",
        recover(false),
    ));
    cases
}

/// All of them.
pub(crate) fn all() -> Vec<Case> {
    let all = [
        of_protocols(),
        of_declarations(),
        of_rules(),
        of_recoveries(),
        of_servers(),
        of_stores(),
    ];
    all.into_iter().flatten().collect()
}

#[test]
fn the_wrong_programs_of_protocols() {
    of_protocols().iter().for_each(Case::check);
}

#[test]
fn the_wrong_programs_of_declarations() {
    of_declarations().iter().for_each(Case::check);
}

#[test]
fn the_wrong_programs_of_rules() {
    of_rules().iter().for_each(Case::check);
}

#[test]
fn the_wrong_programs_of_recoveries() {
    of_recoveries().iter().for_each(Case::check);
}

#[test]
fn the_wrong_programs_of_servers() {
    of_servers().iter().for_each(Case::check);
}

#[test]
fn the_wrong_programs_of_stores() {
    of_stores().iter().for_each(Case::check);
}
