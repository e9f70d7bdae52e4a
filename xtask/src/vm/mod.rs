//! The guest as a running machine: a QEMU process with two NVDIMMs, soft-RoCE and a way in by ssh.
//!
//! The NVDIMMs are files that outlive the machine, so that [`Machines::cut`] and a second
//! [`Machines::boot`] show the data that survives. The root disk is the guest's image; writes to it
//! are thrown away.
//!
//! Two machines may have a link of their own, as two hosts have: each listens on a socket, and the
//! one that boots later joins the other's. So either may lose its power and boot again. Three have
//! a multicast group of this host's loopback: with sockets, one of them would have to pass on the
//! packets of the others, and its power may be cut.

mod boot;
mod ssh;
mod up;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

pub(crate) use ssh::Ssh;
pub(crate) use up::{attach_to, boot, down, up};

use crate::host::Workspace;
use crate::process::{output, poll, spawn_logged, tail, wait};
use crate::progress::Step;

/// Machines are numbered: a single one is 1. These are two with a link.
pub(crate) const NUMBERS: [u8; 2] = [1, 2];
/// The numbers of all that there may be.
const ALL: [u8; 3] = [1, 2, 3];
/// The NVDIMMs: device-DAX, and fsdax with a file system. Each of several linked machines has two
/// more, without a namespace.
const NVDIMMS: [&str; 4] = ["nvdimm0.img", "nvdimm1.img", "nvdimm2.img", "nvdimm3.img"];

fn nvdimms(linked: bool) -> &'static [&'static str] {
    if linked { &NVDIMMS } else { &NVDIMMS[..2] }
}

/// For the first packet between two machines that have booted.
const LINK_LIMIT: Duration = Duration::from_secs(60);
/// The console output of the machine, in its directory.
const CONSOLE: &str = "console.log";
/// And its output before the last boot.
const CONSOLE_BEFORE: &str = "console-before.log";
const STATE: &str = "state.json";

/// The machines of one command: one, or two or three with a link.
#[derive(Debug)]
pub(crate) struct Machines<'a> {
    workspace: &'a Workspace,
    /// With one for each machine, and the sockets of the link.
    dir: PathBuf,
    /// They end on request, and not with this program.
    detached: bool,
    /// Their clocks count instructions.
    counted: bool,
}

/// A machine on record.
#[derive(Debug, Serialize, Deserialize)]
struct Running {
    pid: i32,
    #[serde(flatten)]
    ssh: Ssh,
    /// Whether it has booted.
    ready: bool,
    /// Missing in a record of an earlier version.
    #[serde(default)]
    link: Link,
}

/// The link of a machine to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Link {
    #[default]
    None,
    /// Between two.
    Pair,
    /// Between three, which send to a multicast group of this port.
    Group(u16),
}

impl Link {
    fn is_there(self) -> bool {
        self != Self::None
    }

    /// How many machines it has.
    fn peers(self) -> u8 {
        match self {
            Self::None => 1,
            Self::Pair => 2,
            Self::Group(_) => 3,
        }
    }

    fn group(self) -> Option<u16> {
        match self {
            Self::Group(port) => Some(port),
            _ => None,
        }
    }
}

impl<'a> Machines<'a> {
    /// Those of `vm up`.
    pub(crate) fn of_up(workspace: &'a Workspace) -> Result<Self> {
        Ok(Self {
            workspace,
            dir: workspace.state_dir(up::NAME)?,
            detached: true,
            counted: false,
        })
    }

    /// Machines that end with this program, however that ends.
    pub(crate) fn ours(workspace: &'a Workspace, dir: PathBuf) -> Self {
        Self {
            workspace,
            dir,
            detached: false,
            counted: false,
        }
    }

    /// From now on a machine that is booted has one processor, and a clock that advances by a
    /// nanosecond with each of its instructions and jumps while the processor is idle. So
    /// measurements with it are the same under any load of this host.
    pub(crate) fn count_instructions(&mut self) {
        self.counted = true;
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.counted
    }

    fn dir(&self, number: u8) -> PathBuf {
        self.dir.join(number.to_string())
    }

    pub(crate) fn console(&self, number: u8) -> PathBuf {
        self.dir(number).join(CONSOLE)
    }

