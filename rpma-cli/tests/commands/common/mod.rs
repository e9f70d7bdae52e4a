//! The program `rpma`, as a user runs it.

use std::error::Error;
use std::io;
use std::process::{Command, Stdio};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The end of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    /// 124 if it had to be ended.
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `rpma` with arguments, to its end.
pub(crate) fn rpma(args: &[&str]) -> io::Result<Ended> {
    let output = command(args).output()?;
    Ok(Ended {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into(),
        stderr: String::from_utf8_lossy(&output.stderr).into(),
    })
}

/// `rpma`, which is ended after a minute.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "60", env!("CARGO_BIN_EXE_rpma")])
        .args(args)
        .stdin(Stdio::null());
    command
}

impl Ended {
    /// The line of standard output with this text.
    pub(crate) fn line(&self, text: &str) -> io::Result<&str> {
        let mut lines = self.stdout.lines();
        let line = lines.find(|line| line.contains(text));
        line.ok_or_else(|| io::Error::other(format!("no line with {text:?}: {self:#?}")))
    }

    /// The remedy that follows the line with this text.
    pub(crate) fn remedy(&self, text: &str) -> io::Result<&str> {
        let mut lines = self.stdout.lines().skip_while(|line| !line.contains(text));
        let remedy = lines.nth(1).and_then(|line| line.split_once("-> "));
        let (_, remedy) = remedy
            .ok_or_else(|| io::Error::other(format!("no remedy after {text:?}: {self:#?}")))?;
        Ok(remedy)
    }
}
