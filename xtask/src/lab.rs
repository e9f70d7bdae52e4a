//! Where programs that need an RDMA device are compiled and run: in the guest, for which they are
//! compiled in its root, or on this host.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::guest::Guest;
use crate::guest::chroot::{self, GUEST_DIR, Headers};
use crate::host::{Toolchain, Workspace};
use crate::host_device;
use crate::progress::run_step;
use crate::vm::{Machines, NUMBERS, Ssh, attach_to};

/// The package that holds the examples and the device tests, and the feature for a host with a
/// device.
pub(crate) const PACKAGE: &str = "rpma-examples";
pub(crate) const FEATURE: &str = "device";

/// A feature that comes with it, of tests that can do with a simulated fabric as well.
pub(crate) const ONE_PROCESS: &str = "one-process";

/// The variables of the tests about the guest's soft-iWARP, siw0: its addresses (init.sh).
const IWARP: [(&str, &str); 2] = [
    ("RPMA_TEST_ADDR", "10.79.0.1"),
    ("RPMA_TEST_ADDR6", "fd79::1"),
];

/// The variable in which runner.sh gets a test's limit in seconds.
const LIMIT: &str = "RPMA_TEST_LIMIT";

#[derive(Debug)]
pub(crate) struct Lab<'a> {
    workspace: &'a Workspace,
    /// For the guest's files, ours alone.
    _lock: File,
    /// The variables of the tests about this host, if they run here.
    host_env: Vec<(&'static str, String)>,
    inside: Option<Inside<'a>>,
}

/// The guest, and its machines that are for this run only.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    guest: Guest,
    toolchain: Toolchain,
    pub(crate) machines: Machines<'a>,
    /// The way into the machine for tests.
    ssh: Option<Ssh>,
    /// That machine is the one that `vm up` started.
    attached: bool,
    /// Its machines are those of this lab alone.
    beside: bool,
    /// The tests are over soft-iWARP.
    iwarp: bool,
}

impl<'a> Lab<'a> {
    /// The lab of one command, which no other run of that command shares. Builds the guest if it
    /// does not exist, or finds this host's device.
    pub(crate) fn open(workspace: &'a Workspace, command: &str, host: bool) -> Result<Self> {
        if !host {
            // Builds in the guest's root have no network.
            let mut fetch = workspace.cargo("fetch --locked");
            let log = workspace.log_file("fetch.log")?;
            run_step("fetch dependencies", &mut fetch, &log)?;
            return Self::in_guest(workspace, command, false);
        }
        let (_, lock) = workspace.own_dir(command)?;
        Ok(Self {
            workspace,
            _lock: lock,
            host_env: host_device::test_env()?,
            inside: None,
        })
    }

    /// The lab of machines that run beside those of another lab in the guest, under a name of their
    /// own.
    pub(crate) fn beside(workspace: &'a Workspace, name: &str) -> Result<Self> {
        Self::in_guest(workspace, name, true)
    }

    fn in_guest(workspace: &'a Workspace, name: &str, beside: bool) -> Result<Self> {
        let (dir, lock) = workspace.own_dir(name)?;
        let inside = Inside {
            guest: Guest::get(workspace)?,
            toolchain: Toolchain::find(workspace)?,
            machines: Machines::ours(workspace, dir),
            ssh: None,
            attached: false,
            beside,
            iwarp: false,
        };
        Ok(Self {
            workspace,
            _lock: lock,
            host_env: Vec::new(),
            inside: Some(inside),
        })
    }

    /// The lab for measuring times, with a machine of its own and a clock that counts instructions.
    pub(crate) fn count_instructions(&mut self) {
        if let Some(inside) = &mut self.inside {
            inside.machines.count_instructions();
        }
    }

    /// Whether the tests in the guest, from now on, are over soft-iWARP.
    pub(crate) fn over_iwarp(&mut self, iwarp: bool) {
        if let Some(inside) = &mut self.inside {
            inside.iwarp = iwarp;
        }
    }

