//! `vm up`, `vm down`, and finding the machine that `vm up` left running.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Accel, Lifetime, Ssh, Vm};
use crate::guest::Guest;
use crate::host::Workspace;
use crate::process::{spawn_logged, wait};
use crate::progress::Step;

/// The command, and the directory of its files.
const NAME: &str = "vm";
const STATE: &str = "state.json";

/// A machine that `vm up` started.
#[derive(Debug)]
struct Running {
    pid: Pid,
    port: u16,
    guest: PathBuf,
    /// Whether it has booted.
    ready: bool,
}

fn dir(workspace: &Workspace) -> Result<PathBuf> {
    workspace.state_dir(NAME)
}

/// Records a machine that may outlive us; before it has booted, so that it is found whatever
/// happens to us meanwhile.
pub(super) fn record(dir: &Path, pid: u32, port: u16, guest: &Guest, ready: bool) -> Result<()> {
    let state = json!({ "pid": pid, "port": port, "guest": guest.dir(), "ready": ready });
    let path = dir.join(STATE);
    fs::write(&path, state.to_string()).with_context(|| format!("cannot write {}", path.display()))
}

/// The machine on record, if it still runs.
fn running(dir: &Path) -> Option<Running> {
    let state = fs::read(dir.join(STATE)).ok()?;
    let state: serde_json::Value = serde_json::from_slice(&state).ok()?;
    let raw = i32::try_from(state["pid"].as_i64()?).ok()?;
    // The number may belong to another process by now; ours has our files among its arguments.
    let arguments = fs::read(format!("/proc/{raw}/cmdline")).ok()?;
    let arguments = String::from_utf8_lossy(&arguments).into_owned();
    let ours = dir
        .join(super::CONSOLE)
        .display()
        .to_string()
        .replace(',', ",,");
    if !arguments.starts_with("qemu-system-") || !arguments.contains(&ours) {
        return None;
    }
    Some(Running {
        pid: Pid::from_raw(raw)?,
        port: u16::try_from(state["port"].as_u64()?).ok()?,
        guest: PathBuf::from(state["guest"].as_str()?),
        ready: state["ready"].as_bool() != Some(false),
    })
}

/// The way into the machine of `vm up`.
pub(crate) fn attach(workspace: &Workspace) -> Result<Ssh> {
    match running(&dir(workspace)?).filter(|running| running.ready) {
        Some(found) => Ok(Ssh::at(&found.guest, found.port)),
        None => bail!("no guest is up: start one with `cargo xtask vm up`"),
    }
}

/// The same, only if one runs and was made from this guest.
pub(crate) fn attach_to(guest: &Guest, workspace: &Workspace) -> Result<Option<Ssh>> {
    let found =
        running(&dir(workspace)?).filter(|running| running.ready && running.guest == guest.dir());
    Ok(found.map(|found| Ssh::at(&found.guest, found.port)))
}

pub(crate) fn up(guest: &Guest, workspace: &Workspace) -> Result<()> {
    let (dir, _lock) = workspace.own_dir(NAME)?;
    let mut found = running(&dir);
    if let Some(dead) = found.take_if(|found| !found.ready) {
        println!("An earlier start was interrupted: starting again.");
        stop(&dir, &dead)?;
    }
    if let Some(found) = found {
        let pid = found.pid.as_raw_nonzero();
        if found.guest != guest.dir() {
            bail!(
                "the guest that is up (process {pid}) was made from another recipe; stop it with \
                 `cargo xtask vm down` and start it again"
            );
        }
        println!("The guest is up already (process {pid}).");
        return Ok(());
    }
    let vm = Vm::boot(guest, workspace, &dir, Lifetime::Detached, "boot")?;
    record(&dir, vm.qemu.id(), vm.port, guest, true)?;
    println!(
        "The guest is up (process {}{}). The clone is at /src, read-only.\n  \
         cargo xtask vm exec -- CMD…   cargo xtask vm shell   cargo xtask vm down",
        vm.qemu.id(),
        if vm.accel == Accel::Tcg {
            ", emulated"
        } else {
            ""
        },
    );
    Ok(())
}

/// Stops the machine, if one runs.
pub(crate) fn down(workspace: &Workspace) -> Result<()> {
    let (dir, _lock) = workspace.own_dir(NAME)?;
    match running(&dir) {
        Some(found) => stop(&dir, &found),
        None => {
            println!("No guest is up.");
            Ok(())
        }
    }
}

/// Ends the process. What the machine's file systems have not written yet is written first, if it
/// still listens.
fn stop(dir: &Path, found: &Running) -> Result<()> {
    let step = Step::start("stopping the guest");
    if found.ready {
        let mut sync = Ssh::at(&found.guest, found.port).command(&["sync"], false);
        let mut sync = spawn_logged(&mut sync, &dir.join("sync.log"))?;
        wait(&mut sync, Duration::from_secs(20))?;
    }
    let started = Instant::now();
    let mut signal = Signal::TERM;
    // It is looked up each time: the number could be somebody else's once ours has ended.
    while running(dir).is_some() {
        if started.elapsed() > Duration::from_secs(20) {
            step.failed("");
            bail!("process {} does not end", found.pid.as_raw_nonzero());
        }
        kill_process(found.pid, signal)?;
        if started.elapsed() > Duration::from_secs(10) {
            signal = Signal::KILL;
        }
        sleep(Duration::from_millis(50));
    }
    fs::remove_file(dir.join(STATE))?;
    step.done("");
    Ok(())
}
