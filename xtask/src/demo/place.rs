//! Where the programs of a demo run: in the guest, or on this host.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

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
    /// A shell that plays both the programs and `rdma`.
    #[cfg(test)]
    Script(String),
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
                // A server that outlived us would keep its port. `setpriv` becomes the program, so
                // that killing this child kills it; `timeout` would die and leave it behind.
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "KILL", "--"]).args(words);
                command
            }
            #[cfg(test)]
            Self::Script(script) => {
                let mut command = Command::new("sh");
                command.args(["-c", script, "sh"]).args(words);
                command
            }
        }
    }

    /// Waits until a server listens: a client that comes too early would be rejected.
    pub(super) fn wait_listening(
        &self,
        server: &mut Remote,
        address: &str,
        port: &str,
    ) -> Result<()> {
        let wanted: Vec<_> = (address, port.parse()?)
            .to_socket_addrs()
            .with_context(|| format!("what address is \"{address}\"?"))?
            .collect();
        let started = Instant::now();
        while !listens(&self.ids()?, &wanted) {
            server.still_runs()?;
            if started.elapsed() > LIMIT {
                bail!(
                    "the server does not listen on {address}, port {port}, after {} s",
                    LIMIT.as_secs()
                );
            }
        }
        Ok(())
    }

    /// What the kernel says on all connection managers' ids.
    fn ids(&self) -> Result<String> {
        let mut command = self.command(&["rdma", "resource", "show", "cm_id"]);
        let output = command.stdin(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Whether one of the ids listens on one of the addresses.
fn listens(ids: &str, wanted: &[SocketAddr]) -> bool {
    let listens = |id: &str| {
        let words: Vec<&str> = id.split_whitespace().collect();
        let value = |name| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1).copied()
        };
        let (ip, port) = source(value("src-addr")?)?;
        let is_wanted = |wanted: &SocketAddr| (wanted.ip(), wanted.port()) == (ip, port);
        Some(value("state")? == "LISTEN" && wanted.iter().any(is_wanted))
    };
    ids.lines().any(|id| listens(id) == Some(true))
}

/// An address and a port as `rdma` prints them: without brackets around an IPv6 address.
fn source(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.rsplit_once(':')?;
    Some((ip.parse().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// As iproute2 6.15 prints it.
    const IDS: &str = "\
        link rxe0/- cm-idn 1 state LISTEN ps TCP pid 235 comm rping src-addr :::7207 \n\
        link rxe1/- cm-idn 2 state LISTEN ps TCP pid 234 comm rping src-addr 0.0.0.0:7205 \n\
        link rxe0/1 cm-idn 0 state LISTEN ps TCP pid 233 comm rping src-addr fd77::1:7203 \
        dst-addr :::0 \n\
        link rxe0/1 cm-idn 3 state LISTEN ps TCP pid 231 comm rping src-addr 10.77.0.1:7204 \
        dst-addr 0.0.0.0:0 \n\
        link rxe0/1 cm-idn 4 lqpn 17 qp-type RC state CONNECT ps TCP pid 231 comm rping \
        src-addr 10.77.0.1:7208 dst-addr 10.77.0.1:7209 \n";

    /// A client must not be started because of somebody else, who listens on the same port of another
    /// address.
    #[test]
    fn a_server_listens_on_its_own_address_and_port() {
        let listens = |address: &str| listens(IDS, &[address.parse().unwrap()]);
        for address in [
            "10.77.0.1:7204",
            "[fd77::1]:7203",
            "[::]:7207",
            "0.0.0.0:7205",
        ] {
            assert!(listens(address), "{address}");
        }
        for address in [
            "10.77.0.2:7204",
            "10.77.0.1:720",
            "10.77.0.1:7203",
            "10.77.0.1:7205",
            "[fd77::1]:7204",
            "[fd77::2]:7203",
            // A connection does not listen.
            "10.77.0.1:7208",
            "10.77.0.1:7209",
        ] {
            assert!(!listens(address), "{address}");
        }
    }

    /// Killing what was started kills the program itself, and not something around it.
    #[test]
    fn a_program_on_the_host_ends_with_its_remote() {
        let command = Place::Host.command(&["sh", "-c", "echo pid $$; exec sleep 1000"]);
        let mut remote = Remote::start("program", command, Path::new("/dev/null")).unwrap();
        let pid = remote.wait_for("pid ", LIMIT).unwrap();
        let process = Path::new("/proc").join(pid);
        assert!(process.exists());
        drop(remote);
        assert!(!process.exists());
    }
}
