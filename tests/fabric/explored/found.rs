//! Each wrong program is found with one deviation, and the right one beside it passes.

use crate::common::prelude::*;
use crate::explored::cases::Case;
use crate::explored::programs::{
    commits, copies, pipelined, recovers, shows, tells, times_out, too_few_copies,
};
use crate::explored::replicas::Tail;

const LOST: &str = "a promised record is lost";

/// Three replicas take most of the time.
const SOME: [Profile; 2] = [Profile::RXE_6_12, Profile::ADAPTER];

pub(crate) fn copy() -> Case {
    let fault = "acknowledged after one copy of three";
    let text = "a promised record has 1 copies";
    Case::new(&SOME, |fabric| copies(fabric, 2)).wrong(fault, text, |fabric| copies(fabric, 1))
}

pub(crate) fn early() -> Case {
    let fault = "promised before the flush";
    let right = Case::new(&Profile::ALL, |fabric| tells(fabric, false));
    right.wrong(fault, LOST, |fabric| tells(fabric, true))
}

pub(crate) fn other() -> Case {
    let fault = "the flush of the first of two records, taken for that of both";
    let right = Case::new(&Profile::ALL, |fabric| pipelined(fabric, false));
    right.wrong(fault, LOST, |fabric| pipelined(fabric, true))
}

pub(crate) fn detached() -> Case {
    let fault = "a commit that is not awaited";
    let right = Case::new(&Profile::ALL, |fabric| commits(fabric, false));
    right.wrong(fault, LOST, |fabric| commits(fabric, true))
}

pub(crate) fn elapsed() -> Case {
    let fault = "a time-out that is taken for success";
    let right = Case::new(&Profile::ALL, |fabric| times_out(fabric, false));
    right.wrong(fault, LOST, |fabric| times_out(fabric, true))
}

pub(crate) fn few() -> Case {
    let fault = "a time-out with too few copies that is taken for success";
    let right = Case::new(&SOME, |fabric| too_few_copies(fabric, false));
    right.wrong(fault, "a promised record has", |fabric| {
        too_few_copies(fabric, true)
    })
}

pub(crate) fn trusting() -> Case {
    let fault = "a recovery that trusts one replica";
    let right = Case::new(&SOME, |fabric| recovers(fabric, &[1, 2]));
    right.wrong(fault, "records", |fabric| recovers(fabric, &[1]))
}

pub(crate) fn tail() -> Case {
    let fault = "a plain tail right after a flush that is not awaited";
    let right = Case::new(&[Profile::STRICT, Profile::ADAPTER], |fabric| {
        shows(fabric, Tail::Atomic)
    });
    right.wrong(fault, "is torn", |fabric| shows(fabric, Tail::Plain))
}

#[test]
fn one_copy_of_three() {
    copy().check();
}

#[test]
fn a_record_that_is_told_early() {
    early().check();
}

#[test]
fn the_flush_of_another_record() {
    other().check();
}

#[test]
fn a_detached_commit() {
    detached().check();
}

#[test]
fn a_time_out_that_is_taken_for_success() {
    elapsed().check();
}

#[test]
fn a_time_out_with_too_few_copies_that_is_taken_for_success() {
    few().check();
}

#[test]
fn a_recovery_that_trusts_one_replica() {
    trusting().check();
}

#[test]
fn a_tail_behind_a_flush_that_is_not_awaited() {
    tail().check();
}
