//! The report of a check.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::host::Host;
use crate::report::Outcome;

/// Both hosts, and the result of each case.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport {
    command: &'static str,
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
    pub(crate) case: &'static str,
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

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::NotPossible => "not possible here",
        }
    }
}

impl CaseResult {
    /// One line.
    pub(crate) fn line(&self) -> String {
        let Self { case, detail, .. } = self;
        match self.result {
            Verdict::Passed => format!("passed  {case}: {detail} ({} ms)", self.milliseconds),
            Verdict::Failed => format!("FAILED  {case}: {detail}"),
            Verdict::NotPossible => format!("{}  {case}: {detail}", self.result.word()),
        }
    }
}

impl CheckReport {
    pub(crate) fn new(client: Host, server: Host, fallback: bool) -> Self {
        Self {
            command: "check",
            result: Outcome::Bad,
            time: utc(SystemTime::now()),
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

    /// The lines before the cases.
    pub(crate) fn head(&self) -> [String; 3] {
        [
            format!("rpma check, {}", self.time),
            format!("client: {}", self.client),
            format!("server: {}", self.server),
        ]
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

    /// All cases ran that can. Good, if none failed and some passed.
    pub(crate) fn finish(&mut self) {
        self.result = match self.failed == 0 && self.passed > 0 && self.ended_early.is_none() {
            true => Outcome::Good,
            false => Outcome::Bad,
        };
    }
}

/// A time as `2026-01-31T23:59:59Z`.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day after 1970-01-01. Years begin in March here, so the leap day is the last one.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year + u64::from(month <= 2);
    (year, month, day - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
