//! Where the programs of a demo run: in the guest, or on this host.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::host_device;
use crate::vm::{Remote, Ssh};

/// The guest's address, and its persistent memory.
pub(super) const GUEST_ADDRESS: &str = "10.77.0.1";
pub(super) const DEVDAX: &str = "/dev/dax0.0";
/// For whatever a program does: emulation is slow.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) enum Place {
    Guest(Ssh),
    Host,
}

/// What this host has.
#[derive(Debug)]
pub(super) struct HostDevice {
    pub(super) address: String,
    pub(super) devdax: Option<String>,
}

impl HostDevice {
    pub(super) fn find() -> Result<Self> {
        let env = host_device::test_env()?;
        let get = |name| {
            env.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.clone())
        };
        Ok(Self {
            address: get("RPMA_TEST_ADDR").unwrap_or_default(),
            devdax: get("RPMA_TEST_DEVDAX"),
        })
    }
}

impl Place {
    pub(super) fn command(&self, words: &[&str]) -> Command {
        match self {
            Self::Guest(ssh) => ssh.command(words, false),
            Self::Host => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]);
                command
            }
        }
    }

    /// Waits until a server listens: a client that comes too early would be rejected.
    pub(super) fn wait_listening(&self, server: &mut Remote, port: &str) -> Result<()> {
        let started = Instant::now();
        while !self.listens(port)? {
            server.still_runs()?;
            if started.elapsed() > LIMIT {
                bail!(
                    "the server does not listen on port {port} after {} s",
                    LIMIT.as_secs()
                );
            }
        }
        Ok(())
    }

    /// Asks the kernel.
    fn listens(&self, port: &str) -> Result<bool> {
        let mut command = self.command(&["rdma", "resource", "show", "cm_id"]);
        let output = command.stdin(Stdio::null()).output()?;
        let ids = String::from_utf8_lossy(&output.stdout).into_owned();
        let source = format!(":{port} ");
        Ok(ids
            .lines()
            .any(|id| id.contains("state LISTEN") && id.contains(&source)))
    }
}
