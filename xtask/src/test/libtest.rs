//! Reading what Rust's test programs print, so that a test that exists and did not run is noticed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// How tests are marked that run only with `--long`: `#[ignore = "long: 20 minutes"]`.
const LONG: &str = "ignored, long:";

/// What one or more test programs reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// Ignored, and not because of their length.
    pub(super) ignored: usize,
    /// Left for `--long`.
    pub(super) long: usize,
    /// Programs that reported to the end.
    pub(super) programs: usize,
}

impl Outcome {
    pub(super) fn of_log(log: &Path) -> Self {
        Self::of_text(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()))
    }

    fn of_text(text: &str) -> Self {
        let mut outcome = Self::default();
        // Of a program that has not reported yet: what stands if it never does.
        let (mut passed, mut failed) = (0, 0);
        for line in text.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                outcome.passed += number_before(result, " passed");
                outcome.failed += number_before(result, " failed");
                outcome.ignored += number_before(result, " ignored");
                outcome.programs += 1;
                (passed, failed) = (0, 0);
            } else if line.starts_with("test ") {
                passed += usize::from(line.ends_with("... ok"));
                failed += usize::from(line.ends_with("... FAILED"));
                outcome.long += usize::from(line.contains(LONG));
            }
        }
        outcome.passed += passed;
        outcome.failed += failed;
        outcome.ignored = outcome.ignored.saturating_sub(outcome.long);
        outcome
    }
}

/// The number in front of `word`: "ok. 3 passed; 1 failed" gives 3 for " passed".
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before
        .rsplit(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// How many tests a program has. `list` is a command that prints them.
pub(super) fn list(list: &mut Command) -> Result<usize> {
    let output = list.output().context("cannot list the tests")?;
    Ok(listed(&String::from_utf8_lossy(&output.stdout)))
}

/// From what a program prints for `--list --format=terse`.
fn listed(text: &str) -> usize {
    text.lines().filter(|line| line.ends_with(": test")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_add_up() {
        let text = "running 3 tests\n\
                    test a ... ok\n\
                    test b ... ignored, long: an hour\n\
                    test c ... ignored\n\n\
                    test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; \
                    finished in 0.00s\n\
                    test d - should panic ... ok\n\
                    test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let expected = Outcome {
            passed: 11,
            failed: 2,
            ignored: 1,
            long: 1,
            programs: 2,
        };
        assert_eq!(Outcome::of_text(text), expected);
    }

    #[test]
    fn a_program_that_died_counts_as_far_as_it_came() {
        let text = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... Aborted";
        let expected = Outcome {
            passed: 1,
            failed: 1,
            ..Outcome::default()
        };
        assert_eq!(Outcome::of_text(text), expected);
    }

    #[test]
    fn only_tests_are_listed() {
        assert_eq!(
            listed("a::b: test\nc: test\nd: benchmark\n\n2 tests, 1 benchmark\n"),
            2
        );
    }
}
