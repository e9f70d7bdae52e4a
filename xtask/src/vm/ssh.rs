//! Commands in the guest: ssh over the loopback port that QEMU forwards.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The way into one running guest.
#[derive(Clone, Debug)]
pub(crate) struct Ssh {
    key: PathBuf,
    known_hosts: PathBuf,
    port: u16,
}

impl Ssh {
    /// For the guest whose files lie in `guest`.
    pub(super) fn at(guest: &Path, port: u16) -> Self {
        Self {
            key: guest.join("ssh_key"),
            known_hosts: guest.join("known_hosts"),
            port,
        }
    }

    /// `argv` in the guest, in the clone's directory, with the arguments exactly as they are.
    /// `terminal` gives it one, as for a shell.
    pub(crate) fn command<S: AsRef<str>>(&self, argv: &[S], terminal: bool) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "/dev/null", "-p", &self.port.to_string(), "-i"])
            .arg(&self.key);
        let options = [
            "BatchMode=yes",
            "ConnectTimeout=30",
            "HostKeyAlias=guest",
            "IdentitiesOnly=yes",
            // Emulation is slow, and nobody listens in on the loopback.
            "KexAlgorithms=curve25519-sha256",
            "LogLevel=ERROR",
            // A guest that died without a word is noticed after a minute.
            "ServerAliveInterval=20",
            "StrictHostKeyChecking=yes",
        ];
        for option in options {
            ssh.args(["-o", option]);
        }
        ssh.arg("-o").arg(format!(
            "UserKnownHostsFile=\"{}\"",
            self.known_hosts.display()
        ));
        ssh.arg(if terminal { "-tt" } else { "-T" });
        ssh.arg("root@127.0.0.1");
        let words: Vec<String> = argv.iter().map(|word| quote(word.as_ref())).collect();
        ssh.arg(format!("cd /src && exec {}", words.join(" ")));
        ssh
    }
}

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
