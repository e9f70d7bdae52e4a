//! A program that runs, in the guest or here, while we read what it says line by line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::progress::tail;

/// A running program. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Remote {
    name: String,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    log: std::path::PathBuf,
}

impl Remote {
    /// Starts `command`, whose standard output is read; all that it says is written to the file `log`.
    pub(crate) fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file.try_clone()?);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        let (sender, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            read_lines(out, sender, file);
        }
        let (name, log) = (name.to_owned(), log.to_owned());
        Ok(Self {
            name,
            child,
            lines,
            seen: Vec::new(),
            log,
        })
    }

    /// What it has said so far, as far as it has been waited for.
    pub(crate) fn seen(&self) -> &[String] {
        &self.seen
    }

    /// Waits for a line that starts with `prefix`; returns the rest of it.
    pub(crate) fn wait_for(&mut self, prefix: &str, limit: Duration) -> Result<String> {
        let started = Instant::now();
        loop {
            match self
                .lines
                .recv_timeout(limit.saturating_sub(started.elapsed()))
            {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    return Err(
                        self.error(&format!("ended ({status}) without saying \"{prefix}\""))
                    );
                }
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = limit.as_secs();
                    return Err(self.error(&format!("did not say \"{prefix}\" in {seconds} s")));
                }
            }
        }
    }

    /// Takes in what has arrived, without waiting.
    pub(crate) fn catch_up(&mut self) {
        self.seen.extend(self.lines.try_iter());
    }

    /// Waits until it has ended well.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            match self
                .lines
                .recv_timeout(limit.saturating_sub(started.elapsed()))
            {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.error(&format!("did not end in {} s", limit.as_secs())));
                }
            }
        }
        let status: ExitStatus = self.child.wait()?;
        if !status.success() {
            return Err(self.error(&format!("failed ({status})")));
        }
        Ok(())
    }

    /// Fails if it has ended.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(self.error(&format!("ended early ({status})"))),
        }
    }

    fn error(&self, what: &str) -> anyhow::Error {
        let (name, log) = (&self.name, &self.log);
        anyhow!(
            "the {name} {what}; the end of {}:\n{}",
            log.display(),
            tail(log, 10)
        )
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(stream: impl Read + Send + 'static, sender: Sender<String>, mut log: File) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let _ = writeln!(log, "{line}");
            if sender.send(line).is_err() {
                break;
            }
        }
    });
}
