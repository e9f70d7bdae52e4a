//! Running commands inside the guest's root directory, on the host's kernel.
//!
//! Every run has its own mount namespace, so that no mount outlives it. It also has its own process
//! namespace, with a first process that dies with us and takes the others with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Guest;
use crate::host::{self, Toolchain, Workspace};
use crate::process::output;

/// Where the rdma-core 44 headers lie in the root.
const RDMA_CORE_44: &str = "/opt/rdma-core-44";

/// Where the guest's own files lie in the root.
pub(crate) const GUEST_DIR: &str = "/opt/guest";

/// `$1` is the root, and `$2` whether it can be written: `ro`, `rw`, or `layer`: into memory. The
/// other arguments are `ro|rw`, a source, a mount point in the root, again and again, up to `--`
/// and the command.
const ENTER: &str = r#"
set -eu
PATH=$PATH:/usr/sbin:/sbin
root=$1
shift
mount --rbind "$root" "$root"
case $1 in
ro) mount -o remount,bind,ro "$root" ;;
layer)
    layer=$root/media
    mount -t tmpfs layer "$layer"
    mkdir "$layer/new" "$layer/work"
    mount -t overlay -o "lowerdir=$root,upperdir=$layer/new,workdir=$layer/work" layer "$root"
    ;;
rw) ;;
*) exit 2 ;;
esac
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

/// A mount in the root: whether it can be written, its source, its place.
pub(super) type Mount<'a> = (bool, PathBuf, &'a str);

