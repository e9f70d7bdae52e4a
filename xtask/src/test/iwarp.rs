//! Device tests over soft-iWARP: the same programs, with the address of the guest's device `siw0`.
//! Every test of the subjects below runs there, or `left_out.rs` has the reason why it cannot pass.

use std::process::Command;

use anyhow::Result;

use super::left_out::{self, LeftOut, On, PROGRAM};
use super::report::Report;
use super::subjects::{Subject, tests_of};
use super::{Options, check_all, run_on_device};
use crate::guest::chroot::Headers::Native;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::progress::say;

/// The step's name.
const STEP: &str = "soft-iWARP";

const SUBJECTS: [&str; 9] = [
    "awaited",
    "commit",
    "connect",
    "cut_off",
    "ending",
    "keep_alive",
    "messages",
    "transfer",
    "writer",
];

/// Only these tests.
pub(crate) fn alone(workspace: &Workspace, options: Options) -> Result<bool> {
    let mut lab = Lab::open(workspace, "test", false)?;
    let mut report = Report::new(workspace);
    let build = |words| lab.cargo(Native, words);
    let builds = vec![
        (
            "device: build".to_owned(),
            build("test --no-run --test device")?,
        ),
        (
            "device: build 01".to_owned(),
            build("build --example 01-connection")?,
        ),
    ];
    if check_all(&mut report, builds)? {
        for (test, _, why) in left_out() {
            say(&format!("       left out: {test}: {why}"));
        }
        run(&mut report, &mut lab, options)?;
    }
    Ok(report.close())
}

/// Runs them as one step; returns whether there is a device for others.
pub(super) fn run(report: &mut Report<'_>, lab: &mut Lab<'_>, options: Options) -> Result<bool> {
    let mut test = match command(lab, options) {
        Ok(test) => test,
        Err(error) => {
            report.not_run(STEP, &error);
            return Ok(true);
        }
    };
    let there = run_on_device(report, lab, STEP, &mut test);
    say(&format!(
        "       {} tests cannot pass there: xtask/src/test/left_out.rs has the reasons",
        left_out().count()
    ));
    there
}

fn command(lab: &mut Lab<'_>, options: Options) -> Result<Command> {
    let all = tests_of(lab, Native, PROGRAM, &[])?;
    let ours = subjects().flat_map(|subject| subject.of(&all, &[]));
    let tests = left_out::without(ours, &all, left_out())?;
    lab.over_iwarp(true);
    let test = lab.cargo_on_device(Native, "test", options.limit());
    lab.over_iwarp(false);
    let mut test = test?;
    test.args(["--test", PROGRAM, "--", "--exact"]).args(tests);
    Ok(test)
}

fn subjects() -> impl Iterator<Item = Subject> {
    SUBJECTS.iter().map(|name| Subject {
        program: PROGRAM.to_owned(),
        name: (*name).to_owned(),
    })
}

/// The tests of these subjects that do not run.
fn left_out() -> impl Iterator<Item = &'static LeftOut> {
    let is_ours = |test| subjects().any(|subject| subject.without_program(test).is_some());
    left_out::of(On::Guest).filter(move |(test, ..)| is_ours(test))
}
