//! Each wrong program is found with one deviation, and the right one beside it passes.

use rpma::sim::Explore;

use crate::common::prelude::*;
use crate::common::share;
use crate::explored::programs::{commits, copies, pipelined, recovers, shows, tells, times_out};
use crate::explored::replicas::Tail;

/// The right program passes in all orders with up to one deviation. The wrong one breaks its promise
/// in one of them, with this text.
fn is_found(profiles: &[Profile], text: &str, right: impl Fn(&Fabric), wrong: impl Fn(&Fabric)) {
    for profile in share(text, 2, profiles) {
        let name = profile.name();
        let explore = Explore::new(profile)
            .deviations(1)
            .limit(Duration::from_secs(600));
        let explored = explore.run(&right);
        println!("{name}, the right one: {explored}");
        assert_eq!(
            (explored.diverged, explored.stopped),
            (0, None),
            "{explored}"
        );
        let found = explore.find(&wrong).expect_err("the fault");
        let (runs, order) = (found.explored.runs(), &found.order);
        println!("{name}, the wrong one: run {runs}, in the order {order}");
        assert!(found.text.contains(text), "{found}");
        assert!(found.deviations.len() <= 1, "{found}");
    }
}

/// Three replicas take most of the time.
const SOME: [Profile; 2] = [Profile::RXE_6_12, Profile::ADAPTER];

#[test]
fn one_copy_of_three() {
    is_found(
        &SOME,
        "a promised record has 1 copies",
        |fabric| copies(fabric, 2),
        |fabric| copies(fabric, 1),
    );
}

#[test]
fn a_record_that_is_told_early() {
    is_found(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| tells(fabric, false),
        |fabric| tells(fabric, true),
    );
}

#[test]
fn the_flush_of_another_record() {
    is_found(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| pipelined(fabric, false),
        |fabric| pipelined(fabric, true),
    );
}

#[test]
fn a_detached_commit() {
    is_found(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| commits(fabric, false),
        |fabric| commits(fabric, true),
    );
}

#[test]
fn a_time_out_that_is_taken_for_success() {
    is_found(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| times_out(fabric, false),
        |fabric| times_out(fabric, true),
    );
}

#[test]
fn a_recovery_that_trusts_one_replica() {
    is_found(
        &SOME,
        "records",
        |fabric| recovers(fabric, &[1, 2]),
        |fabric| recovers(fabric, &[1]),
    );
}

#[test]
fn a_tail_behind_a_flush_that_is_not_awaited() {
    is_found(
        &[Profile::STRICT, Profile::ADAPTER],
        "is torn",
        |fabric| shows(fabric, Tail::Atomic),
        |fabric| shows(fabric, Tail::Plain),
    );
}
