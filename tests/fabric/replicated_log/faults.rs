//! Each fault that can be put into the log is found by a test, which `found_by.rs` names.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::replicated_log::found_by::{BREAK, FOUND_BY, FOUND_BY_SCENE};
use crate::replicated_log::prelude::*;

const CUTS: &str = include_str!("cuts.rs");
const SCENES: &str = include_str!("scenes.rs");
const REPLACE: &str = include_str!("replace.rs");
const REPLACE_CUTS: &str = include_str!("replace_cuts.rs");

/// Puts a fault in, and fails if it is found with no seed. It prints the first failure.
pub(crate) fn find(
    fault: Fault,
    seeds: impl IntoIterator<Item = u64>,
    run: impl Fn(u64) -> Result<(), String>,
) -> Result {
    let (name, help) = (fault.name(), fault.about());
    if std::env::var(BREAK).is_ok_and(|only| only != name) {
        return Ok(());
    }
    let failure = |seed| Some((seed, run(seed).err()?));
    let found = seeds.into_iter().find_map(failure);
    let (seed, why) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
    println!("\n{name}: {help}. It is found with the number {seed}:\n\n{why}");
    Ok(())
}

/// The text of a panic of `run`.
pub(crate) fn panics(run: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(text_of)
}

/// The text of a test.
fn text(test: &str) -> Option<&'static str> {
    let (file, test) = match test.split_once("::")? {
        ("cuts", test) => (CUTS, test),
        ("replace", test) => (REPLACE, test),
        ("replace_cuts", test) => (REPLACE_CUTS, test),
        (_, test) => (SCENES, test),
    };
    let begin = file.find(&format!("#[test]\nfn {test}()"))?;
    let text = &file[begin..];
    Some(&text[..text.find("\n}\n")?])
}

/// Promise: a test puts each fault in, here or in `tests/scenes`.
#[test]
fn each_fault_is_found_by_a_test() {
    let faults = Fault::ALL.iter().filter(|fault| **fault != Fault::Nothing);
    let faults: BTreeMap<_, _> = faults.map(|fault| (fault.name(), fault)).collect();
    let tested = FOUND_BY
        .iter()
        .chain(&FOUND_BY_SCENE)
        .map(|(name, _)| *name);
    let tested: BTreeSet<_> = tested.collect();
    assert_eq!(faults.keys().collect::<Vec<_>>(), Vec::from_iter(&tested));
    for (name, test) in FOUND_BY {
        let (text, fault) = (text(test), faults[name]);
        let text = text.unwrap_or_else(|| panic!("there is no test {test}"));
        let mut words = text.split(|of: char| !of.is_alphabetic() && of != ':');
        let puts_it_in = words.any(|word| word == format!("Fault::{fault:?}"));
        assert!(puts_it_in, "{test} does not put in {name}");
    }
}
