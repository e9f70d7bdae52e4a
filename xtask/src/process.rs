//! Child processes: their output goes to a file, and every wait for them keeps its limit, if it has
//! one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Starts `command` with everything that it prints going to the file `log` (appended).
pub(crate) fn spawn_logged(command: &mut Command, log: &Path) -> Result<Child> {
    let file = File::options().create(true).append(true).open(log);
    let file = file.with_context(|| format!("cannot write the log {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    spawn(command)
}

pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    let child = command.spawn();
    child.with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))
}

/// Asks until there is an answer. `None`: no answer came within `limit`.
pub(crate) fn poll<T>(
    limit: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let started = Instant::now();
    loop {
        // A result that is there when the limit is over still counts.
        let late = started.elapsed() > limit;
        let answer = ask()?;
        if answer.is_some() || late {
            return Ok(answer);
        }
        sleep(Duration::from_millis(5));
    }
}

/// Waits for the end of `child`. `None`: it took longer than `limit` and was killed.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let status = poll(limit, || Ok(child.try_wait()?))?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(status)
}

/// Runs a command to its end, and returns its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}: {}", output.status, why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The contents of a log so far; empty if it cannot be read.
pub(crate) fn text(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

/// The last lines of a log, for an error message.
pub(crate) fn tail(log: &Path, lines: usize) -> String {
    let text = text(log);
    let all: Vec<_> = text.lines().map(|line| format!("    {line}")).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A program that runs, in the guest or here, while we look at its output. It is killed when this
/// value is dropped.
#[derive(Debug)]
pub(crate) struct Remote {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Remote {
    /// Starts `command`; all its output is written to the file `log`.
    pub(crate) fn start(name: &'static str, mut command: Command, log: PathBuf) -> Result<Self> {
        File::create(&log)?;
        let child = spawn_logged(&mut command, &log)?;
        Ok(Self { name, child, log })
    }

    /// The same, with an input: see [`feed`](Self::feed).
    pub(crate) fn start_fed(
        name: &'static str,
        mut command: Command,
        log: PathBuf,
    ) -> Result<Self> {
        let file = File::create(&log)?;
        command.stdin(Stdio::piped()).stdout(file.try_clone()?);
        let child = spawn(command.stderr(file))?;
        Ok(Self { name, child, log })
    }

    /// Gives it lines to read. No more than a pipe has room for, in all, if it may stand still.
    pub(crate) fn feed(&mut self, lines: &str) -> Result<()> {
        let input = self.child.stdin.as_mut();
        let fed = input.map(|input| input.write_all(lines.as_bytes()));
        let fed = fed.with_context(|| self.error("has no input"))?;
        fed.with_context(|| self.error("reads nothing more"))
    }

    /// The end of its input.
    pub(crate) fn end_input(&mut self) {
        self.child.stdin = None;
    }

    /// The lines that it has said so far.
    pub(crate) fn said(&self) -> Vec<String> {
        let text = text(&self.log);
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().map(str::to_owned).collect()
    }

    /// Waits for a line with `text` in it.
    pub(crate) fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let is_there = |said: &[String]| said.iter().any(|line| line.contains(text));
        self.wait_until(&format!("\"{text}\""), limit, is_there)
    }

    /// Waits until its lines have `what`.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        is_there: impl Fn(&[String]) -> bool,
    ) -> Result<()> {
        let said = poll(limit, || {
            let ended = self.child.try_wait()?;
            if is_there(&self.said()) {
                return Ok(Some(()));
            }
            match ended {
                Some(status) => {
                    bail!(self.error(&format!("ended ({status}) without saying {what}")))
                }
                None => Ok(None),
            }
        })?;
        said.with_context(|| self.error(&format!("did not say {what} in {} s", limit.as_secs())))
    }

    /// Waits until it has ended well.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<()> {
        match wait(&mut self.child, limit)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!(self.error(&format!("failed ({status})"))),
            None => bail!(self.error(&format!("did not end in {} s", limit.as_secs()))),
        }
    }

    fn error(&self, what: &str) -> String {
        let (log, end) = (self.log.display(), tail(&self.log, 10));
        format!("the {} {what}; the end of {log}:\n{end}", self.name)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn start(dir: &Path, script: &str) -> Remote {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Remote::start("program", command, dir.join("log")).unwrap()
    }

    #[test]
    fn a_program_is_waited_for_by_what_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut program = start(
            dir.path(),
            "echo one; echo two >&2; printf incomplete; sleep 100",
        );
        program.wait_for("two", LIMIT).unwrap();
        assert_eq!(program.said(), ["one", "two"]);
        let error = program.finish(Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
    }

    #[test]
    fn the_end_of_a_program_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let mut program = start(dir.path(), "echo one; exit 3");
        let text = program.wait_for("two", LIMIT).unwrap_err().to_string();
        assert!(text.contains("without saying \"two\""), "{text}");
        assert!(text.ends_with("    one"), "{text}");
        let text = program.finish(LIMIT).unwrap_err().to_string();
        assert!(text.contains("failed (exit status: 3)"), "{text}");
    }

    #[test]
    fn a_program_reads_what_it_is_fed() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("cat");
        command.arg("-");
        let mut program = Remote::start_fed("program", command, dir.path().join("log")).unwrap();
        program.feed("one\n").unwrap();
        program.wait_for("one", LIMIT).unwrap();
        program.feed("two\n").unwrap();
        program.end_input();
        program.finish(LIMIT).unwrap();
        assert_eq!(program.said(), ["one", "two"]);
        assert!(program.feed("three\n").is_err());
    }

    /// A server that waits for ever for a client that has failed would keep its port.
    #[test]
    fn a_program_ends_with_its_remote() {
        let dir = tempfile::tempdir().unwrap();
        let mut program = start(dir.path(), "echo pid $$; exec sleep 1000");
        program.wait_for("pid ", LIMIT).unwrap();
        let pid = program.said()[0].replace("pid ", "");
        assert!(Path::new("/proc").join(&pid).exists());
        drop(program);
        assert!(!Path::new("/proc").join(&pid).exists());
    }
}
