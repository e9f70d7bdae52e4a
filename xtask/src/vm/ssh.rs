//! Commands in the guest: ssh over the loopback port that QEMU forwards. They share one connection,
//! because a login takes a second under emulation. It ends with the machine. A command that does
//! not find it logs in for itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::guest::Guest;

/// The way into one running guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ssh {
    /// The guest's files.
    pub(super) guest: PathBuf,
    pub(super) port: u16,
}

impl Ssh {
    pub(super) fn new(guest: &Guest, port: u16) -> Self {
        let guest = guest.dir.clone();
        Self { guest, port }
    }

    /// `argv` in the guest, in the clone's directory, with the arguments exactly as they are.
    /// `terminal` gives it one, as for a shell.
    pub(crate) fn command<S: AsRef<str>>(&self, argv: &[S], terminal: bool) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(self.args(&self.guest));
        ssh.args([if terminal { "-tt" } else { "-T" }, "guest"]);
        let words: Vec<String> = argv.iter().map(|word| quote(word.as_ref())).collect();
        ssh.arg(format!("cd /src && exec {}", words.join(" ")));
        ssh
    }

    /// A command that does nothing, and leaves the shared connection.
    pub(super) fn share(&self) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(self.args(&self.guest));
        ssh.args(["-o", "ControlMaster=yes", "-o", "ControlPersist=yes"]);
        ssh.args(["-T", "guest", "true"]);
        ssh
    }

    /// The words that run a line of shell in the guest, for a place where its files are in `dir`.
    pub(crate) fn words(&self, dir: &str) -> String {
        format!("ssh {} -T guest", self.args(Path::new(dir)).join(" "))
    }

    fn args(&self, dir: &Path) -> Vec<String> {
        let file = |name: &str| dir.join(name).display().to_string();
        let known = format!("UserKnownHostsFile=\"{}\"", file("known_hosts"));
        let (config, key) = (file("ssh_config"), file("ssh_key"));
        let port = self.port.to_string();
        // ssh makes the socket under a longer name first, and refuses one that is too long.
        let socket = file(&format!("ssh-{port}"));
        let shared = match socket.len() < SOCKET_NAME {
            true => format!("ControlPath=\"{}\"", socket.replace('%', "%%")),
            false => "ControlPath=none".to_owned(),
        };
        [
            "-F", &config, "-i", &key, "-o", &known, "-o", &shared, "-p", &port,
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

/// The most bytes of the name of a socket (`sockaddr_un`), without those that ssh adds for a while.
const SOCKET_NAME: usize = 108 - 20;

/// A word that a POSIX shell reads as it is.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for word in ["", "a b", "it's", "$HOME `x` \\ \"", "a\nb", "-n"] {
            let script = format!("printf %s {}", quote(word));
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
