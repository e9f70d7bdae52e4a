//! Device files, the limit of locked memory, the user, and the versions of the kernel and rdma-core.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;
use serde::Serialize;

use super::Files;

/// A device file that the libraries open.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) path: String,
    /// The RDMA device. `rdma_cm` is for all of them.
    pub(crate) device: Option<String>,
    pub(crate) access: Access,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It was opened for reading and writing.
    Usable,
    Missing,
    Refused {
        reason: String,
        /// Not the file's permissions forbid it (`EACCES`), but a rule of a control group (`EPERM`).
        by_rule: bool,
    },
}

/// The files of the devices that sysfs has, and that of the connection manager.
pub(super) fn nodes(files: &Files) -> Vec<Node> {
    let mut nodes = vec![node(files, "rdma_cm", None)];
    for name in files.names("sys/class/infiniband_verbs") {
        if name.starts_with("uverbs") {
            let device = files.word(format!("sys/class/infiniband_verbs/{name}/ibdev"));
            nodes.push(node(files, &name, device));
        }
    }
    nodes
}

/// Opening one of these files does nothing: every command is an `ioctl` or a `write`.
fn node(files: &Files, name: &str, device: Option<String>) -> Node {
    let path = format!("dev/infiniband/{name}");
    let opened = File::options().read(true).write(true).open(files.at(&path));
    Node {
        path: format!("/{path}"),
        device,
        access: match opened {
            Ok(_) => Access::Usable,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Access::Missing,
            Err(error) => Access::Refused {
                by_rule: error.raw_os_error() == Some(Errno::PERM.raw_os_error()),
                reason: error.to_string(),
            },
        },
    }
}

/// How much memory this process may lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LockedMemory {
    /// In bytes. `None` is without a limit, or unknown.
    pub(crate) limit: Option<u64>,
    /// The process has CAP_IPC_LOCK, and the limit does not count.
    pub(crate) ignored: bool,
}

impl LockedMemory {
    /// The limit, if memory of that length cannot be registered with it. The library registers a
    /// page of its own, so the limit must be higher.
    pub(crate) fn too_low_for(self, len: usize) -> Option<u64> {
        let limit = self.limit.filter(|_| !self.ignored)?;
        (limit <= len as u64).then_some(limit)
    }
}

pub(super) fn locked_memory(files: &Files) -> LockedMemory {
    LockedMemory {
        limit: memlock(files),
        ignored: may_lock(files) && is_in_first_namespace(files),
    }
}

/// `Max locked memory       8388608              8388608              bytes`: the soft limit.
fn memlock(files: &Files) -> Option<u64> {
    let mut lines = files.lines("proc/self/limits").ok()?;
    let limits = lines.find_map(|line| Some(line.strip_prefix("Max locked memory")?.to_owned()))?;
    limits.split_whitespace().next()?.parse().ok()
}

/// Whether this process may lock memory without a limit (`CAP_IPC_LOCK`): a line of its status is
/// `CapEff:` and digits.
fn may_lock(files: &Files) -> bool {
    let mut lines = files.lines("proc/self/status").into_iter().flatten();
    let digits = lines.find_map(|line| Some(line.strip_prefix("CapEff:")?.trim().to_owned()));
    let effective = digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok());
    effective.is_some_and(|effective| effective >> 14 & 1 == 1)
}

/// The control group of this process.
fn control_group(files: &Files) -> Option<String> {
    let mut lines = files.lines("proc/self/cgroup").into_iter().flatten();
    lines.find_map(|line| Some(line.strip_prefix("0::/")?.to_owned()))
}

/// The limits of users do not count for services of the system.
pub(super) fn unit(files: &Files) -> Option<String> {
    let group = control_group(files)?;
    let unit = group.strip_prefix("system.slice/")?.split('/').next()?;
    unit.ends_with(".service").then(|| unit.to_owned())
}

/// The limits of the control groups of this process, the nearest first. A line is
/// `mlx5_0 hca_handle=4 hca_object=max`.
pub(super) fn rdma_max(files: &Files) -> Vec<(String, String, String)> {
    let own = control_group(files).map(|own| format!("sys/fs/cgroup/{own}"));
    let groups = own.iter().flat_map(|own| Path::new(own).ancestors());
    let files_of = groups.map(|group| group.join("rdma.max").display().to_string());
    let limits = files_of.flat_map(|path| {
        let lines = files.lines(&path).into_iter().flatten();
        let device = |line: String| {
            let (name, limits) = line.split_once(' ')?;
            let mut each = limits.split_whitespace();
            let is_limited = each.any(|limit| !limit.ends_with("=max"));
            is_limited.then(|| (name.into(), limits.into(), format!("/{path}")))
        };
        lines.filter_map(device).collect::<Vec<_>>()
    });
    limits.collect()
}

/// The user of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct User {
    pub(crate) is_root: bool,
    /// The users of this process are others than those of the host, as in a container of an ordinary
    /// user.
    pub(crate) is_mapped: bool,
}

pub(super) fn user(files: &Files) -> User {
    User {
        is_root: geteuid().is_root(),
        is_mapped: !is_in_first_namespace(files),
    }
}

/// Whether the users of this process are those of the host. A container of an ordinary user has a
/// part of them, and its capabilities do not count for the limit.
fn is_in_first_namespace(files: &Files) -> bool {
    let map = files.word("proc/self/uid_map");
    map.is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// The version of rdma-core: the one that this process has loaded, and the one that it was compiled
/// with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RdmaCore {
    pub(crate) loaded: Option<u32>,
    pub(crate) built_with: Option<u32>,
}

