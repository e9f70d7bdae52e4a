//! The system packages that the commands need. A missing one is named, with its reason and with the
//! line that installs it on Debian and Ubuntu. xtask itself does not install any.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::host;

/// A line of shell that succeeds if it is there, the Debian package that brings it, and its
/// purpose.
type Need = (&'static str, &'static str, &'static str);

/// For building and checking rpma on this host. (The linker was there to link this program.)
const BUILD: &[Need] = &[
    (
        "command -v pkg-config",
        "pkg-config",
        "finds libibverbs and librdmacm",
    ),
    (
        "pkg-config --exists libibverbs",
        "libibverbs-dev",
        "the verbs that rpma is built on",
    ),
    (
        "pkg-config --exists librdmacm",
        "librdmacm-dev",
        "the connection manager that rpma is built on",
    ),
    (
        // Where bindgen looks.
        "test \"$LIBCLANG_PATH\" || ls /usr/lib/llvm*/lib /usr/lib/*-linux-gnu /usr/lib /usr/lib64 \
         /usr/local/lib | grep '^libclang[.-].*so'",
        "libclang-dev",
        "reads the C headers when rpma-sys is built",
    ),
    (
        "command -v valgrind",
        "valgrind",
        "counts the instructions of the data path",
    ),
];

/// For building the guest, booting it and talking to it.
const GUEST: &[Need] = &[
    (
        "command -v qemu-system-x86_64",
        "qemu-system-x86",
        "runs the guest",
    ),
    (
        "command -v mmdebstrap",
        "mmdebstrap",
        "makes the guest's Debian root",
    ),
    (
        "test -e /usr/share/keyrings/debian-archive-keyring.gpg",
        "debian-archive-keyring",
        "the keys that Debian's packages are checked with",
    ),
    (
        "command -v ssh",
        "openssh-client",
        "runs commands in the guest",
    ),
];

/// For building the guest without being root.
const USERNS: &[Need] = &[(
    "command -v newuidmap",
    "uidmap",
    "gives the guest's files their owners without being root",
)];

/// How the packages are installed on Debian and Ubuntu; README.md and .ci/run have the same.
const INSTALL: &str = "apt-get install --no-install-recommends";

/// Checks that everything is there for building on this host, or for the guest, or reports how to
/// get it.
pub(crate) fn ensure(build: bool, guest: bool) -> Result<()> {
    if guest && !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!(
            "the guest needs a Linux host with an x86-64 processor (this is {} on {}); with an \
             RDMA device of its own this host can run the same with --host",
            std::env::consts::OS,
            std::env::consts::ARCH
        );
    }
    let userns = guest && !host::is_root();
    let groups = [(build, BUILD), (guest, GUEST), (userns, USERNS)];
    let (mut reasons, mut packages) = (String::new(), String::new());
    for (_, group) in groups.iter().filter(|(needed, _)| *needed) {
        for (_, package, why) in group.iter().filter(|(probe, ..)| !succeeds(probe)) {
            reasons += &format!("\n  {package:<24} {why}");
            packages += &format!(" {package}");
        }
    }
    if packages.is_empty() {
        return Ok(());
    }
    bail!(
        "this needs what is not installed (the names are Debian's):{reasons}\n\
         On Debian and Ubuntu, as root: {INSTALL}{packages}"
    );
}

fn succeeds(probe: &str) -> bool {
    let mut shell = Command::new("sh");
    // Programs for root are not in everybody's PATH.
    shell.args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin; {probe}")]);
    let status = shell.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packages that a newcomer and CI install first are those that are looked for here.
    #[test]
    fn the_packages_are_those_of_the_readme_and_of_ci() {
        let needed = [BUILD, GUEST, USERNS].concat();
        let mut needed: Vec<_> = needed.iter().map(|(_, package, _)| *package).collect();
        // The packages that cargo itself needs to build this program.
        needed.extend(["gcc", "libc6-dev"]);
        needed.sort_unstable();
        for (file, text) in [
            ("README.md", include_str!("../../README.md")),
            (".ci/run", include_str!("../../.ci/run")),
        ] {
            // The line may be broken with a backslash.
            let text = text.replace("\\\n", " ");
            let lines: Vec<_> = text
                .lines()
                .filter(|line| line.contains("qemu-system"))
                .collect();
            assert_eq!(lines.len(), 1, "{file}: one line has the packages");
            let words = lines[0].split([' ', '"']).filter(|word| !word.is_empty());
            let mut words: Vec<_> = words.filter(|word| !word.contains("packages")).collect();
            words.retain(|word| !["$", "sudo"].contains(word) && !INSTALL.contains(word));
            words.sort_unstable();
            assert_eq!(words, needed, "{file}");
        }
    }
}
