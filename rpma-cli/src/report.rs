//! The output of all commands: findings, the frame of a report, lines of text and JSON.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::problem::{Problem, one_line};

/// The version of the JSON. It changes if a field goes or gets another meaning.
pub(crate) const VERSION: u32 = 1;

/// The beginning of each line.
pub(crate) const LABEL: &str = if cfg!(feature = "sim") {
    "simulated: "
} else {
    ""
};

/// The result of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Good,
    Bad,
}

/// What a finding means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it has to be.
    Good,
    /// A remote flush cannot work.
    Bad,
    /// A limit of this host, with which a remote flush can work.
    Note,
    /// This user or this process cannot see it.
    Unseen,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "BAD",
            Self::Note => "note",
            Self::Unseen => "unseen",
        }
    }
}

/// One look at one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl Finding {
    pub(crate) fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Good, found)
    }

    /// Each bad finding has a remedy.
    pub(crate) fn bad(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(check, Verdict::Bad, found).with_remedy(remedy)
    }

    pub(crate) fn note(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Note, found)
    }

    pub(crate) fn unseen(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Unseen, found)
    }

    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    fn new(check: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self {
            check,
            verdict,
            found: found.into(),
            remedy: None,
        }
    }

    /// One line, and a second one with the remedy.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let first = format!("{:<6}  {}: {}", self.verdict.word(), self.check, self.found);
        let second = self.remedy.as_ref();
        [
            Some(first),
            second.map(|remedy| format!("        -> {remedy}")),
        ]
        .into_iter()
        .flatten()
    }
}

/// The frame of every JSON report.
#[derive(Debug, Serialize)]
pub(crate) struct Report<T> {
    version: u32,
    /// The version of rpma.
    rpma: &'static str,
    simulated: bool,
    #[serde(flatten)]
    body: T,
}

impl<T: Serialize> Report<T> {
    pub(crate) fn new(body: T) -> Self {
        Self {
            version: VERSION,
            rpma: env!("CARGO_PKG_VERSION"),
            simulated: cfg!(feature = "sim"),
            body,
        }
    }
}

/// The place of a command's output.
pub(crate) struct Output(Box<dyn Write + Send>);

impl Output {
    pub(crate) fn stdout() -> Self {
        Self::to(io::stdout())
    }

    pub(crate) fn to(place: impl Write + Send + 'static) -> Self {
        Self(Box::new(place))
    }

    /// Prints one line of text, with its label.
    pub(crate) fn line(&mut self, text: impl Display) -> Result<(), Problem> {
        let text = text.to_string();
        // The indentation of a remedy stays.
        let indent = text.len() - text.trim_start().len();
        let line = format!("{LABEL}{:indent$}{}\n", "", one_line(&text));
        self.bytes(line.as_bytes())
    }

    pub(crate) fn finding(&mut self, finding: &Finding) -> Result<(), Problem> {
        finding.lines().try_for_each(|line| self.line(line))
    }

    pub(crate) fn json(&mut self, report: &impl Serialize) -> Result<(), Problem> {
        self.bytes(json(report)?.as_bytes())
    }

    /// Prints bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.0
            .write_all(bytes)
            .and_then(|()| self.0.flush())
            .map_err(|error| Problem::new(format!("the output cannot be written: {error}"), ""))
    }
}

/// A file of results. It keeps its old contents until the first result is there.
#[derive(Debug)]
pub(crate) struct ResultFile {
    path: PathBuf,
    file: File,
    has_begun: bool,
}

impl ResultFile {
    /// Opens it before the work begins, so that no results are lost.
    pub(crate) fn open(path: &Path) -> Result<Self, Problem> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| Self::problem(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            has_begun: false,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a part of the results.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Problem> {
        let emptied = if mem::replace(&mut self.has_begun, true) {
            Ok(())
        } else {
            self.file.set_len(0)
        };
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|error| Self::problem(&self.path, &error))
    }

    fn problem(path: &Path, error: &io::Error) -> Problem {
        Problem::new(
            format!(
                "the results cannot be written to {}: {error}",
                path.display()
            ),
            "Give the path of a new file with --out, in a directory with space",
        )
    }
}

/// A report as the text of a JSON file.
pub(crate) fn json(report: &impl Serialize) -> Result<String, Problem> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| Problem::new(format!("the report cannot be made: {error}"), ""))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_has_its_remedy_on_a_second_line() {
        let finding = Finding::bad("modules", "no rdma_ucm", "modprobe rdma_ucm");
        let lines: Vec<String> = finding.lines().collect();
        assert_eq!(
            lines,
            [
                "BAD     modules: no rdma_ucm",
                "        -> modprobe rdma_ucm"
            ]
        );
    }

    #[test]
    fn the_frame_of_a_report_is_beside_its_fields() -> serde_json::Result<()> {
        #[derive(Serialize)]
        struct Body {
            findings: Vec<Finding>,
        }
        let findings = vec![Finding::note("kernel", "6.1")];
        let value = serde_json::to_value(Report::new(Body { findings }))?;
        assert_eq!(value["version"], VERSION);
        assert_eq!(value["simulated"], cfg!(feature = "sim"));
        assert_eq!(value["findings"][0]["verdict"], "note");
        Ok(())
    }
}