    pub(crate) fn inside(&self) -> Result<&Inside<'a>> {
        self.inside.as_ref().context("this is the host")
    }

    /// cargo with a command on the examples and the device tests. The programs run where it runs
    /// itself.
    pub(crate) fn cargo(&self, headers: Headers, command: &str) -> Result<Command> {
        let mut cargo = self.bare_cargo(headers, command)?;
        cargo.args(["--locked", "-p", PACKAGE, "--features", FEATURE]);
        Ok(cargo)
    }

    /// `cargo test` or `cargo bench`, with programs that run on the device. A test may take so
    /// long, unless the caller's RPMA_TEST_LIMIT is another number of seconds. Boots the guest if
    /// it is not up.
    pub(crate) fn cargo_on_device(
        &mut self,
        headers: Headers,
        command: &str,
        limit: Duration,
    ) -> Result<Command> {
        let limit = std::env::var(LIMIT).unwrap_or_else(|_| limit.as_secs().to_string());
        let mut env = vec![(LIMIT, limit)];
        let mut root = self.workspace.root();
        if let Some(inside) = &mut self.inside {
            let ssh = inside.ssh(self.workspace)?;
            env.push(("RPMA_GUEST", ssh.words(GUEST_DIR)));
            if inside.iwarp {
                env.extend(IWARP.map(|(name, value)| (name, value.to_owned())));
            }
            root = Path::new("/src");
        }
        let runner = root.join("xtask/runner.sh").display().to_string();
        let runner = format!("target.'cfg(all())'.runner = ['bash', {runner:?}]");
        let mut cargo = self.cargo_with(headers, &env)?;
        cargo.args(["--config", &runner, command, "--locked"]);
        cargo.args(["-p", PACKAGE, "--features", FEATURE]);
        Ok(cargo)
    }

    /// cargo with a command, which compiles for the device.
    pub(crate) fn bare_cargo(&self, headers: Headers, command: &str) -> Result<Command> {
        let mut cargo = self.cargo_with(headers, &[])?;
        cargo.args(command.split(' '));
        Ok(cargo)
    }

    fn cargo_with(&self, headers: Headers, env: &[(&str, String)]) -> Result<Command> {
        let Some(inside) = &self.inside else {
            let mut cargo = self.workspace.cargo("");
            cargo.env("RUST_BACKTRACE", "1");
            cargo.envs(self.host_env.iter().map(|(name, value)| (name, value)));
            cargo.envs(env.iter().map(|(name, value)| (name, value)));
            return Ok(cargo);
        };
        chroot::cargo(
            &inside.guest,
            self.workspace,
            &inside.toolchain,
            headers,
            env,
        )
    }

    /// Two machines with a link, both new. They end with the lab.
    pub(crate) fn boot_two(&self) -> Result<&Inside<'a>> {
        let inside = self.inside()?;
        for number in NUMBERS {
            inside.machines.forget_memory(number)?;
            inside.boot(number, true)?;
        }
        inside.machines.wait_link()?;
        Ok(inside)
    }

    /// Replaces a guest that no longer answers; its console is kept as `console`. One that `vm up`
    /// started is left to its owner.
    pub(crate) fn replace_machine(&mut self, console: &Path) -> Result<()> {
        let Some(inside) = &mut self.inside else {
            bail!("this host has a program that cannot be killed");
        };
        if inside.attached {
            bail!("the guest of `cargo xtask vm up` does not answer; see its console log");
        }
        if inside.machines.is_up(1) {
            inside.machines.cut(1)?;
        }
        fs::copy(inside.machines.console(1), console)?;
        inside.ssh = Some(inside.boot(1, false)?);
        Ok(())
    }
}

impl Inside<'_> {
    /// Boots a machine for this run, alone or as one of two, with the memory that its last one has
    /// left.
    pub(crate) fn boot(&self, number: u8, linked: bool) -> Result<Ssh> {
        self.machines
            .boot(&self.guest, number, if linked { 2 } else { 1 })
    }

    /// The way into the machine for tests, booted if it is not up.
    fn ssh(&mut self, workspace: &Workspace) -> Result<Ssh> {
        if let Some(ssh) = &self.ssh {
            return Ok(ssh.clone());
        }
        let up = if self.beside || self.machines.is_counted() {
            None
        } else {
            attach_to(&self.guest, workspace)?
        };
        self.attached = up.is_some();
        let ssh = match up {
            Some(ssh) => {
                println!("       the guest is up already: using it");
                ssh
            }
            None => {
                self.machines.forget_memory(1)?;
                self.boot(1, false)?
            }
        };
        self.ssh = Some(ssh.clone());
        Ok(ssh)
    }
}
