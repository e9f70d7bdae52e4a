//! Tests over soft-iWARP: the same programs, with the address of the guest's device `siw0`.
//! Every test of the subjects below runs there, or `left_out.rs` has the reason why it cannot pass.

use std::process::Command;

use anyhow::{Result, ensure};

use super::left_out::{self, LeftOut, On, PROGRAM};
use super::report::Report;
use super::subjects::{Subject, tests_of};
use super::{Options, check_all, run_on_device};
use crate::guest::chroot::Headers::Native;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::progress::say;

/// Subjects of a program, one step.
struct Tests {
    step: &'static str,
    program: &'static str,
    subjects: &'static [&'static str],
}

const ALL: [Tests; 2] = [
    Tests {
        step: "soft-iWARP",
        program: PROGRAM,
        subjects: &[
            "awaited",
            "commit",
            "connect",
            "cut_off",
            "ending",
            "keep_alive",
            "messages",
            "transfer",
            "writer",
        ],
    },
    Tests {
        step: "soft-iWARP: examples",
        program: "programs",
        subjects: &["examples::pairs::dram"],
    },
];

/// Only these tests.
pub(crate) fn alone(workspace: &Workspace, options: Options) -> Result<bool> {
    let mut lab = Lab::open(workspace, "test", false)?;
    let mut report = Report::new(workspace);
    let build = |words| lab.cargo(Native, words);
    let builds = vec![
        (
            "device: build".to_owned(),
            build("test --no-run --test device --test programs")?,
        ),
        (
            "device: build examples".to_owned(),
            build("build --examples")?,
        ),
    ];
    if check_all(&mut report, builds)? {
        for (test, _, why) in ALL.iter().flat_map(Tests::left_out) {
            say(&format!("       left out: {test}: {why}"));
        }
        run(&mut report, &mut lab, options)?;
    }
    Ok(report.close())
}

/// Runs them; returns whether there is a device for others.
pub(super) fn run(report: &mut Report<'_>, lab: &mut Lab<'_>, options: Options) -> Result<bool> {
    for tests in &ALL {
        let mut test = match tests.command(lab, options) {
            Ok(test) => test,
            Err(error) => {
                report.not_run(tests.step, &error);
                continue;
            }
        };
        if !run_on_device(report, lab, tests.step, &mut test)? {
            return Ok(false);
        }
    }
    say(&format!(
        "       {} tests cannot pass there: xtask/src/test/left_out.rs has the reasons",
        ALL.iter().flat_map(Tests::left_out).count()
    ));
    Ok(true)
}

impl Tests {
    fn command(&self, lab: &mut Lab<'_>, options: Options) -> Result<Command> {
        let all = tests_of(lab, Native, self.program, &[])?;
        let ours = self.subjects().flat_map(|subject| subject.of(&all, &[]));
        let tests = left_out::without(ours, &all, self.left_out())?;
        ensure!(!tests.is_empty(), "{} has no such tests", self.program);
        lab.over_iwarp(true);
        let test = lab.cargo_on_device(Native, "test", options.limit());
        lab.over_iwarp(false);
        let mut test = test?;
        test.args(["--test", self.program, "--", "--exact"])
            .args(tests);
        Ok(test)
    }

    fn subjects(&self) -> impl Iterator<Item = Subject> {
        self.subjects.iter().map(|name| Subject {
            program: self.program.to_owned(),
            name: (*name).to_owned(),
        })
    }

    /// The tests of these subjects that do not run.
    fn left_out(&self) -> impl Iterator<Item = &'static LeftOut> {
        let is_ours = |test| {
            self.program == PROGRAM && self.subjects().any(|of| of.without_program(test).is_some())
        };
        left_out::of(On::Guest).filter(move |(test, ..)| is_ours(test))
    }
}
