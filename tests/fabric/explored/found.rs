//! Each wrong program is found with one deviation, and the right one beside it passes.

use rpma::sim::{Explore, FailedOrder};

use crate::common::prelude::*;
use crate::explored::programs::{commits, copies, pipelined, recovers, shows, tells, times_out};
use crate::explored::replicas::Tail;

/// The profiles on which a fault is found, and its text.
fn on_each(
    profiles: &[Profile],
    text: &str,
    right: impl Fn(&Fabric),
    wrong: impl Fn(&Fabric),
) -> Vec<FailedOrder> {
    let each = profiles.iter().map(|profile| {
        let explore = Explore::new(profile)
            .deviations(1)
            .limit(Duration::from_secs(600));
        let explored = explore.run(&right);
        assert_eq!(explored.diverged, 0, "{explored}");
        let found = explore.find(&wrong).expect_err("the fault");
        println!(
            "{}: {} {}",
            profile.name(),
            found.explored.runs(),
            found.order
        );
        assert!(found.text.contains(text), "{found}");
        assert!(found.deviations.len() <= 1, "{found}");
        found
    });
    each.collect()
}

#[test]
fn one_copy_of_three() {
    let found = on_each(
        &Profile::ALL,
        "a promised record has 1 copies",
        |fabric| copies(fabric, 2),
        |fabric| copies(fabric, 1),
    );
    drop(found);
}

#[test]
fn a_record_that_is_told_early() {
    on_each(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| tells(fabric, false),
        |fabric| tells(fabric, true),
    );
}

#[test]
fn the_flush_of_another_record() {
    on_each(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| pipelined(fabric, false),
        |fabric| pipelined(fabric, true),
    );
}

#[test]
fn a_detached_commit() {
    on_each(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| commits(fabric, false),
        |fabric| commits(fabric, true),
    );
}

#[test]
fn a_time_out_that_is_taken_for_success() {
    on_each(
        &Profile::ALL,
        "a promised record is lost",
        |fabric| times_out(fabric, false),
        |fabric| times_out(fabric, true),
    );
}

#[test]
fn a_recovery_that_trusts_one_replica() {
    on_each(
        &Profile::ALL,
        "records",
        |fabric| recovers(fabric, &[1, 2]),
        |fabric| recovers(fabric, &[1]),
    );
}

#[test]
fn a_tail_behind_a_flush_that_is_not_awaited() {
    on_each(
        &[Profile::STRICT, Profile::ADAPTER],
        "is torn",
        |fabric| shows(fabric, Tail::Atomic),
        |fabric| shows(fabric, Tail::Plain),
    );
}
