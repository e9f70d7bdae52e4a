//! The table beside this file: how an exploration and seeds find each wrong program.
//!
//! A line has the run of an exploration in which the fault is found. The early base order is run 1,
//! the late one is run 2, and then come the orders with one deviation, first those of an interrupted
//! network. The other figures are the numbers of 100 seeds that find the fault, without and with
//! `Fabric::apart`. A cell has a figure for each device. On a device with `none` the program is
//! right: soft-RoCE executes in order, and has placed each completed write.

use crate::explored::cases::Case;
use crate::explored::{awaited, found, power, sets, threads};

const TABLE: &str = include_str!("table.md");

fn cases() -> Vec<Case> {
    let mut cases = vec![
        found::copy(),
        found::early(),
        found::other(),
        found::detached(),
        found::elapsed(),
        found::few(),
        found::trusting(),
        found::tail(),
        threads::early(),
        threads::announced(),
        threads::first(),
        awaited::tail(),
        awaited::elapsed(),
        awaited::detached(),
        sets::set(),
    ];
    cases.extend(power::all());
    cases
}

/// Promise: the table has each wrong program.
#[test]
fn each_wrong_program_is_in_the_table() {
    let cases = cases();
    let heads: Vec<_> = cases.iter().flat_map(Case::heads).collect();
    let lines: Vec<_> = TABLE.lines().skip(2).collect();
    assert_eq!(heads.len(), lines.len());
    for (head, line) in heads.iter().zip(lines) {
        assert!(line.starts_with(head), "{head} is not the line {line}");
    }
}

/// Promise: the table has the figures of this version.
#[test]
#[ignore = "long: a minute"]
fn the_table_has_the_figures() {
    let cases = cases();
    let rows: Vec<_> = cases.iter().flat_map(Case::rows).collect();
    rows.iter().for_each(|row| println!("{row}"));
    let lines: Vec<_> = TABLE.lines().skip(2).collect();
    assert_eq!(
        rows, lines,
        "copy the printed lines, if the change is meant"
    );
}
