//! `vm up`, `vm down`, and `vm boot`: machines that are left running.

use anyhow::{Result, bail};

use super::{ALL, Link, Machines, Running, Ssh};
use crate::guest::Guest;
use crate::host::Workspace;

/// The command, and the directory of its files.
pub(super) const NAME: &str = "vm";
const DOWN: &str = "stop it with `cargo xtask vm down`";

/// The way into the machine of `vm up`, only if it is alone and was made from this guest.
pub(crate) fn attach_to(guest: &Guest, workspace: &Workspace) -> Result<Option<Ssh>> {
    let found = Machines::of_up(workspace)?.running(1);
    let is_alone = |found: &Running| found.ready && found.link == Link::None;
    let found = found.filter(|found| is_alone(found) && found.ssh.guest == guest.dir);
    Ok(found.map(|found| found.ssh))
}

/// Starts one machine, or two or three with a link.
pub(crate) fn up(workspace: &Workspace, peers: u8) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let machines = Machines::of_up(workspace)?;
    let running = || {
        ALL.into_iter()
            .filter_map(|number| Some((number, machines.running(number)?)))
    };
    // Before the guest is built, which takes minutes.
    for (number, found) in running() {
        if found.ready && found.link.peers() != peers {
            bail!(
                "guest {number} is up as one of {}: {DOWN}",
                found.link.peers()
            );
        }
    }
    let guest = &Guest::get(workspace)?;
    for (number, found) in running() {
        if !found.ready {
            println!("An earlier start was interrupted: starting again.");
            machines.stop(number, &found)?;
        } else if found.ssh.guest != guest.dir {
            bail!(
                "guest {number} is up (process {}) and another one: {DOWN}",
                found.pid
            );
        }
    }
    for number in 1..=peers {
        match machines.running(number) {
            Some(found) => println!("Guest {number} is up already (process {}).", found.pid),
            None => drop(machines.boot(guest, number, peers)?),
        }
    }
    println!(
        "The clone is at /src, read-only.\n  \
         cargo xtask vm exec -- CMD…   cargo xtask vm shell   cargo xtask vm down"
    );
    if peers > 1 {
        let addresses = (1..=peers).map(|number| format!("guest {number} 10.77.0.{number}"));
        println!(
            "The addresses: {}.\n  \
             cargo xtask vm exec --peer 2 -- CMD…   cargo xtask vm freeze|thaw|cut|boot 2   \
             cargo xtask vm net 2 loss 1%",
            addresses.collect::<Vec<_>>().join(", ")
        );
    }
    Ok(())
}

/// Boots a machine that has lost its power, of several.
pub(crate) fn boot(workspace: &Workspace, number: u8) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let machines = Machines::of_up(workspace)?;
    if machines.is_up(number) {
        bail!("guest {number} is up");
    }
    let mut others = ALL
        .into_iter()
        .filter_map(|other| machines.booted(other).ok());
    let peers = others.next().map_or(0, |other| other.link.peers());
    let least = number.max(2);
    if peers < least {
        bail!(
            "guest {number} boots again only beside another one of {least} or more: start them with `cargo xtask vm up \
             --peers {least}`"
        );
    }
    machines
        .boot(&Guest::get(workspace)?, number, peers)
        .map(drop)
}

/// Stops the machines that run.
pub(crate) fn down(workspace: &Workspace) -> Result<()> {
    let (_, _lock) = workspace.own_dir(NAME)?;
    let machines = Machines::of_up(workspace)?;
    if !ALL.iter().any(|number| machines.is_up(*number)) {
        println!("No guest is up.");
    }
    for number in ALL {
        if let Some(found) = machines.running(number) {
            machines.stop(number, &found)?;
        }
    }
    Ok(())
}
