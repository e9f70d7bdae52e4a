//! The report of a check.

use serde::Serialize;

use crate::host::Host;
use crate::report::Outcome;
use crate::time::utc_now;

/// Both hosts, and the result of each case.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport {
    command: &'static str,
    /// Good, if all cases ran, none failed and some passed.
    pub(crate) result: Outcome,
    /// When it began, in UTC.
    pub(crate) time: String,
    pub(crate) client: Host,
    pub(crate) server: Host,
    /// Whether `--fallback` was given.
    pub(crate) fallback: bool,
    pub(crate) cases: Vec<CaseResult>,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) not_possible: usize,
    /// Why cases are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_early: Option<String>,
}

/// The result of a case.
#[derive(Debug, Serialize)]
pub(crate) struct CaseResult {
    pub(crate) case: String,
    pub(crate) result: Verdict,
    /// What was done, what failed, or why it is not possible.
    pub(crate) detail: String,
    pub(crate) milliseconds: u128,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Passed,
    Failed,
    NotPossible,
}

impl CaseResult {
    /// One line.
    pub(crate) fn line(&self) -> String {
        let Self { case, detail, .. } = self;
        match self.result {
            Verdict::Passed => format!("passed  {case}: {detail} ({} ms)", self.milliseconds),
            Verdict::Failed => format!("FAILED  {case}: {detail}"),
            Verdict::NotPossible => format!("not possible here  {case}: {detail}"),
        }
    }
}

impl CheckReport {
    pub(crate) fn new(client: Host, server: Host, fallback: bool) -> Self {
        Self {
            command: "check",
            result: Outcome::Bad,
            time: utc_now(),
            client,
            server,
            fallback,
            cases: Vec::new(),
            passed: 0,
            failed: 0,
            not_possible: 0,
            ended_early: None,
        }
    }

    pub(crate) fn add(&mut self, result: CaseResult) {
        *match result.result {
            Verdict::Passed => &mut self.passed,
            Verdict::Failed => &mut self.failed,
            Verdict::NotPossible => &mut self.not_possible,
        } += 1;
        self.cases.push(result);
    }

    /// The last line.
    pub(crate) fn summary(&self) -> String {
        let counts = format!(
            "{} passed, {} failed, {} not possible here",
            self.passed, self.failed, self.not_possible
        );
        match &self.ended_early {
            Some(reason) => format!("{counts}; the other cases did not run: {reason}"),
            None => counts,
        }
    }
}
