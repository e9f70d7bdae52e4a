//! Each fault that can be put into the log is found by a test, which this table names.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;

use crate::replicated_log::Fault;

const CUTS: &str = include_str!("cuts.rs");
const SCENES: &str = include_str!("scenes.rs");

/// The name of each fault, and the test that finds it.
const FOUND_BY: [(&str, &str, &str); 18] = [
    ("visible", CUTS, "faults_of_commits_are_found"),
    ("platform", CUTS, "faults_of_commits_are_found"),
    ("posted", CUTS, "faults_of_commits_are_found"),
    ("tail-ahead", CUTS, "faults_of_commits_are_found"),
    (
        "room-early",
        CUTS,
        "room_is_used_again_after_the_truncation",
    ),
    ("one-copy", SCENES, "one_copy_is_not_enough"),
    ("unknown-is-done", SCENES, "one_copy_is_not_enough"),
    (
        "reads-one",
        SCENES,
        "a_replica_that_was_away_is_not_the_newest",
    ),
    ("blank-counts", SCENES, "a_replaced_replica_is_no_witness"),
    ("ignores-epochs", SCENES, "the_newer_epoch_wins"),
    ("keeps-epoch", SCENES, "the_newer_epoch_wins"),
    ("tells-early", SCENES, "an_open_log_is_on_two_replicas"),
    ("no-recount", SCENES, "an_open_log_is_on_two_replicas"),
    ("same-instance", SCENES, "a_higher_epoch_takes_over"),
    ("joins-early", SCENES, "a_replica_joins_while_others_append"),
    (
        "joins-ungated",
        SCENES,
        "a_replica_joins_while_others_append",
    ),
    ("header-first", SCENES, "a_writer_dies_while_replicas_join"),
    ("no-set-back", SCENES, "a_writer_dies_while_replicas_join"),
];

/// The text of a test.
fn text<'a>(file: &'a str, test: &str) -> Option<&'a str> {
    let begin = file.find(&format!("#[test]\nfn {test}() {{"))?;
    let text = &file[begin..];
    Some(&text[..text.find("\n}\n")?])
}

/// Promise: a test puts each fault in.
#[test]
fn each_fault_is_found_by_a_test() {
    let faults: BTreeMap<_, _> = Fault::value_variants()
        .iter()
        .filter(|fault| **fault != Fault::Nothing)
        .map(|fault| (fault.to_possible_value().expect("a name"), fault))
        .map(|(name, fault)| (name.get_name().to_owned(), fault))
        .collect();
    let tested: BTreeSet<_> = FOUND_BY.iter().map(|(name, ..)| *name).collect();
    assert_eq!(faults.keys().collect::<Vec<_>>(), Vec::from_iter(&tested));
    for (name, file, test) in FOUND_BY {
        let (text, fault) = (text(file, test), faults[name]);
        let text = text.unwrap_or_else(|| panic!("there is no test {test}"));
        let puts_it_in = text
            .split(|of: char| !of.is_alphabetic() && of != ':')
            .any(|word| word == format!("Fault::{fault:?}"));
        assert!(puts_it_in, "{test} does not put in {name}");
    }
}
