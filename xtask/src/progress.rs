//! The display while a step takes long: one line per step, with its duration.

use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::process::{spawn_logged, tail};

/// The steps that are running: two where something runs beside the guest.
static STEPS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// The steps that have ended, with their times.
static TIMES: Mutex<Vec<(String, Duration)>> = Mutex::new(Vec::new());

/// The steps that have ended so far, with their times.
pub(crate) fn times() -> Vec<(String, Duration)> {
    let times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    times.clone()
}

/// A step that is running. The code that starts one ends it with [`Step::done`], [`Step::failed`]
/// or [`Step::gave_up`].
#[derive(Debug)]
pub(crate) struct Step {
    name: String,
    /// Seen on a terminal only.
    spinner: ProgressBar,
}

impl Step {
    pub(crate) fn start(name: impl Into<String>) -> Self {
        let name = name.into();
        let style = ProgressStyle::with_template("  ..   {msg} ({elapsed})");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let spinner = ProgressBar::new_spinner()
            .with_style(style)
            .with_message(name.clone());
        let spinner = STEPS.add(spinner);
        spinner.enable_steady_tick(Duration::from_secs(1));
        Self { name, spinner }
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
        self.spinner.finish_and_clear();
        STEPS.remove(&self.spinner);
        let comma = if note.is_empty() { "" } else { ", " };
        let (name, time) = (&self.name, self.spinner.elapsed());
        let seconds = time.as_secs_f64();
        let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
        times.push((name.clone(), time));
        drop(times);
        STEPS.suspend(|| println!("  {verdict:<4} {name} ({note}{comma}{seconds:.1} s)"));
    }
}

/// Prints a line of its own, even while a step is shown.
pub(crate) fn say(line: &str) {
    STEPS.suspend(|| println!("{line}"));
}

/// Runs a command as one step that has to succeed. Its output goes to the file `log`, and the error
/// quotes its end.
pub(crate) fn run_step(name: &str, command: &mut Command, log: &Path) -> Result<()> {
    let step = Step::start(name);
    let status = spawn_logged(command, log)?.wait()?;
    if !status.success() {
        step.failed("");
        let (log, end) = (log.display(), tail(log, 15));
        bail!("{name}: {status}; the end of {log}:\n{end}");
    }
    step.done("");
    Ok(())
}
