//! Where programs that need an RDMA device are compiled and run: in the guest, for which they are
//! compiled in its root, or on this host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::guest::Guest;
use crate::guest::chroot::{self, GUEST_DIR, Headers};
use crate::host::{Toolchain, Workspace};
use crate::host_device;
use crate::progress::run_step;
use crate::vm::{Boot, CONSOLE, Hosts, Lifetime, Ssh, Vm, attach_to};

/// The package that holds the examples and the device tests, and the feature that says that there is
/// a device.
pub(crate) const PACKAGE: &str = "rpma-examples";
pub(crate) const FEATURE: &str = "device";

/// What tells runner.sh for how many seconds a test may run.
const LIMIT: &str = "RPMA_TEST_LIMIT";

#[derive(Debug)]
pub(crate) struct Lab<'a> {
    workspace: &'a Workspace,
    /// For the guest's files, ours alone.
    dir: PathBuf,
    _lock: File,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// With what the tests are told about the host.
    Host(Vec<(&'static str, String)>),
    Guest(Box<Inside>),
}

#[derive(Debug)]
struct Inside {
    guest: Guest,
    toolchain: Toolchain,
    machine: Option<Machine>,
}

/// The machine that `vm up` started, or one for this run only.
#[derive(Debug)]
struct Machine {
    ssh: Ssh,
    own: Option<Vm>,
}

impl<'a> Lab<'a> {
    /// The lab of one command, which no other run of that command shares. Builds the guest if there is
    /// none, or finds this host's device.
    pub(crate) fn open(workspace: &'a Workspace, command: &str, host: bool) -> Result<Self> {
        let (dir, lock) = workspace.own_dir(command)?;
        let place = if host {
            Place::Host(host_device::test_env()?)
        } else {
            let toolchain = Toolchain::find(workspace)?;
            // Builds in the guest's root have no network.
            let mut fetch = workspace.cargo();
            let log = workspace.log_file("fetch.log")?;
            run_step(
                "fetch dependencies",
                fetch.args(["fetch", "--locked"]),
                &log,
            )?;
            let guest = Guest::get(workspace)?;
            Place::Guest(Box::new(Inside {
                guest,
                toolchain,
                machine: None,
            }))
        };
        Ok(Self {
            workspace,
            dir,
            _lock: lock,
            place,
        })
    }

    /// The headers that device tests are compiled against.
    pub(crate) fn headers(&self) -> &'static [Headers] {
        match self.place {
            Place::Host(_) => &[Headers::Native],
            Place::Guest(_) => &[Headers::Native, Headers::Old44],
        }
    }

    pub(crate) fn is_host(&self) -> bool {
        matches!(self.place, Place::Host(_))
    }

    /// What the device tests are told about this host, if they run here.
    pub(crate) fn host_env(&self, name: &str) -> Option<&str> {
        match &self.place {
            Place::Host(env) => env
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, v)| &**v),
            Place::Guest(_) => None,
        }
    }

    /// cargo with a command on the examples and the device tests. What it starts runs where it runs
    /// itself.
    pub(crate) fn cargo(&self, headers: Headers, command: &str) -> Result<Command> {
        let mut cargo = self.bare_cargo(headers, &[])?;
        cargo
            .args(command.split(' '))
            .args(["--locked", "-p", PACKAGE, "--features", FEATURE]);
        Ok(cargo)
    }

    /// `cargo test`, whose programs run on the device; a test may take so long, unless
    /// the caller's RPMA_TEST_LIMIT says another number of seconds. Boots the
    /// guest if it is not up.
    pub(crate) fn cargo_on_device(&mut self, headers: Headers, limit: Duration) -> Result<Command> {
        let limit = std::env::var(LIMIT).unwrap_or_else(|_| limit.as_secs().to_string());
        let mut env = vec![(LIMIT, limit)];
        if let Some(ssh) = self.boot()? {
            env.push(("RPMA_GUEST", ssh.words(GUEST_DIR)));
        }
        let root = match self.place {
            Place::Host(_) => self.workspace.root(),
            Place::Guest(_) => Path::new("/src"),
        };
        let runner = root.join("xtask/runner.sh").display().to_string();
        let mut cargo = self.bare_cargo(headers, &env)?;
        cargo.args([
            "--config",
            &format!("target.'cfg(all())'.runner = ['bash', {runner:?}]"),
        ]);
        cargo.args(["test", "--locked", "-p", PACKAGE, "--features", FEATURE]);
        Ok(cargo)
    }

    /// cargo, which compiles for the device.
    pub(crate) fn bare_cargo(&self, headers: Headers, env: &[(&str, String)]) -> Result<Command> {
        match &self.place {
            Place::Host(of_host) => {
                let mut cargo = self.workspace.cargo();
                cargo.env("RUST_BACKTRACE", "1");
                cargo.envs(of_host.iter().chain(env).map(|(name, value)| (name, value)));
                Ok(cargo)
            }
            Place::Guest(inside) => {
                let Inside {
                    guest, toolchain, ..
                } = &**inside;
                chroot::cargo(guest, self.workspace, toolchain, headers, env)
            }
        }
    }

    /// Boots a guest for the caller alone, with the memory that the last one has left.
    pub(crate) fn boot_own(&self) -> Result<Vm> {
        match &self.place {
            Place::Host(_) => bail!("this is the host"),
            Place::Guest(inside) => {
                let machine = Machine::boot(&inside.guest, self.workspace, &self.dir, "boot")?;
                machine.own.context("it is ours")
            }
        }
    }

    /// Two machines with a link, both new, in the place of the one that may be up for this run.
    pub(crate) fn boot_two(&mut self) -> Result<Hosts<'_>> {
        match &mut self.place {
            Place::Host(_) => bail!("this is the host"),
            Place::Guest(inside) => {
                inside.machine = None;
                Hosts::boot(&inside.guest, self.workspace, &self.dir)
            }
        }
    }

    /// Empties the guest's persistent memory.
    pub(crate) fn forget_memory(&self) -> Result<()> {
        Vm::forget_memory(&self.dir)
    }

    /// The way into the guest, booted if it is not up; none to this host.
    fn boot(&mut self) -> Result<Option<Ssh>> {
        let Place::Guest(inside) = &mut self.place else {
            return Ok(None);
        };
        if inside.machine.is_none() {
            inside.machine = Some(match attach_to(&inside.guest, self.workspace)? {
                Some(ssh) => {
                    println!("       the guest is up already: using it");
                    Machine { ssh, own: None }
                }
                None => {
                    Vm::forget_memory(&self.dir)?;
                    Machine::boot(&inside.guest, self.workspace, &self.dir, "boot")?
                }
            });
        }
        Ok(inside.machine.as_ref().map(|machine| machine.ssh.clone()))
    }

    /// Replaces a guest that no longer answers; its console is kept as `console`. One that `vm up`
    /// started is left to its owner.
    pub(crate) fn replace_machine(&mut self, console: &Path) -> Result<()> {
        let Place::Guest(inside) = &mut self.place else {
            bail!("this host has a program that cannot be killed");
        };
        let Some(vm) = inside.machine.take().and_then(|machine| machine.own) else {
            bail!("the guest of `cargo xtask vm up` does not answer; see its console log");
        };
        vm.cut_power()?;
        fs::copy(self.dir.join(CONSOLE), console)?;
        let booted = Machine::boot(&inside.guest, self.workspace, &self.dir, "boot again")?;
        inside.machine = Some(booted);
        Ok(())
    }
}

impl Machine {
    fn boot(guest: &Guest, workspace: &Workspace, dir: &Path, name: &str) -> Result<Self> {
        let vm = Boot {
            guest,
            workspace,
            dir,
            lifetime: Lifetime::Ours,
            peer: None,
        }
        .boot(name)?;
        Ok(Self {
            ssh: vm.ssh().clone(),
            own: Some(vm),
        })
    }
}
