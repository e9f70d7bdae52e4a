//! What a person sees while something takes long: one line per step, with its duration.
//!
//! On a terminal the line of a running step is alive; elsewhere (CI, a pipe) a long step says every
//! 30 seconds that it goes on. The output of the step itself goes to a log file.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a running step is looked at.
const POLL: Duration = Duration::from_millis(50);
const HEARTBEAT: Duration = Duration::from_secs(30);

/// A step that is running. Whoever starts one ends it with
/// [`Step::done`], [`Step::failed`] or [`Step::gave_up`].
#[derive(Debug)]
pub(crate) struct Step {
    name: String,
    started: Instant,
    next_beat: Duration,
    terminal: bool,
}

impl Step {
    pub(crate) fn start(name: impl Into<String>) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let next_beat = if terminal { Duration::ZERO } else { HEARTBEAT };
        let mut step = Self {
            name: name.into(),
            started: Instant::now(),
            next_beat,
            terminal,
        };
        step.tick();
        step
    }

    /// Gives a sign of life when one is due. Call it often.
    pub(crate) fn tick(&mut self) {
        let elapsed = self.started.elapsed();
        if elapsed < self.next_beat {
            return;
        }
        if self.terminal {
            print!("\r  ..   {} ({} s)\x1b[K", self.name, elapsed.as_secs());
            self.next_beat = elapsed + Duration::from_secs(1);
            let _ = std::io::stdout().flush();
        } else {
            println!("  ..   {} ({} s)", self.name, elapsed.as_secs());
            self.next_beat = elapsed + HEARTBEAT;
        }
    }

    pub(crate) fn done(self, note: &str) {
        self.end("ok", note);
    }

    pub(crate) fn failed(self, note: &str) {
        self.end("FAIL", note);
    }

    /// It did not work, and there is another way.
    pub(crate) fn gave_up(self, note: &str) {
        self.end("no", note);
    }

    fn end(self, verdict: &str, note: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let note = if note.is_empty() {
            String::new()
        } else {
            format!("{note}, ")
        };
        let seconds = self.started.elapsed().as_secs_f64();
        println!("{clear}  {verdict:<4} {} ({note}{seconds:.1} s)", self.name);
    }

    /// Waits for `child` with signs of life. `None`: it took longer than `limit` and was killed.
    pub(crate) fn wait(
        &mut self,
        child: &mut Child,
        limit: Option<Duration>,
    ) -> Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if limit.is_some_and(|limit| started.elapsed() > limit) {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            self.tick();
            sleep(POLL);
        }
    }
}

/// Starts `command` with everything that it prints going to the file `log` (appended), or its
/// standard output to a file of its own.
pub(crate) fn spawn_logged(command: &mut Command, log: &Path, out: Option<&Path>) -> Result<Child> {
    let err = File::options().create(true).append(true).open(log);
    let err = err.with_context(|| format!("cannot write the log {}", log.display()))?;
    let out = match out {
        Some(path) => File::create(path)?,
        None => err.try_clone()?,
    };
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let program = command.get_program().to_owned();
    command
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// Runs a command as one step that has to succeed. The error quotes the end of the log.
pub(crate) fn run_step(name: &str, command: &mut Command, log: &Path) -> Result<()> {
    let mut step = Step::start(name);
    let mut child = spawn_logged(command, log, None)?;
    match step.wait(&mut child, None)? {
        Some(status) if status.success() => {
            step.done("");
            Ok(())
        }
        status => {
            step.failed("");
            let status = status.map_or_else(|| "killed".to_owned(), |status| status.to_string());
            bail!(
                "{name}: {status}; the end of {}:\n{}",
                log.display(),
                tail(log, 15)
            );
        }
    }
}

/// The last lines of a file, for an error message; never fails.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().map(str::trim_end).collect();
    let last = &all[all.len().saturating_sub(lines)..];
    last.iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}