/// A command with its own mounts and processes, which do not outlive us.
pub(super) fn namespace(program: &str) -> Command {
    let mut words = vec![];
    if !host::is_root() {
        // A change of user clears the death signal: it is set after that.
        words.extend(["unshare", "--user", "--map-root-user", "--map-auto", "--"]);
    }
    words.extend(["setpriv", "--pdeathsig", "KILL", "--"]);
    words.extend(["unshare", "--mount", "--propagation", "private"]);
    words.extend(["--pid", "--fork", "--kill-child", "--", program]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// `program` inside `root`, to which [`ENTER`] gives this access.
pub(super) fn enter(root: &Path, access: &str, mounts: &[Mount<'_>], program: &str) -> Command {
    let mut command = namespace("sh");
    command.args(["-c", ENTER, "enter"]).arg(root).arg(access);
    for (writable, from, to) in mounts {
        let access = if *writable { "rw" } else { "ro" };
        command.arg(access).arg(from).arg(to);
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

/// Copies the compiled dependencies of the native build for that against rdma-core 44, if this one
/// has not begun. No dependency reads rdma-core's headers, and compiling all of them once more takes
/// a minute of two processors.
pub(crate) fn lend_dependencies(workspace: &Workspace) -> Result<()> {
    let target = workspace.root().join("target");
    let (from, to) = (target.join("guest/debug"), target.join("guest-44/debug"));
    if to.exists() || !from.exists() {
        return Ok(());
    }
    // Cargo writes a fingerprint after the files that it is of. So a build beside us lends no part.
    for part in [".fingerprint", "build", "deps"] {
        let (from, into) = (from.join(part), to.join(part));
        fs::create_dir_all(&into)?;
        let mut copy = Command::new("cp");
        copy.arg("-a").arg("-t").arg(into);
        for entry in fs::read_dir(&from)? {
            let name = entry?.file_name();
            if is_of_dependency(&name.to_string_lossy(), part) {
                copy.arg(from.join(name));
            }
        }
        // A temporary file of that build is gone: then everything is compiled here.
        if output(&mut copy).is_err() {
            return Ok(fs::remove_dir_all(&to)?);
        }
    }
    Ok(())
}

/// Whether it is of none of our packages, and no program.
fn is_of_dependency(file: &str, part: &str) -> bool {
    let name = file.strip_prefix("lib").unwrap_or(file);
    !name.starts_with("rpma") && (part != "deps" || file.contains('.'))
}

/// `cargo` inside the guest's root, in the clone, with the host's Rust toolchain and without a
/// network: everything must have been fetched before. Only the clone can be written.
pub(crate) fn cargo(
    guest: &Guest,
    workspace: &Workspace,
    toolchain: &Toolchain,
    headers: Headers,
    env: &[(&str, String)],
) -> Result<Command> {
    let target = headers.target(guest, workspace)?;
    let mut mounts = mounts(workspace, &toolchain.cargo_home);
    mounts.push((false, toolchain.sysroot.clone(), "/opt/rust"));
    // The way into the running guest, for cargo's runner.
    mounts.push((false, guest.dir.clone(), GUEST_DIR));
    let mut command = enter(&guest.file("root"), "ro", &mounts, "env");
    command
        .args(ENVIRONMENT)
        .arg("PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .arg(format!("CARGO_TARGET_DIR=/src/target/{target}"));
    if headers == Headers::Old44 {
        let own = "/usr/lib/x86_64-linux-gnu/pkgconfig";
        command.arg(format!("PKG_CONFIG_LIBDIR={RDMA_CORE_44}{own}:{own}"));
        command.arg(format!("PKG_CONFIG_SYSROOT_DIR={RDMA_CORE_44}"));
    }
    command.args(env.iter().map(|(name, value)| format!("{name}={value}")));
    command.arg("cargo");
    Ok(command)
}

/// The environment of every build in the root: it has no variable of the host's.
const ENVIRONMENT: [&str; 15] = [
    "-i",
    "--chdir=/src",
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
    // Any linker, flags or wrapper of the host's settings are missing in here.
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=cc",
    "RUSTFLAGS=",
    "RUSTC_WRAPPER=",
    "RUSTC_WORKSPACE_WRAPPER=",
    "RUST_BACKTRACE=1",
];

/// The clone, and only those parts of the host's cargo home that a build reads. Its programs are
/// left out, because they are rustup's and there is no rustup in here. Its login stays private.
fn mounts(workspace: &Workspace, cargo_home: &Path) -> Vec<Mount<'static>> {
    let mut mounts = vec![
        (true, workspace.root().to_owned(), "/src"),
        (true, PathBuf::from("tmpfs"), "/opt/cargo"),
    ];
    for (writable, name, to) in [
        (true, "registry", "/opt/cargo/registry"),
        (true, "git", "/opt/cargo/git"),
        (false, "config.toml", "/opt/cargo/config.toml"),
    ] {
        let path = cargo_home.join(name);
        if path.exists() {
            mounts.push((writable, path, to));
        }
    }
    mounts
}

/// Compiles the whole workspace with the oldest Rust that it promises to take, which is Debian 13's
/// own: in the guest's root, to which it is added for this once. That takes the network.
pub(crate) fn oldest_rust(
    guest: &Guest,
    workspace: &Workspace,
    toolchain: &Toolchain,
    version: &str,
) -> Command {
    const SCRIPT: &str = r#"
        set -eu
        apt-get -q update
        apt-get -q -y install --no-install-recommends cargo rustc
        rustc --version
        rustc --version | grep -q "^rustc $1\."
        cargo check --locked --workspace --all-targets --features rpma-examples/device
        cargo check --locked --workspace --all-targets --no-default-features --features rpma-examples/sim
    "#;
    let mut mounts = mounts(workspace, &toolchain.cargo_home);
    mounts.extend(resolv_conf());
    let mut command = enter(&guest.file("root"), "layer", &mounts, "env");
    command
        .args(ENVIRONMENT)
        .arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin")
        .arg("CARGO_TARGET_DIR=/src/target/oldest-rust")
        .arg("DEBIAN_FRONTEND=noninteractive")
        .args(["sh", "-c", SCRIPT, "sh", version]);
    command
}

/// How names are looked up, for commands that use the network.
pub(super) fn resolv_conf() -> Option<Mount<'static>> {
    let path = PathBuf::from("/etc/resolv.conf");
    path.exists().then_some((false, path, "/etc/resolv.conf"))
}
