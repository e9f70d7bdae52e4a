//! Two machines that end with this program: two hosts, for faults between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{Boot, Lifetime, Peer, Vm, netem};
use crate::guest::Guest;
use crate::host::Workspace;
use crate::process::output;

/// The machines 1 and 2.
#[derive(Debug)]
pub(crate) struct Hosts<'a> {
    guest: &'a Guest,
    workspace: &'a Workspace,
    dirs: [PathBuf; 2],
    vms: [Option<Vm>; 2],
}

impl<'a> Hosts<'a> {
    pub(crate) const NUMBERS: [u8; 2] = [1, 2];

    /// Boots both, with nothing in their memory.
    pub(crate) fn boot(guest: &'a Guest, workspace: &'a Workspace, dir: &Path) -> Result<Self> {
        let dirs = Self::NUMBERS.map(|number| dir.join(number.to_string()));
        let vms = [None, None];
        let mut hosts = Self {
            guest,
            workspace,
            dirs,
            vms,
        };
        for number in Self::NUMBERS {
            fs::create_dir_all(&hosts.dirs[at(number)])?;
            Vm::forget_memory(&hosts.dirs[at(number)])?;
            hosts.boot_again(number)?;
        }
        Ok(hosts)
    }

    /// Boots a machine with the memory that it had.
    pub(crate) fn boot_again(&mut self, number: u8) -> Result<()> {
        let join = self.vms[at(3 - number)].is_some();
        let boot = Boot {
            guest: self.guest,
            workspace: self.workspace,
            dir: &self.dirs[at(number)],
            lifetime: Lifetime::Ours,
            peer: Some(Peer { number, join }),
        };
        self.vms[at(number)] = Some(boot.boot(&format!("boot host {number}"))?);
        Ok(())
    }

    pub(crate) fn is_up(&self, number: u8) -> bool {
        self.vms[at(number)].is_some()
    }

    /// The power of a machine is gone.
    pub(crate) fn cut(&mut self, number: u8) -> Result<()> {
        self.vms[at(number)]
            .take()
            .context("it has no power")?
            .cut_power()
    }

    /// It stops with everything in it.
    pub(crate) fn freeze(&self, number: u8) -> Result<()> {
        self.vm(number)?.signal(Signal::STOP)
    }

    pub(crate) fn thaw(&self, number: u8) -> Result<()> {
        self.vm(number)?.signal(Signal::CONT)
    }

    /// Spoils what it sends: "loss 1%", or "off".
    pub(crate) fn net(&self, number: u8, how: &str) -> Result<()> {
        let words = netem(&[how.to_owned()]);
        output(&mut self.vm(number)?.ssh().command(&words, false)).map(drop)
    }

    /// A command in it.
    pub(crate) fn command(&self, number: u8, words: &[&str]) -> Result<Command> {
        Ok(self.vm(number)?.ssh().command(words, false))
    }

    fn vm(&self, number: u8) -> Result<&Vm> {
        self.vms[at(number)].as_ref().context("it has no power")
    }
}

fn at(number: u8) -> usize {
    usize::from(number) - 1
}
