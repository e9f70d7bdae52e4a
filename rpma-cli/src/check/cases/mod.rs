//! The cases. Each file has a group.

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

/// Cases that check one thing in several ways, in the order in which they run.
struct Group {
    name: &'static str,
    about: &'static str,
    /// The ends of their names.
    cases: &'static [(&'static str, Run)],
}

/// Returns its work in words.
type Run = fn(&mut Bench) -> Result<String>;

/// One of its ways.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) about: &'static str,
    pub(crate) run: Run,
}

const GROUPS: [Group; 13] = [
    declaration::GROUP,
    transfer::GROUP,
    message::GROUP,
    flush::GROUP,
    atomic::GROUP,
    order::GROUP,
    atomic::ORDER,
    batch::GROUP,
    commit::GROUP,
    rights::GROUP,
    answer::GROUP,
    connection::GROUP,
    private_data::GROUP,
];

impl Group {
    fn cases(&self) -> impl Iterator<Item = Case> {
        self.cases.iter().map(|(way, run)| Case {
            name: format!("{}-{way}", self.name).trim_end_matches('-').into(),
            about: self.about,
            run: *run,
        })
    }
}

/// The cases whose names begin with one of these; all, if there are none.
pub(crate) fn chosen(beginnings: &[String]) -> Vec<Case> {
    let is_chosen = |case: &Case| {
        let begins = |beginning: &String| case.name.starts_with(beginning.as_str());
        beginnings.is_empty() || beginnings.iter().any(begins)
    };
    let all = GROUPS.iter().flat_map(Group::cases);
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
        let names: BTreeSet<_> = all.iter().map(|case| &case.name).collect();
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
