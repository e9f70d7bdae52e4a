//! The output of all commands: findings, the frame of a report, lines of text and JSON.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::{Form, Format};
use crate::problem::{Problem, Result, one_line};

/// The version of the JSON. It changes if a field goes or gets another meaning.
pub(crate) const VERSION: u32 = 1;

/// The first line of all text.
pub(crate) const HEAD: &str = if cfg!(feature = "sim") {
    "simulated: the results are about no real device\n"
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

impl Outcome {
    pub(crate) fn of(is_good: bool) -> Self {
        if is_good { Self::Good } else { Self::Bad }
    }
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
    /// The words have names and addresses, and a report may be published.
    #[serde(skip)]
    pub(crate) found: String,
    #[serde(skip)]
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

    /// One of several devices that does its work is enough: the others are spare.
    pub(crate) fn of_devices(mut findings: Vec<Self>) -> Vec<Self> {
        let is_bad = |finding: &Self| finding.verdict == Verdict::Bad;
        if !findings.iter().all(is_bad) {
            let bad = findings.iter_mut().filter(|finding| is_bad(finding));
            bad.for_each(|finding| finding.verdict = Verdict::Note);
        }
        findings
    }

    /// One line, and a second one with the remedy.
    pub(crate) fn lines(&self) -> Vec<String> {
        let first = format!("{:<6}  {}: {}", self.verdict.word(), self.check, self.found);
        let second = self
            .remedy
            .iter()
            .map(|remedy| format!("        -> {remedy}"));
        [first].into_iter().chain(second).collect()
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
pub(crate) struct Output {
    place: Box<dyn Write + Send>,
    /// Whether the text has its first line.
    has_head: bool,
}

impl Output {
    pub(crate) fn stdout() -> Self {
        Self::to(io::stdout())
    }

    pub(crate) fn to(place: impl Write + Send + 'static) -> Self {
        Self {
            place: Box::new(place),
            has_head: HEAD.is_empty(),
        }
    }

    /// Prints one line of text. The first one has the head above it.
    pub(crate) fn line(&mut self, text: impl Display) -> Result {
        if !mem::replace(&mut self.has_head, true) {
            self.bytes(HEAD.as_bytes())?;
        }
        let text = text.to_string();
        // The indentation of a remedy stays.
        let indent = text.len() - text.trim_start().len();
        let line = format!("{:indent$}{}\n", "", one_line(&text));
        self.bytes(line.as_bytes())
    }

    pub(crate) fn finding(&mut self, finding: &Finding) -> Result {
        finding.lines().iter().try_for_each(|line| self.line(line))
    }

    /// Ends with a report: as JSON, its rows as CSV, or nothing after its text. The file has the
    /// JSON.
    pub(crate) fn report<T: Serialize>(
        &mut self,
        form: &Form,
        file: Option<ResultFile>,
        body: T,
        rows: &[impl Serialize],
    ) -> Result {
        let json = serde_json::to_string_pretty(&Report::new(body));
        let json = json.map_err(unwritten)?;
        match form.format {
            Format::Text => {}
            Format::Json => self.bytes(format!("{json}\n").as_bytes())?,
            Format::Csv => self.csv(rows)?,
        }
        file.map_or(Ok(()), |mut file| file.write(&(json + "\n")))
    }

    /// Prints rows of CSV. Those of a type with names of fields have a head.
    pub(crate) fn csv(&mut self, rows: &[impl Serialize]) -> Result {
        let mut bytes = Vec::new();
        let mut csv = csv::Writer::from_writer(&mut bytes);
        let written = rows.iter().try_for_each(|row| csv.serialize(row));
        let written = written.and_then(|()| Ok(csv.flush()?));
        drop(csv);
        written.map_err(unwritten)?;
        self.bytes(&bytes)
    }

    /// Prints bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result {
        let written = self.place.write_all(bytes);
        written.and_then(|()| self.place.flush()).map_err(unwritten)
    }
}

/// The problem of results that cannot be written.
pub(crate) fn unwritten(error: impl Into<io::Error>) -> Problem {
    let error = error.into();
    match error.kind() {
        io::ErrorKind::BrokenPipe => Problem::closed_pipe(),
        _ => Problem::new(format!("the output cannot be written: {error}"), ""),
    }
}

/// Prints a line for people, beside the results. An error output that is gone is no reason to end.
pub(crate) fn error_line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A file of results. It keeps its old contents until the first result is there.
#[derive(Debug)]
pub(crate) struct ResultFile {
    path: PathBuf,
    file: File,
    has_begun: bool,
}

impl ResultFile {
    /// The file of a form, if it has one.
    pub(crate) fn of(form: &Form) -> Result<Option<Self>> {
        form.out.as_deref().map(Self::open).transpose()
    }

    /// Opens it before the work begins, so that no results are lost.
    pub(crate) fn open(path: &Path) -> Result<Self> {
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
    pub(crate) fn write(&mut self, text: &str) -> Result {
        if !mem::replace(&mut self.has_begun, true) {
            // A pipe or a device has no length, and a file that cannot be written has an error below.
            let _ = self.file.set_len(0);
        }
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| Self::problem(&self.path, &error))
    }

    fn problem(path: &Path, error: &io::Error) -> Problem {
        let what = format!(
            "the results cannot be written to {}: {error}",
            path.display()
        );
        let remedy = "Give the path of a new file with --out, in a directory with space";
        Problem::new(what, remedy)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_finding_has_its_remedy_on_a_second_line() {
        let finding = Finding::bad("modules", "no rdma_ucm", "modprobe rdma_ucm");
        let lines = finding.lines();
        assert_eq!(
            lines,
            [
                "BAD     modules: no rdma_ucm",
                "        -> modprobe rdma_ucm"
            ]
        );
    }

    #[test]
    fn a_bad_spare_device_is_a_note() {
        let (good, bad) = (Finding::good("a", ""), Finding::bad("b", "", ""));
        let verdicts = |findings: &[&Finding]| -> Vec<Verdict> {
            let findings = findings.iter().map(|finding| (*finding).clone());
            let findings = Finding::of_devices(findings.collect());
            findings.iter().map(|finding| finding.verdict).collect()
        };
        assert_eq!(verdicts(&[&good, &bad]), [Verdict::Good, Verdict::Note]);
        assert_eq!(verdicts(&[&bad, &bad]), [Verdict::Bad; 2]);
    }

    /// Writes a file at once.
    fn replace(place: &Path, text: &str) -> Result {
        ResultFile::open(place)?.write(text)
    }

    #[test]
    fn an_old_file_keeps_its_text_until_the_first_result() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let place = folder.path().join("report.html");
        fs::write(&place, "older text")?;
        let mut file = ResultFile::open(&place).expect("it is opened");
        assert_eq!(fs::read_to_string(&place)?, "older text");
        file.write("new").expect("it is written");
        assert_eq!(fs::read_to_string(&place)?, "new");
        Ok(())
    }

    #[test]
    fn a_link_stays_and_its_file_is_replaced_with_its_rights() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        fs::write(&file, "old")?;
        fs::set_permissions(&file, Permissions::from_mode(0o640))?;
        symlink("file", &link)?;
        replace(&link, "new").expect("it can be written");
        assert!(fs::symlink_metadata(&link)?.is_symlink());
        assert_eq!(fs::read_to_string(&file)?, "new");
        assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o640);
        Ok(())
    }

    #[test]
    fn a_full_disk_a_directory_and_an_absent_folder_are_problems() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let inside = folder.path().join("absent/report.html");
        for place in [Path::new("/dev/full"), folder.path(), &inside] {
            let problem = replace(place, "text").expect_err("no space").to_string();
            assert!(problem.contains(&place.display().to_string()), "{problem}");
            assert!(problem.contains("Give the path of a new file"), "{problem}");
        }
        assert_eq!(fs::read_dir(folder.path())?.count(), 0);
        Ok(())
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
