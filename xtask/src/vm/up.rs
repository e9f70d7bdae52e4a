//! `vm up`, `vm down`, and what is done to the machines that `vm up` left running.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Boot, Hosts, Lifetime, Peer, Ssh, Vm};
use crate::guest::Guest;
use crate::host::Workspace;
use crate::process::{spawn_logged, wait};
use crate::progress::Step;

/// The command, and the directory of its files, with one for each machine.
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
    /// Whether it is one of two on a link.
    linked: bool,
}

fn dir(workspace: &Workspace, number: u8) -> Result<PathBuf> {
    workspace.state_dir(&format!("{NAME}/{number}"))
}

/// Records a machine that may outlive us; before it has booted, so that it is found whatever
/// happens to us meanwhile.
pub(super) fn record(boot: &Boot<'_>, vm: &Vm, ready: bool) -> Result<()> {
    let state = json!({
        "pid": vm.qemu.id(), "port": vm.port, "guest": boot.guest.dir(), "ready": ready,
        "linked": boot.peer.is_some(),
    });
    let path = boot.dir.join(STATE);
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
    let console = dir.join(super::CONSOLE).display().to_string();
    let ours = console.replace(',', ",,");
    if !arguments.starts_with("qemu-system-") || !arguments.contains(&ours) {
        return None;
    }
    Some(Running {
        pid: Pid::from_raw(raw)?,
        port: u16::try_from(state["port"].as_u64()?).ok()?,
        guest: PathBuf::from(state["guest"].as_str()?),
        ready: state["ready"] == true,
        linked: state["linked"] == true,
    })
}

/// A machine that has booted.
fn booted(workspace: &Workspace, number: u8) -> Result<Running> {
    let found = running(&dir(workspace, number)?).filter(|running| running.ready);
    found.with_context(|| match number {
        1 => "no guest is up: start one with `cargo xtask vm up`".to_owned(),
        _ => format!("guest {number} is not up: start two with `cargo xtask vm up --peers 2`"),
    })
}

/// The way into a machine of `vm up`.
pub(crate) fn attach(workspace: &Workspace, number: u8) -> Result<Ssh> {
    let found = booted(workspace, number)?;
    Ok(Ssh::at(&found.guest, found.port))
}

/// The way into the machine of `vm up`, only if it is alone and was made from this guest.
pub(crate) fn attach_to(guest: &Guest, workspace: &Workspace) -> Result<Option<Ssh>> {
    let found = running(&dir(workspace, 1)?);
    let found = found.filter(|found| found.ready && !found.linked && found.guest == guest.dir());
    Ok(found.map(|found| Ssh::at(&found.guest, found.port)))
}

/// Starts one machine, or two with a link.
pub(crate) fn up(guest: &Guest, workspace: &Workspace, peers: u8) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let linked = peers == 2;
    for number in Hosts::NUMBERS {
        let dir = dir(workspace, number)?;
        let mut found = running(&dir);
        if let Some(dead) = found.take_if(|found| !found.ready) {
            println!("An earlier start was interrupted: starting again.");
            stop(&dir, &dead)?;
        }
        let Some(found) = found else { continue };
        if found.guest != guest.dir() || found.linked != linked {
            bail!(
                "guest {number} is up (process {}) and another one: stop it with `cargo xtask vm down`",
                found.pid.as_raw_nonzero()
            );
        }
    }
    for number in 1..=peers {
        match running(&dir(workspace, number)?) {
            Some(found) => {
                let pid = found.pid.as_raw_nonzero();
                println!("Guest {number} is up already (process {pid}).");
            }
            None => start(guest, workspace, number, linked)?,
        }
    }
    println!(
        "The clone is at /src, read-only.\n  \
         cargo xtask vm exec -- CMD…   cargo xtask vm shell   cargo xtask vm down"
    );
    if linked {
        println!(
            "Guest 1 has the address 10.77.0.1, guest 2 10.77.0.2.\n  \
             cargo xtask vm exec --peer 2 -- CMD…   cargo xtask vm freeze|thaw|cut|boot 2   \
             cargo xtask vm net 2 loss 1%"
        );
    }
    Ok(())
}

fn start(guest: &Guest, workspace: &Workspace, number: u8, linked: bool) -> Result<()> {
    let join = linked && running(&dir(workspace, 3 - number)?).is_some();
    let boot = Boot {
        guest,
        workspace,
        dir: &dir(workspace, number)?,
        lifetime: Lifetime::Detached,
        peer: linked.then_some(Peer { number, join }),
    };
    let vm = boot.boot(&format!("boot guest {number}"))?;
    record(&boot, &vm, true)
}

/// Boots a machine of two that has lost its power.
pub(crate) fn boot(guest: &Guest, workspace: &Workspace, number: u8) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    if running(&dir(workspace, number)?).is_some() {
        bail!("guest {number} is up");
    }
    if !booted(workspace, 3 - number)?.linked {
        bail!("the other guest is alone: start two with `cargo xtask vm up --peers 2`");
    }
    start(guest, workspace, number, true)
}

/// Stops a machine with everything in it, lets it go on, or cuts its power.
pub(crate) fn signal(workspace: &Workspace, number: u8, signal: Signal) -> Result<()> {
    Ok(kill_process(booted(workspace, number)?.pid, signal)?)
}

/// Stops the machines that run.
pub(crate) fn down(workspace: &Workspace) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let mut none = true;
    for number in Hosts::NUMBERS {
        let dir = dir(workspace, number)?;
        if let Some(found) = running(&dir) {
            stop(&dir, &found)?;
            none = false;
        }
    }
    if none {
        println!("No guest is up.");
    }
    Ok(())
}

/// Ends the process. What the machine's file systems have not written yet is written first, if it
/// still listens.
fn stop(dir: &Path, found: &Running) -> Result<()> {
    let step = Step::start("stopping the guest");
    // It may be frozen.
    kill_process(found.pid, Signal::CONT)?;
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
