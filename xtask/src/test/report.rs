//! The count of a whole run: every step and every test is either passed or failed, and what could
//! not run has failed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::libtest::Outcome;
use crate::host::Workspace;
use crate::progress::{Step, spawn_logged};

#[derive(Debug)]
struct Failure {
    what: String,
    log: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct Report<'a> {
    workspace: &'a Workspace,
    logs: usize,
    passed: usize,
    failed: usize,
    /// Tests left for `--long`.
    long: usize,
    failures: Vec<Failure>,
}

impl<'a> Report<'a> {
    pub(super) fn new(workspace: &'a Workspace) -> Self {
        Self {
            workspace,
            logs: 0,
            passed: 0,
            failed: 0,
            long: 0,
            failures: Vec::new(),
        }
    }

    /// An empty log file for the next step.
    pub(super) fn log(&mut self, name: &str) -> Result<PathBuf> {
        self.logs += 1;
        let mut slug = String::new();
        for char in name.chars() {
            if char.is_ascii_alphanumeric() || char == '_' {
                slug.push(char);
            } else if !slug.ends_with('-') {
                slug.push('-');
            }
        }
        self.workspace
            .log_file(&format!("{:02}-{}.log", self.logs, slug.trim_matches('-')))
    }

    /// Runs a command that counts as one test. Its standard output is in the returned file if it
    /// succeeded and `keep_output`.
    pub(super) fn check(
        &mut self,
        name: &str,
        command: &mut Command,
        keep_output: bool,
    ) -> Result<Option<PathBuf>> {
        let log = self.log(name)?;
        let out = log.with_extension("out");
        let mut step = Step::start(name);
        let mut child = spawn_logged(command, &log, keep_output.then_some(&*out))?;
        let status = step.wait(&mut child, None)?;
        if status.is_some_and(|status| status.success()) {
            step.done("");
            self.passed += 1;
            return Ok(Some(out));
        }
        step.failed("");
        self.fail(1, name.to_owned(), Some(&log));
        Ok(None)
    }

    /// Runs `cargo test`: counts what its programs report.
    pub(super) fn cargo_test(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let log = self.log(name)?;
        let mut step = Step::start(name);
        let mut child = spawn_logged(command, &log, None)?;
        let status = step.wait(&mut child, None)?;
        let outcome = Outcome::of_log(&log);
        let mut problems = problems(outcome);
        // It did not build, or a program ended in the middle of a test.
        let crashed = status.is_some_and(|status| !status.success()) && outcome.failed == 0;
        if crashed || outcome.programs == 0 {
            problems.push("it did not end well".to_owned());
        }
        let failed =
            outcome.failed + outcome.ignored + usize::from(crashed || outcome.programs == 0);
        self.finish(step, name, outcome, failed, &problems, &log);
        Ok(())
    }

    /// Counts one test program that has been run by itself, of which `listed` tests exist.
    pub(super) fn program(
        &mut self,
        step: Step,
        name: &str,
        listed: usize,
        ended: Result<(), String>,
        log: &Path,
    ) {
        let outcome = Outcome::of_log(log);
        let mut problems = problems(outcome);
        let lost = listed.saturating_sub(outcome.passed + outcome.failed + outcome.long);
        let lost = lost.saturating_sub(outcome.ignored);
        if lost > 0 {
            problems.push(format!("{lost} of {listed} did not run"));
        }
        let mut failed = outcome.failed + outcome.ignored + lost;
        if let Err(why) = ended {
            // All tests passed and yet the program failed, for example when it ended.
            failed = failed.max(1);
            problems.push(why);
        } else if outcome.programs != 1 || listed == 0 {
            failed = failed.max(1);
            problems.push("it reported no result".to_owned());
        }
        self.finish(step, name, outcome, failed, &problems, log);
    }

    fn finish(
        &mut self,
        step: Step,
        name: &str,
        outcome: Outcome,
        failed: usize,
        problems: &[String],
        log: &Path,
    ) {
        self.passed += outcome.passed;
        self.long += outcome.long;
        if failed == 0 {
            step.done(&format!("{} tests", outcome.passed));
        } else {
            step.failed(&format!("{} passed, {failed} failed", outcome.passed));
            self.fail(
                failed,
                format!("{name}: {}", problems.join(", ")),
                Some(log),
            );
        }
    }

    /// Tests of a program that only `--long` runs.
    pub(super) fn left_for_long(&mut self, tests: usize) {
        self.long += tests;
    }

    /// Something that could not be run at all.
    pub(super) fn not_run(&mut self, what: &str, why: &str) {
        Step::start(what).failed(why);
        self.fail(1, format!("{what}: not run, {why}"), None);
    }

    fn fail(&mut self, count: usize, what: String, log: Option<&Path>) {
        self.failed += count;
        self.failures.push(Failure {
            what,
            log: log.map(Path::to_owned),
        });
    }

    /// Prints the failures and the one line that closes every run; tells whether all is well.
    pub(super) fn close(self) -> bool {
        println!();
        for failure in &self.failures {
            println!("FAILED {}", failure.what);
            if let Some(log) = &failure.log {
                println!("       {}", log.display());
            }
        }
        if self.long > 0 {
            println!("{} tests more run with --long", self.long);
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0
    }
}

fn problems(outcome: Outcome) -> Vec<String> {
    let mut problems = Vec::new();
    if outcome.failed > 0 {
        problems.push(format!("{} failed", outcome.failed));
    }
    if outcome.ignored > 0 {
        problems.push(format!("{} ignored", outcome.ignored));
    }
    problems
}
