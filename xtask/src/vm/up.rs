//! `vm up`, `vm down`, and `vm boot`: machines that are left running.

use anyhow::{Result, bail};

use super::{Machines, NUMBERS, Ssh};
use crate::guest::Guest;
use crate::host::Workspace;

/// The command, and the directory of its files.
pub(super) const NAME: &str = "vm";

/// The way into the machine of `vm up`, only if it is alone and was made from this guest.
pub(crate) fn attach_to(guest: &Guest, workspace: &Workspace) -> Result<Option<Ssh>> {
    let found = Machines::of_up(workspace)?.running(1);
    let found = found.filter(|found| found.ready && !found.linked && found.ssh.guest == guest.dir);
    Ok(found.map(|found| found.ssh))
}

/// Starts one machine, or two with a link.
pub(crate) fn up(guest: &Guest, workspace: &Workspace, peers: u8) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let machines = Machines::of_up(workspace)?;
    let linked = peers == 2;
    for number in NUMBERS {
        let Some(found) = machines.running(number) else {
            continue;
        };
        if !found.ready {
            println!("An earlier start was interrupted: starting again.");
            machines.stop(number, &found)?;
        } else if found.ssh.guest != guest.dir || found.linked != linked {
            bail!(
                "guest {number} is up (process {}) and another one: stop it with `cargo xtask vm down`",
                found.pid
            );
        }
    }
    for number in 1..=peers {
        match machines.running(number) {
            Some(found) => println!("Guest {number} is up already (process {}).", found.pid),
            None => drop(machines.boot(guest, number, linked)?),
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

/// Boots a machine of two that has lost its power.
pub(crate) fn boot(guest: &Guest, workspace: &Workspace, number: u8) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let machines = Machines::of_up(workspace)?;
    if machines.is_up(number) {
        bail!("guest {number} is up");
    }
    if !machines.booted(3 - number)?.linked {
        bail!("the other guest is alone: start two with `cargo xtask vm up --peers 2`");
    }
    machines.boot(guest, number, true).map(drop)
}

/// Stops the machines that run.
pub(crate) fn down(workspace: &Workspace) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let machines = Machines::of_up(workspace)?;
    if !NUMBERS.iter().any(|number| machines.is_up(*number)) {
        println!("No guest is up.");
    }
    for number in NUMBERS {
        if let Some(found) = machines.running(number) {
            machines.stop(number, &found)?;
        }
    }
    Ok(())
}
