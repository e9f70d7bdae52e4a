//! The count of a whole run: every step and every test is either passed or failed, and those that
//! could not run have failed.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Error, Result, ensure};

use super::libtest::Outcome;
use crate::host::Workspace;
use crate::process::{spawn_logged, text};
use crate::progress::{Step, say};

#[derive(Debug)]
pub(super) struct Report<'a> {
    workspace: &'a Workspace,
    logs: usize,
    passed: usize,
    failed: usize,
    /// Tests left for `--long`.
    long: usize,
    failures: Vec<String>,
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

    /// For a row of steps that runs beside the first row: with other numbers for its logs.
    pub(super) fn of_row(workspace: &'a Workspace, row: usize) -> Self {
        Self {
            logs: 40 * row,
            ..Self::new(workspace)
        }
    }

    /// Adds the counts of another report, of the same run.
    pub(super) fn add(&mut self, other: Report<'_>) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.long += other.long;
        self.failures.extend(other.failures);
    }

    /// An empty log file for the next step.
    fn log(&mut self, name: &str) -> Result<PathBuf> {
        self.logs += 1;
        let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let words = name.split(|char| !is_plain(char));
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        let file = format!("{:02}-{}.log", self.logs, words.join("-"));
        self.workspace.log_file(&file)
    }

    /// Runs a command that counts as one test; returns whether it succeeded.
    pub(super) fn check(&mut self, name: &str, command: &mut Command) -> Result<bool> {
        let log = self.log(name)?;
        Ok(self.scenario(name, || {
            let status = spawn_logged(command, &log)?.wait()?;
            ensure!(status.success(), "{}", log.display());
            Ok(String::new())
        }))
    }

    /// Runs a step that counts as one test, with a word on how it went; returns whether it
    /// succeeded.
    pub(super) fn scenario(&mut self, name: &str, run: impl FnOnce() -> Result<String>) -> bool {
        let step = Step::start(name);
        let result = run();
        match &result {
            Ok(note) => {
                step.done(note);
                self.passed += 1;
            }
            Err(error) => {
                step.failed("");
                self.fail(1, format!("{name}\n       {error:#}"));
            }
        }
        result.is_ok()
    }

    /// Runs `cargo test`, and counts the reports of its programs. Returns the log if the guest does
    /// not answer any more.
    pub(super) fn cargo_test(
        &mut self,
        name: &str,
        command: &mut Command,
    ) -> Result<Option<PathBuf>> {
        let log = self.log(name)?;
        let step = Step::start(name);
        let status = spawn_logged(command, &log)?.wait()?;
        let said = text(&log);
        let outcome = Outcome::of(&said);

        let mut problems = outcome.failures.clone();
        let unnamed = outcome.failed.saturating_sub(outcome.failures.len());
        for (count, what) in [
            (unnamed, "failed"),
            (outcome.lost(), "did not run"),
            (outcome.ignored, "ignored, and not for their length"),
        ] {
            if count > 0 {
                problems.push(format!("{count} of {} {what}", outcome.listed));
            }
        }
        problems.extend(panics(&said));
        let mut failed = outcome.failed + outcome.lost() + outcome.ignored;
        problems.extend(outcome.machine_lost.clone());
        if outcome.listed == 0 {
            problems.push("no test was reported".to_owned());
        } else if failed == 0 && !status.success() {
            problems.push(format!("all tests passed, and then it failed ({status})"));
        }
        failed = failed.max(usize::from(!problems.is_empty()));

        self.passed += outcome.passed;
        self.long += outcome.long;
        if failed == 0 {
            step.done(&format!("{} tests", outcome.passed));
        } else {
            step.failed(&format!("{} passed, {failed} failed", outcome.passed));
            let problems = problems.join("\n       ");
            // At once: if a run is stopped, or its output is cut, this may be all there is.
            say(&format!("       {problems}"));
            self.fail(
                failed,
                format!("{name}\n       {problems}\n       {}", log.display()),
            );
        }
        Ok(outcome.machine_lost.map(|_| log))
    }

    /// Something that could not be run at all.
    pub(super) fn not_run(&mut self, what: &str, why: &Error) {
        let why = format!("{why:#}");
        Step::start(what).failed(&why);
        self.fail(1, format!("{what}: not run, {why}"));
    }

    fn fail(&mut self, count: usize, what: String) {
        self.failed += count;
        self.failures.push(what);
    }

    /// Prints the failures and the one line that closes every run; returns whether all is well.
    pub(super) fn close(self) -> bool {
        println!();
        for failure in &self.failures {
            println!("FAILED {failure}");
        }
        if self.long > 0 {
            println!(
                "{} tests more, and the checks of versions, run with --long",
                self.long
            );
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0
    }
}

/// The panics in the output of test programs, each in one line: its place, and its message.
fn panics(said: &str) -> Vec<String> {
    let mut panics = Vec::new();
    let mut lines = said.lines();
    while let Some(line) = lines.next() {
        if let Some((_, place)) = line.split_once(" panicked at ") {
            let why = lines.by_ref().take_while(|line| !ends_a_panic(line));
            let why: Vec<_> = why.map(str::trim).collect();
            panics.push(format!("{place} {}", why.join(" ")));
        }
    }
    panics
}

fn ends_a_panic(line: &str) -> bool {
    line.is_empty() || line.starts_with("stack backtrace:") || line.starts_with("note: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_of_the_report() {
        let said = "test a ... thread 'a' (7) panicked at tests/a.rs:1:2:\n\
                    assertion failed\n  left: 1\nstack backtrace:\n   0: x\ntest b ... ok";
        assert_eq!(panics(said), ["tests/a.rs:1:2: assertion failed left: 1"]);
    }

    /// Returns how many tests passed and failed, by the output and the end of `cargo test`.
    fn count(says: &str, status: i32) -> (usize, usize) {
        let workspace = Workspace::find().unwrap();
        let mut report = Report::new(&workspace);
        // A name of its own for each log: tests run at the same time.
        let name = format!("report test {status} {}", says.len());
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo \"$1\"; exit $2",
            "sh",
            says,
            &status.to_string(),
        ]);
        report.cargo_test(&name, &mut command).unwrap();
        (report.passed, report.failed)
    }

    #[test]
    fn what_is_not_reported_has_failed() {
        let good = "running 2 tests\ntest a ... ok\ntest b ... ignored, long: 5 minutes\n\
                    test result: ok. 1 passed; 0 failed; 1 ignored";
        assert_eq!(count(good, 0), (1, 0));
        assert_eq!(
            count(good, 101),
            (1, 1),
            "a program fails when its tests are over"
        );
        let reason = good.replace(", long: 5 minutes", ", I do not like it");
        assert_eq!(
            count(&reason, 0),
            (1, 1),
            "an ignored test without a reason"
        );
        assert_eq!(
            count("running 2 tests\ntest a ... ok\n", 0),
            (1, 1),
            "b is lost"
        );
        assert_eq!(count("", 0), (0, 1), "no test at all");
        assert_eq!(count("error: could not compile", 101), (0, 1));
    }
}
