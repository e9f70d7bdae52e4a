//! Running commands inside the guest's root directory, on the host's kernel.
//!
//! Every run has its own mount namespace, so that no mount outlives it, and its own process
//! namespace, whose first process dies with us and takes the others with it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Guest;
use crate::host::{self, Toolchain, Workspace};

/// Where the rdma-core 44 headers lie in the root.
const RDMA_CORE_44: &str = "/opt/rdma-core-44";

/// `$1` is the root; the other arguments are `ro|rw`, a source, a mount point in the root, again
/// and again, up to `--` and the command.
const ENTER: &str = r#"
set -eu
PATH=$PATH:/usr/sbin:/sbin
root=$1
shift
mount --rbind "$root" "$root"
[ "$1" = rw ] || mount -o remount,bind,ro "$root"
shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs run "$root/run"
while [ "$1" != -- ]; do
    case $2 in
    tmpfs) mount -t tmpfs tmpfs "$root$3" ;;
    *)
        [ ! -d "$2" ] || mkdir -p "$root$3"
        [ -d "$2" ] || : >>"$root$3"
        mount --rbind "$2" "$root$3"
        [ "$1" = rw ] || mount -o remount,bind,ro "$root$3"
        ;;
    esac
    shift 3
done
shift
cd "$root"
exec chroot "$root" "$@"
"#;

/// A mount in the root: whether it can be written, what, where.
type Mount<'a> = (bool, &'a Path, &'a str);

/// A command with its own mounts and processes, none of which outlives us.
pub(super) fn namespace(program: &str) -> Command {
    let mut command;
    let death = ["--pdeathsig", "KILL", "--"];
    if host::is_root() {
        command = Command::new("setpriv");
        command.args(death).arg("unshare");
    } else {
        // A change of user clears the death signal: it is set after that.
        command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--map-auto", "setpriv"])
            .args(death);
        command.arg("unshare");
    }
    command.args([
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--",
    ]);
    command.arg(program);
    command
}

/// `program` inside `root`, which can be written only if `writable`.
pub(super) fn enter(root: &Path, writable: bool, mounts: &[Mount<'_>], program: &str) -> Command {
    let mode = |writable| if writable { "rw" } else { "ro" };
    let mut command = namespace("sh");
    command
        .args(["-c", ENTER, "enter"])
        .arg(root)
        .arg(mode(writable));
    for (writable, from, to) in mounts {
        command.arg(mode(*writable)).arg(from).arg(to);
    }
    command.arg("--").arg(program);
    command
}

/// Which headers a build in the root uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headers {
    /// The root's own rdma-core (56), with native flush and atomic write.
    Native,
    /// Those of rdma-core 44, without.
    Old44,
}

impl Headers {
    /// The name of the target directory. It is emptied when it is from another guest: cargo does
    /// not see that the system's headers and libraries are others.
    fn target(self, guest: &Guest, workspace: &Workspace) -> Result<&'static str> {
        let name = match self {
            Self::Native => "guest",
            Self::Old44 => "guest-44",
        };
        let dir = workspace.root().join("target").join(name);
        let marker = dir.join("built-in");
        // A guest's host key is its own alone.
        let identity = fs::read(guest.file("known_hosts"))?;
        if fs::read(&marker).is_ok_and(|found| found == identity) {
            return Ok(name);
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        fs::create_dir_all(&dir)?;
        fs::write(&marker, identity)?;
        Ok(name)
    }
}

/// `program` inside the guest's root, in the clone, with the host's Rust toolchain and without a
/// network: everything must have been fetched before. Nothing but the clone can be written.
pub(crate) fn command(
    guest: &Guest,
    workspace: &Workspace,
    toolchain: &Toolchain,
    headers: Headers,
    program: &str,
) -> Result<Command> {
    let target = headers.target(guest, workspace)?;
    let registry = toolchain.cargo_home.join("registry");
    let git = toolchain.cargo_home.join("git");
    let config = toolchain.cargo_home.join("config.toml");
    let mut mounts: Vec<Mount<'_>> = vec![
        (true, workspace.root(), "/src"),
        (false, &toolchain.sysroot, "/opt/rust"),
        // Of the host's cargo home only what a build reads: its programs are rustup's, which have
        // no rustup in here, and its login is nobody's business.
        (true, Path::new("tmpfs"), "/opt/cargo"),
    ];
    if registry.is_dir() {
        mounts.push((true, &registry, "/opt/cargo/registry"));
    }
    if git.is_dir() {
        mounts.push((true, &git, "/opt/cargo/git"));
    }
    if config.is_file() {
        mounts.push((false, &config, "/opt/cargo/config.toml"));
    }
    let mut command = enter(&guest.root(), false, &mounts, "env");
    command.args([
        "-i",
        "--chdir=/src",
        "PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/tmp",
        "LANG=C.UTF-8",
        "CARGO_HOME=/opt/cargo",
        "CARGO_NET_OFFLINE=true",
        "CARGO_INCREMENTAL=0",
        // For programs that run under emulation: fewer instructions, with all checks, and no more
        // for valgrind to read than a backtrace needs.
        "CARGO_PROFILE_DEV_OPT_LEVEL=1",
        "CARGO_PROFILE_DEV_DEBUG=line-tables-only",
        "CARGO_TERM_COLOR=never",
        // Whatever linker, flags or wrapper the host's settings name is not in here.
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=cc",
        "RUSTFLAGS=",
        "RUSTC_WRAPPER=",
        "RUSTC_WORKSPACE_WRAPPER=",
        "RUST_BACKTRACE=1",
    ]);
    command.arg(format!("CARGO_TARGET_DIR=/src/target/{target}"));
    if headers == Headers::Old44 {
        let own = "/usr/lib/x86_64-linux-gnu/pkgconfig";
        command.arg(format!("PKG_CONFIG_LIBDIR={RDMA_CORE_44}{own}:{own}"));
        command.arg(format!("PKG_CONFIG_SYSROOT_DIR={RDMA_CORE_44}"));
    }
    command.arg(program);
    Ok(command)
}