    /// Records a machine before it has booted, so that it is found even if this program dies
    /// meanwhile.
    fn record(&self, number: u8, running: &Running) -> Result<()> {
        let path = self.dir(number).join(STATE);
        let written = fs::write(&path, serde_json::to_vec(running)?);
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// The machine on record, if it still runs.
    fn running(&self, number: u8) -> Option<Running> {
        let state = fs::read(self.dir(number).join(STATE)).ok()?;
        let found: Running = serde_json::from_slice(&state).ok()?;
        // The number may belong to another process by now; ours has our files among its arguments.
        let arguments = fs::read(format!("/proc/{}/cmdline", found.pid)).ok()?;
        let arguments = String::from_utf8_lossy(&arguments);
        let ours = arguments.starts_with("qemu-system-")
            && arguments.contains(&in_option(&self.console(number)));
        ours.then_some(found)
    }

    pub(crate) fn is_up(&self, number: u8) -> bool {
        self.running(number).is_some()
    }

    /// A machine that has booted.
    fn booted(&self, number: u8) -> Result<Running> {
        let found = self.running(number).filter(|running| running.ready);
        found.with_context(|| match number {
            _ if !self.detached => format!("host {number} is not up"),
            1 => "no guest is up: start one with `cargo xtask vm up`".to_owned(),
            _ => format!(
                "guest {number} is not up: start it with `cargo xtask vm up --peers {number}`, or after a cut of its \
                 power with `cargo xtask vm boot {number}`"
            ),
        })
    }

    /// The way into a machine.
    pub(crate) fn ssh(&self, number: u8) -> Result<Ssh> {
        Ok(self.booted(number)?.ssh)
    }

    /// Stops a machine, or lets it go on. Its peer sees packets that are not answered. Its clock
    /// goes on. A full socket of the link can block the peer as well, until the machine goes on.
    pub(crate) fn signal(&self, number: u8, signal: Signal) -> Result<()> {
        self.booted(number)?.signal(signal)
    }

    /// The machine's power cut: QEMU ends at this instruction.
    pub(crate) fn cut(&self, number: u8) -> Result<()> {
        self.signal(number, Signal::KILL)?;
        if !self.has_ended(number)? {
            bail!("QEMU does not die");
        }
        Ok(())
    }

    /// Ends a machine. Its file systems write their data first, if it still answers.
    fn stop(&self, number: u8, found: &Running) -> Result<()> {
        let step = Step::start("stopping the guest");
        // It may be frozen.
        found.signal(Signal::CONT)?;
        if found.ready {
            let mut sync = found.ssh.command(&["sync"], false);
            let mut sync = spawn_logged(&mut sync, &self.dir(number).join("sync.log"))?;
            wait(&mut sync, Duration::from_secs(20))?;
        }
        for signal in [Signal::TERM, Signal::KILL] {
            // It is looked up each time: the number could be another process's once ours has ended.
            if let Some(found) = self.running(number) {
                found.signal(signal)?;
            }
            if self.has_ended(number)? {
                step.done("");
                return Ok(());
            }
        }
        step.failed("");
        bail!("process {} does not end", found.pid);
    }

    fn has_ended(&self, number: u8) -> Result<bool> {
        let limit = Duration::from_secs(10);
        let ended = poll(limit, || Ok((!self.is_up(number)).then_some(())))?;
        Ok(ended.is_some())
    }

    /// Spoils the packets that a machine sends to its peer: "loss 1%", or "off".
    pub(crate) fn net(&self, number: u8, how: &str) -> Result<()> {
        output(&mut self.ssh(number)?.command(&netem(how), false)).map(drop)
    }

    /// Waits until a packet and its answer have gone over the link, if both machines are up. So a
    /// test does not take a link that is not there for a fault of its own.
    pub(crate) fn wait_link(&self) -> Result<()> {
        if !NUMBERS.iter().all(|number| self.is_up(*number)) {
            return Ok(());
        }
        let (ssh, log) = (self.ssh(1)?, self.dir(1).join("link.log"));
        let ping = ["busybox", "ping", "-c", "1", "-W", "2", "10.77.0.2"];
        let answered = poll(LINK_LIMIT, || {
            let mut ping = spawn_logged(&mut ssh.command(&ping, false), &log)?;
            let status = wait(&mut ping, LINK_LIMIT)?;
            Ok(status.filter(|status| status.success()).map(drop))
        })?;
        answered.with_context(|| {
            let (limit, end) = (LINK_LIMIT.as_secs(), tail(&log, 3));
            format!("no packet came back from guest 2 to guest 1 within {limit} s:\n{end}")
        })
    }

    /// Deletes the NVDIMMs of an earlier machine.
    pub(crate) fn forget_memory(&self, number: u8) -> Result<()> {
        for nvdimm in NVDIMMS {
            let path = self.dir(number).join(nvdimm);
            if path.exists() {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

impl Drop for Machines<'_> {
    fn drop(&mut self) {
        if !self.detached {
            for number in ALL {
                let _ = self.cut(number);
            }
        }
    }
}

impl Running {
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("no process")?;
        Ok(kill_process(pid, signal)?)
    }
}

/// The command that spoils the packets that a machine sends to its peer: "off", or arguments of
/// netem. It changes the queueing discipline that init.sh has made, and ends an earlier fault.
pub(crate) fn netem(how: &str) -> Vec<String> {
    // netem keeps an option that is not named.
    let none = "delay 0ms 0ms 0% duplicate 0% 0% reorder 0% 0% corrupt 0% 0% rate 0";
    let how = if how == "off" { "" } else { how };
    let command = format!("tc qdisc change dev roce0 root netem limit 100000 {none} {how}");
    command.split_whitespace().map(str::to_owned).collect()
}

/// A path as a part of an option of QEMU.
fn in_option(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::netem;

    /// A discipline that is replaced or deleted ends the connection manager of soft-RoCE: see
    /// docs/failures.md.
    #[test]
    fn the_queueing_discipline_is_only_changed() {
        for how in ["loss 1%", "delay 10ms", "off"] {
            assert_eq!(netem(how)[..3], ["tc", "qdisc", "change"]);
        }
    }
}