pub(super) fn rdma_core(files: &Files) -> RdmaCore {
    RdmaCore {
        loaded: loaded(files),
        built_with: option_env!("RPMA_CLI_BUILT_WITH").and_then(release_of),
    }
}

/// The path of libibverbs, which this process has mapped: `/usr/lib/libibverbs.so.1.14.56.0`.
pub(super) fn libibverbs(files: &Files) -> Option<String> {
    let mut lines = files.lines("proc/self/maps").ok()?;
    lines.find_map(|line| {
        let (_, path) = line.split_once('/')?;
        path.contains("/libibverbs.so.").then(|| format!("/{path}"))
    })
}

/// The path has the version.
fn loaded(files: &Files) -> Option<u32> {
    let path = libibverbs(files)?;
    let (_, version) = path.rsplit_once("/libibverbs.so.")?;
    release_of(version)
}

/// libibverbs carries rdma-core's version as its third number: `1.14.56.0`.
fn release_of(version: &str) -> Option<u32> {
    version.split('.').nth(2)?.parse().ok()
}

/// The first two numbers of a kernel's release.
pub(crate) fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::tree;
    use super::*;

    #[test]
    fn device_files_are_tried() -> io::Result<()> {
        let tree = tree(&[
            ("sys/class/infiniband_verbs/abi_version", "6"),
            ("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0"),
            ("sys/class/infiniband_verbs/uverbs1/ibdev", "rxe1"),
            ("dev/infiniband/uverbs0", ""),
            // Not even root opens a directory for writing.
            ("dev/infiniband/uverbs1/", ""),
        ])?;
        let nodes = nodes(&Files::new(tree.path()));
        let [cm, first, second] = &nodes[..] else {
            panic!("{nodes:?}");
        };
        assert_eq!(
            (cm.path.as_str(), &cm.access),
            ("/dev/infiniband/rdma_cm", &Access::Missing)
        );
        assert_eq!(
            (first.device.as_deref(), &first.access),
            (Some("rxe0"), &Access::Usable)
        );
        assert!(
            matches!(second.access, Access::Refused { by_rule: false, .. }),
            "{second:?}"
        );
        Ok(())
    }

    #[test]
    fn the_limit_of_locked_memory_has_an_exception() -> io::Result<()> {
        let limits = |limit: &str, capabilities: &str| {
            let limits = format!("Limit  Soft Limit\nMax locked memory  {limit}  65536  bytes \n");
            let status = format!("Name:\trpma\nCapEff:\t{capabilities}\n");
            let tree = tree(&[("proc/self/limits", &limits), ("proc/self/status", &status)])?;
            Ok::<_, io::Error>(locked_memory(&Files::new(tree.path())))
        };
        let of = |limit, ignored| LockedMemory { limit, ignored };
        assert_eq!(limits("65536", "0000000000000000")?, of(Some(65536), false));
        assert_eq!(limits("unlimited", "0000000000000000")?, of(None, false));
        assert_eq!(limits("65536", "0000000000004000")?, of(Some(65536), true));
        assert_eq!(limits("65536", "spoilt")?, of(Some(65536), false));
        Ok(())
    }

    #[test]
    fn the_limit_must_be_higher_than_the_memory() {
        let of = |limit, ignored| LockedMemory { limit, ignored };
        assert_eq!(of(Some(4096), false).too_low_for(4096), Some(4096));
        assert_eq!(of(Some(4097), false).too_low_for(4096), None);
        assert_eq!(of(Some(0), true).too_low_for(4096), None);
        assert_eq!(of(None, false).too_low_for(usize::MAX), None);
    }

    /// Root of a container that an ordinary user has started.
    #[test]
    fn a_capability_of_a_container_is_none_of_the_host() -> io::Result<()> {
        for (map, ignored) in [
            ("         0          0 4294967295\n", true),
            ("0 1000 1\n1 100000 65536\n", false),
        ] {
            let tree = tree(&[
                ("proc/self/status", "CapEff:\t000001ffffffffff\n"),
                ("proc/self/uid_map", map),
            ])?;
            let found = locked_memory(&Files::new(tree.path()));
            assert_eq!(found.ignored, ignored, "{map}");
        }
        Ok(())
    }

    #[test]
    fn rdma_cores_version_is_in_the_name_of_a_file() -> io::Result<()> {
        let maps = |line: &str| {
            let tree = tree(&[("proc/self/maps", line)])?;
            Ok::<_, io::Error>(loaded(&Files::new(tree.path())))
        };
        let line = "7f2c-7f2d r--p 0 fe:01 12   /usr/lib/x86_64-linux-gnu/";
        assert_eq!(
            maps(&format!(
                "7f00-7f01 rw-p 0 0 0\n{line}libibverbs.so.1.14.56.0\n"
            ))?,
            Some(56)
        );
        for name in ["libibverbs.so.1", "libc.so.6", "libibverbs.so.1.14.x", ""] {
            assert_eq!(maps(&format!("{line}{name}\n"))?, None, "{name}");
        }
        Ok(())
    }

    #[test]
    fn a_release_begins_with_two_numbers() {
        assert_eq!(release_number("6.12.43+deb13-amd64"), Some((6, 12)));
        assert_eq!(release_number("6.1"), Some((6, 1)));
        assert_eq!(release_number("six"), None);
    }
}
