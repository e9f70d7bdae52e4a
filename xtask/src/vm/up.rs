//! `vm up`, `vm down`, and finding the machine that `vm up` left running.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Accel, Lifetime, Ssh, Vm};
use crate::guest::Guest;
use crate::host::Workspace;
use crate::progress::Step;

const STATE: &str = "state.json";

/// A machine that `vm up` started.
#[derive(Debug)]
struct Running {
    pid: Pid,
    port: u16,
    guest: PathBuf,
}

fn dir(workspace: &Workspace) -> Result<PathBuf> {
    workspace.state_dir("vm")
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
    })
}

/// The way into the machine of `vm up`.
pub(crate) fn attach(workspace: &Workspace) -> Result<Ssh> {
    match running(&dir(workspace)?) {
        Some(found) => Ok(Ssh::at(&found.guest, found.port)),
        None => bail!("no guest is up: start one with `cargo xtask vm up`"),
    }
}

/// The same, only if one runs and was made from this guest.
pub(crate) fn attach_to(guest: &Guest, workspace: &Workspace) -> Result<Option<Ssh>> {
    let found = running(&dir(workspace)?).filter(|running| running.guest == guest.dir());
    Ok(found.map(|found| Ssh::at(&found.guest, found.port)))
}

pub(crate) fn up(guest: &Guest, workspace: &Workspace) -> Result<()> {
    let dir = dir(workspace)?;
    if let Some(found) = running(&dir) {
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
    let state = json!({ "pid": vm.qemu.id(), "port": vm.port, "guest": guest.dir() });
    fs::write(dir.join(STATE), state.to_string())?;
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

/// Stops the machine. What its file systems have not written yet is written first, if it still
/// listens.
pub(crate) fn down(workspace: &Workspace) -> Result<()> {
    let dir = dir(workspace)?;
    let Some(found) = running(&dir) else {
        println!("No guest is up.");
        return Ok(());
    };
    let mut step = Step::start("stopping the guest");
    let ssh = Ssh::at(&found.guest, found.port);
    let mut sync = ssh.command(&["sync"], false);
    sync.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    step.wait(
        &mut sync.spawn().context("cannot start ssh")?,
        Some(Duration::from_secs(20)),
    )?;

    kill_process(found.pid, Signal::TERM)?;
    let started = Instant::now();
    while running(&dir).is_some() {
        if started.elapsed() > Duration::from_secs(10) {
            kill_process(found.pid, Signal::KILL)?;
        }
        if started.elapsed() > Duration::from_secs(20) {
            step.failed("");
            bail!("process {} does not end", found.pid.as_raw_nonzero());
        }
        step.tick();
        sleep(Duration::from_millis(50));
    }
    fs::remove_file(dir.join(STATE))?;
    step.done("");
    Ok(())
}
