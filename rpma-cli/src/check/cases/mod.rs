//! The cases, in the order in which they run. Each file has a group, and a table of its cases.

mod answer;
mod atomic;
mod batch;
mod commit;
mod connection;
mod declaration;
mod flush;
mod message;
mod order;
mod private_data;
mod rights;
mod transfer;

use super::bench::Bench;
use crate::client::Result;

/// One thing that is checked.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Returns in words what was done.
    pub(crate) run: fn(&mut Bench) -> Result<String>,
}

impl Case {
    const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Bench) -> Result<String>,
    ) -> Self {
        Self { name, about, run }
    }
}

/// The cases of one function, each with other arguments and its own end of the name.
macro_rules! by_way {
    ($run:ident, $name:literal, $about:literal, [$(($way:literal, $($arg:expr),+)),+ $(,)?]) => {
        &[$(Case::new(concat!($name, "-", $way), $about, |bench| $run(bench, $($arg),+))),+]
    };
}
use by_way;

const GROUPS: [&[Case]; 13] = [
    declaration::CASES,
    transfer::CASES,
    message::CASES,
    flush::CASES,
    atomic::CASES,
    order::CASES,
    atomic::ORDER,
    batch::CASES,
    commit::CASES,
    rights::CASES,
    answer::CASES,
    connection::CASES,
    private_data::CASES,
];

/// The cases whose names begin with one of these; all, if there are none.
pub(crate) fn chosen(beginnings: &[String]) -> Vec<&'static Case> {
    let all = GROUPS.iter().flat_map(|group| group.iter());
    let is_chosen = |case: &&Case| {
        let begins = |beginning: &String| case.name.starts_with(beginning.as_str());
        beginnings.is_empty() || beginnings.iter().any(begins)
    };
    all.filter(is_chosen).collect()
}

/// The beginning of a case's name, as an argument.
pub(crate) fn known(beginning: &str) -> std::result::Result<String, String> {
    let beginning = beginning.to_owned();
    match chosen(std::slice::from_ref(&beginning)).is_empty() {
        true => Err("no case begins so: `rpma check --list` lists the cases".to_owned()),
        false => Ok(beginning),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_case_has_a_name_of_its_own_and_words() {
        let all = chosen(&[]);
        let names: BTreeSet<_> = all.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), all.len());
        for case in all {
            assert!(!case.about.is_empty(), "{}", case.name);
        }
    }

    #[test]
    fn cases_are_chosen_by_the_beginnings_of_their_names() {
        assert_eq!(known("flush"), Ok("flush".to_owned()));
        assert!(known("flash").is_err());
        let flushes = chosen(&["flush".to_owned()]);
        assert!(!flushes.is_empty());
        assert!(flushes.iter().all(|case| case.name.starts_with("flush")));
    }
}
