//! What the commands need of the system, and how to get it: `cargo xtask` starts with nothing but
//! Rust, names what is missing and why, and installs it where it can.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::host;

/// How to see whether something is there.
#[derive(Clone, Copy, Debug)]
enum Probe {
    Program(&'static str),
    File(&'static str),
    Library(&'static str),
    Libclang,
}

/// Something that is needed; the package names are in the order of [`MANAGERS`], empty where the
/// distribution has none.
#[derive(Debug)]
pub(crate) struct Need {
    probe: Probe,
    why: &'static str,
    packages: [&'static str; 4],
}

const fn need(probe: Probe, why: &'static str, packages: [&'static str; 4]) -> Need {
    Need {
        probe,
        why,
        packages,
    }
}

/// For building the guest, booting it and talking to it.
pub(crate) const GUEST: &[Need] = &[
    need(
        Probe::Program("qemu-system-x86_64"),
        "runs the guest",
        [
            "qemu-system-x86",
            "qemu-system-x86-core",
            "qemu-system-x86",
            "qemu-x86",
        ],
    ),
    need(
        Probe::Program("mmdebstrap"),
        "makes the guest's Debian root",
        ["mmdebstrap", "mmdebstrap", "", ""],
    ),
    need(
        Probe::File("/usr/share/keyrings/debian-archive-keyring.gpg"),
        "the keys that Debian's packages are checked with",
        [
            "debian-archive-keyring",
            "debian-keyring",
            "debian-archive-keyring",
            "",
        ],
    ),
    need(
        Probe::Program("ssh"),
        "runs commands in the guest",
        [
            "openssh-client",
            "openssh-clients",
            "openssh",
            "openssh-clients",
        ],
    ),
    need(
        Probe::Program("setpriv"),
        "ends the guest when this program ends",
        ["util-linux", "util-linux", "util-linux", "util-linux"],
    ),
    need(
        Probe::Program("mount"),
        "mounts inside the guest's root",
        ["mount", "util-linux", "util-linux", "util-linux"],
    ),
];

/// For building rpma on this host.
pub(crate) const BUILD: &[Need] = &[
    need(
        Probe::Program("cc"),
        "links programs",
        ["gcc", "gcc", "gcc", "gcc"],
    ),
    need(
        Probe::File("/usr/include/stdio.h"),
        "the headers of the C library",
        ["libc6-dev", "glibc-devel", "glibc", "glibc-devel"],
    ),
    need(
        Probe::Program("pkg-config"),
        "finds libibverbs and librdmacm",
        [
            "pkg-config",
            "pkgconf-pkg-config",
            "pkgconf",
            "pkgconf-pkg-config",
        ],
    ),
    need(
        Probe::Library("libibverbs"),
        "the verbs that rpma is built on",
        [
            "libibverbs-dev",
            "rdma-core-devel",
            "rdma-core",
            "rdma-core-devel",
        ],
    ),
    need(
        Probe::Library("librdmacm"),
        "the connection manager that rpma is built on",
        [
            "librdmacm-dev",
            "rdma-core-devel",
            "rdma-core",
            "rdma-core-devel",
        ],
    ),
    need(
        Probe::Libclang,
        "reads the C headers when rpma-sys is built",
        ["libclang-dev", "clang-devel", "clang", "clang-devel"],
    ),
];

/// For building the guest without being root.
const USERNS: &[Need] = &[need(
    Probe::Program("newuidmap"),
    "gives the guest's files their owners without being root",
    ["uidmap", "shadow-utils", "shadow", "shadow"],
)];

/// Package managers, how they install, in the order of [`Need::packages`].
const MANAGERS: [(&str, &str); 4] = [
    ("apt-get", "apt-get install --no-install-recommends"),
    ("dnf", "dnf install"),
    ("pacman", "pacman -S --needed"),
    ("zypper", "zypper install"),
];

/// Sees to it that everything in `groups` is there, or says how to get it.
pub(crate) fn ensure(groups: &[&'static [Need]], yes: bool) -> Result<()> {
    let mut groups = groups.to_vec();
    let guest = groups.iter().any(|group| std::ptr::eq(*group, GUEST));
    if guest && !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!(
            "the guest needs a Linux host with an x86-64 processor (this is {} on {}); with an \
             RDMA device of its own this host can run the same with --host",
            std::env::consts::OS,
            std::env::consts::ARCH
        );
    }
    if guest && !host::is_root() {
        groups.push(USERNS);
    }
    let missing = missing(&groups);
    if missing.is_empty() {
        return Ok(());
    }

    println!("This needs system packages that are missing:");
    let manager = MANAGERS
        .iter()
        .position(|(program, _)| find_program(program));
    let mut packages = Vec::new();
    for need in &missing {
        let name = manager.map_or(need.packages[0], |manager| need.packages[manager]);
        println!(
            "  {:<24} {}",
            if name.is_empty() { need.name() } else { name },
            need.why
        );
        if !name.is_empty() && !packages.contains(&name) {
            packages.push(name);
        }
    }
    let Some(manager) = manager else {
        bail!("install what is missing (the names above are Debian's) and run this again");
    };
    let line = format!("{} {}", MANAGERS[manager].1, packages.join(" "));
    let unpackaged: Vec<_> = missing
        .iter()
        .filter(|n| n.packages[manager].is_empty())
        .map(|n| n.name())
        .collect();
    if !unpackaged.is_empty() {
        bail!(
            "not all of it is packaged here ({} must come from its authors or another \
             distribution); for the rest, run this as root: {line}",
            unpackaged.join(", ")
        );
    }
    if manager != 0 || !host::is_root() {
        bail!("install the missing packages and run this again; as root: {line}");
    }
    if !yes && !confirm(&line)? {
        bail!("nothing was installed; the line is: {line}");
    }
    apt_install(&packages)?;
    let still = self::missing(&groups);
    if let Some(need) = still.first() {
        bail!(
            "the packages were installed and {} is still missing: {}",
            need.name(),
            need.why
        );
    }
    Ok(())
}

fn missing(groups: &[&'static [Need]]) -> Vec<&'static Need> {
    groups
        .iter()
        .flat_map(|group| group.iter())
        .filter(|need| !need.is_there())
        .collect()
}

/// Asks, unless nobody is there to answer.
fn confirm(line: &str) -> Result<bool> {
    if std::env::var_os("CI").is_some() || !std::io::stdin().is_terminal() {
        return Ok(true);
    }
    print!("Run `{line}` now? [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn apt_install(packages: &[&str]) -> Result<()> {
    let apt = |args: &[&str]| {
        println!("  apt-get {}", args.join(" "));
        let mut command = Command::new("apt-get");
        // Another apt at work (a machine that has just started) is waited for.
        command
            .args(["-q", "-y", "-o", "DPkg::Lock::Timeout=300"])
            .args(args);
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        command.stdout(Stdio::null());
        command.status().context("cannot run apt-get")
    };
    let install = [&["install", "--no-install-recommends"], packages].concat();
    // A failed update matters only if the packages are then not found.
    let updated = apt(&["update"])?.success();
    if !apt(&install)?.success() {
        let why = if updated {
            ""
        } else {
            " (the package lists could not be updated either)"
        };
        bail!(
            "apt-get could not install {}{why}; its messages are above",
            packages.join(" ")
        );
    }
    Ok(())
}

fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Need {
    fn name(&self) -> &'static str {
        match self.probe {
            Probe::Program(name) | Probe::File(name) | Probe::Library(name) => name,
            Probe::Libclang => "libclang",
        }
    }

    fn is_there(&self) -> bool {
        match self.probe {
            Probe::Program(name) => find_program(name),
            Probe::File(path) => Path::new(path).exists(),
            Probe::Library(name) => succeeds(Command::new("pkg-config").args(["--exists", name])),
            Probe::Libclang => find_libclang(),
        }
    }
}

fn find_program(name: &str) -> bool {
    // Programs for root are not in everybody's PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path)
        .chain(extra)
        .any(|dir| dir.join(name).is_file())
}

/// Looks where bindgen looks: a shared library in a system directory or in one of LLVM's.
fn find_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let list = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let llvm =
        list("/usr/lib").filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm"));
    let mut dirs = vec![
        "/usr/lib".to_owned(),
        "/usr/lib64".to_owned(),
        "/usr/local/lib".to_owned(),
    ];
    dirs.push(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    dirs.extend(llvm.map(|entry| format!("{}/lib", entry.path().display())));
    dirs.iter().flat_map(|dir| list(dir)).any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let library = name.starts_with("libclang.so") || name.starts_with("libclang-");
        library && name.contains(".so") && !name.contains("cpp")
    })
}
