//! The kernel's side: modules, device files, the limit of locked memory, containers; and rdma-core.

use std::fs::OpenOptions;
use std::io;

use rustix::process::geteuid;
use serde::Serialize;

use super::Files;

/// The modules that every program on librdmacm needs, in the order of their dependences; and a file
/// that each of them makes, also if it is built in.
const MODULES: [(&str, &str); 4] = [
    ("ib_core", "sys/class/infiniband"),
    ("ib_uverbs", "sys/class/infiniband_verbs"),
    // It makes no file of its own.
    ("rdma_cm", "sys/class/misc/rdma_cm"),
    ("rdma_ucm", "sys/class/misc/rdma_cm"),
];

/// The capability to lock memory without a limit.
const CAP_IPC_LOCK: u32 = 14;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Module {
    pub(crate) name: &'static str,
    pub(crate) state: ModuleState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModuleState {
    Loaded,
    BuiltIn,
    /// It can be loaded, as far as this process sees.
    Missing,
    /// It cannot be loaded: this kernel was built without it.
    Absent,
}

/// Whether this kernel has soft-RoCE. `None` if its modules cannot be seen, as in a container.
pub(super) fn has_soft_roce(files: &Files) -> Option<bool> {
    let is_soft_roce = |name: &str| name == "rdma_rxe";
    if files.exists("sys/module/rdma_rxe") {
        return Some(true);
    }
    let mut lists =
        ["modules.dep", "modules.builtin"].map(|list| listed(files, list, is_soft_roce));
    lists[0].as_ref()?;
    Some(lists.iter_mut().flatten().any(|list| !list.is_empty()))
}

/// Which modules are there.
pub(super) fn modules(files: &Files) -> Vec<Module> {
    let is_ours = |name: &str| MODULES.iter().any(|(ours, _)| *ours == name);
    let built_in = listed(files, "modules.builtin", is_ours).unwrap_or_default();
    // In a container there is no such file.
    let loadable = listed(files, "modules.dep", is_ours);
    let state = |name: &str, made: &str| {
        let is_in = |list: &Vec<String>| list.iter().any(|module| module == name);
        if is_in(&built_in) {
            ModuleState::BuiltIn
        } else if files.exists(format!("sys/module/{name}")) || files.exists(made) {
            ModuleState::Loaded
        } else if loadable.as_ref().is_none_or(is_in) {
            ModuleState::Missing
        } else {
            ModuleState::Absent
        }
    };
    let module = |(name, made)| Module {
        name,
        state: state(name, made),
    };
    MODULES.map(module).into()
}

/// The wanted modules that a list of the kernel's build has. A line begins with a path:
/// `kernel/drivers/infiniband/core/ib_core.ko.xz: ...`.
fn listed(files: &Files, list: &str, is_wanted: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let release = files.word("proc/sys/kernel/osrelease")?;
    let lines = files.lines(format!("lib/modules/{release}/{list}")).ok()?;
    let name = |line: String| {
        let path = line.split(':').next()?;
        let file = path.rsplit('/').next()?;
        Some(file.split('.').next()?.replace('-', "_"))
    };
    let is_wanted = |name: &String| is_wanted(name);
    Some(lines.filter_map(name).filter(is_wanted).collect())
}

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
    /// The reason.
    Refused(String),
}

/// The files of the devices that sysfs has, and that of the connection manager.
pub(super) fn nodes(files: &Files) -> Vec<Node> {
    let names = files.names("sys/class/infiniband_verbs");
    let devices = names.iter().filter(|name| name.starts_with("uverbs"));
    let verbs = devices.map(|name| {
        let device = files.word(format!("sys/class/infiniband_verbs/{name}/ibdev"));
        node(files, name, device)
    });
    [node(files, "rdma_cm", None)]
        .into_iter()
        .chain(verbs)
        .collect()
}

/// Opening one of these files does nothing: every command is an `ioctl` or a `write`.
fn node(files: &Files, name: &str, device: Option<String>) -> Node {
    let path = format!("dev/infiniband/{name}");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open(files.at(&path));
    Node {
        path: format!("/{path}"),
        device,
        access: match opened {
            Ok(_) => Access::Usable,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Access::Missing,
            Err(error) => Access::Refused(error.to_string()),
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
        ignored: has_capability(files, CAP_IPC_LOCK) && is_in_first_namespace(files),
    }
}

/// `Max locked memory       8388608              8388608              bytes`: the soft limit.
fn memlock(files: &Files) -> Option<u64> {
    let mut lines = files.lines("proc/self/limits").ok()?;
    let limits = lines.find_map(|line| Some(line.strip_prefix("Max locked memory")?.to_owned()))?;
    limits.split_whitespace().next()?.parse().ok()
}

/// `CapEff:` and the digits in the status of this process.
fn has_capability(files: &Files, capability: u32) -> bool {
    let Ok(mut lines) = files.lines("proc/self/status") else {
        return false;
    };
    let effective = lines.find_map(|line| {
        let digits = line.strip_prefix("CapEff:")?;
        u64::from_str_radix(digits.trim(), 16).ok()
    });
    effective.is_some_and(|effective| effective >> capability & 1 == 1)
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

/// The name of the mapped file has the version: `libibverbs.so.1.14.56.0`.
fn loaded(files: &Files) -> Option<u32> {
    let mut lines = files.lines("proc/self/maps").ok()?;
    lines.find_map(|line| {
        let (_, file) = line.rsplit_once('/')?;
        release_of(file.strip_prefix("libibverbs.so.")?)
    })
}

/// libibverbs carries rdma-core's version as its third number: `1.14.56.0`.
fn release_of(version: &str) -> Option<u32> {
    version.split('.').nth(2)?.parse().ok()
}

/// The drivers of devices, and their providers in rdma-core.
pub(super) const PROVIDERS: [(&str, &str); 16] = [
    ("mlx4_core", "mlx4"),
    ("mlx5_core", "mlx5"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("cxgb4", "cxgb4"),
    ("qede", "qedr"),
    ("hns3", "hns"),
    ("be2net", "ocrdma"),
    ("hfi1", "hfi1verbs"),
    ("ib_qib", "ipathverbs"),
    ("erdma", "erdma"),
    ("mana", "mana"),
    ("vmw_pvrdma", "vmw_pvrdma"),
    ("rdma_rxe", "rxe"),
    ("siw", "siw"),
];

/// The providers that are installed: `mlx5.driver`.
pub(super) fn providers(files: &Files) -> Vec<String> {
    let names = files.names("etc/libibverbs.d").into_iter();
    names
        .filter_map(|name| Some(name.strip_suffix(".driver")?.to_owned()))
        .collect()
}

/// The first two numbers of a kernel's release.
pub(crate) fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The name of this process's user, or the number if `/etc/passwd` does not have it.
pub(crate) fn user_name(files: &Files) -> String {
    let number = geteuid().as_raw().to_string();
    let name = |line: String| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    };
    let lines = files.lines("etc/passwd");
    let mut names = lines.into_iter().flatten().filter_map(name);
    names.next().unwrap_or(number.clone())
}

/// A program that makes containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Container {
    Docker,
    Podman,
    Kubernetes,
    Lxc,
    SystemdNspawn,
    /// The process is in namespaces of its own.
    Unknown,
}

impl Container {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Kubernetes => "kubernetes",
            Self::Lxc => "lxc",
            Self::SystemdNspawn => "systemd-nspawn",
            Self::Unknown => "of an unknown program",
        }
    }

    /// From the word that its program gives: `container=` of the first process, and the files that
    /// systemd makes of it.
    fn from_word(word: &str) -> Self {
        match word.trim() {
            "docker" => Self::Docker,
            "podman" | "oci" => Self::Podman,
            "kube" | "kubernetes" => Self::Kubernetes,
            "lxc" | "lxc-libvirt" => Self::Lxc,
            "systemd-nspawn" => Self::SystemdNspawn,
            _ => Self::Unknown,
        }
    }
}

/// A directory that Kubernetes mounts.
const SERVICE_ACCOUNT: &str = "run/secrets/kubernetes.io/serviceaccount";
/// The namespaces of the host have these numbers (`PROC_PID_INIT_INO` and the others).
const FIRST_NAMESPACES: [(&str, &str); 5] = [
    ("pid", "pid:[4026531836]"),
    ("cgroup", "cgroup:[4026531835]"),
    ("uts", "uts:[4026531838]"),
    ("ipc", "ipc:[4026531839]"),
    ("user", "user:[4026531837]"),
];

/// The container of this process. A mark of its program counts only if a namespace can be another
/// one than the host's: a disk that was made from an image has the mark as well.
pub(super) fn container(files: &Files) -> Option<Container> {
    let is_first = |(kind, first): (&str, &str)| {
        let own = files.link(format!("proc/self/ns/{kind}"))?;
        Some(own == first)
    };
    let are_first = FIRST_NAMESPACES.map(is_first);
    if are_first == [Some(true); 5] {
        return None;
    }
    let is_apart = are_first[..2].contains(&Some(false));
    marked(files).or(is_apart.then_some(Container::Unknown))
}

/// The program whose mark is there.
fn marked(files: &Files) -> Option<Container> {
    let has_account = |dir: &&str| files.exists(format!("{dir}{SERVICE_ACCOUNT}"));
    if ["", "var/"].iter().any(has_account) {
        return Some(Container::Kubernetes);
    }
    if files.exists("run/.containerenv") {
        return Some(Container::Podman);
    }
    if files.exists(".dockerenv") {
        return Some(Container::Docker);
    }
    let words = ["run/systemd/container", "run/host/container-manager"];
    let word = words.iter().find_map(|path| files.word(path));
    let word = word.or_else(|| first_process(files))?;
    Some(Container::from_word(&word))
}

/// The variable `container` of the first process, if this user may read it.
fn first_process(files: &Files) -> Option<String> {
    let variables = files.word("proc/1/environ")?;
    let mut variables = variables.split('\0');
    let word = variables.find_map(|variable| variable.strip_prefix("container="))?;
    (!word.is_empty()).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::tree;
    use super::*;

    fn states(paths: &[(&str, &str)]) -> io::Result<Vec<ModuleState>> {
        let tree = tree(paths)?;
        let modules = modules(&Files::new(tree.path()));
        Ok(modules.iter().map(|module| module.state).collect())
    }

    #[test]
    fn modules_are_loaded_built_in_or_missing() -> io::Result<()> {
        use ModuleState::{Absent, BuiltIn, Loaded, Missing};
        assert_eq!(states(&[])?, [Missing; 4]);
        let loaded = [
            ("sys/module/ib_core/", ""),
            ("sys/module/ib_uverbs/", ""),
            ("sys/module/rdma_cm/", ""),
        ];
        assert_eq!(states(&loaded)?, [Loaded, Loaded, Loaded, Missing]);
        let built_in = [
            ("proc/sys/kernel/osrelease", "6.12.1\n"),
            (
                "lib/modules/6.12.1/modules.builtin",
                "kernel/drivers/infiniband/core/ib_core.ko\nkernel/drivers/infiniband/core/rdma_cm.ko\nspoilt\n",
            ),
            ("sys/class/infiniband_verbs/", ""),
        ];
        assert_eq!(states(&built_in)?, [BuiltIn, Loaded, BuiltIn, Missing]);
        let cut_down = [
            ("proc/sys/kernel/osrelease", "6.12.1\n"),
            (
                "lib/modules/6.12.1/modules.dep",
                "kernel/drivers/infiniband/core/ib_core.ko.xz: kernel/drivers/dax/rdma_cm.ko.xz\n",
            ),
        ];
        assert_eq!(states(&cut_down)?, [Missing, Absent, Absent, Absent]);
        // In a container without /lib/modules, the files show it.
        assert_eq!(
            states(&[("sys/class/misc/rdma_cm/", "")])?[2..],
            [Loaded; 2]
        );
        Ok(())
    }

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
        assert!(matches!(second.access, Access::Refused(_)), "{second:?}");
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
    fn a_user_has_a_name_or_a_number() -> io::Result<()> {
        let number = geteuid().as_raw().to_string();
        let passwd =
            format!("spoilt\nother:x:4000000000:1\nann:x:{number}:1:::\nbob:x:{number}:1\n");
        let known = tree(&[("etc/passwd", &passwd)])?;
        assert_eq!(user_name(&Files::new(known.path())), "ann");
        assert_eq!(user_name(&Files::new(tree(&[])?.path())), number);
        Ok(())
    }

    /// Promise: the usual programs leave these marks, and a word in a line is none.
    #[test]
    fn containers_are_seen_by_their_properties() -> io::Result<()> {
        use Container::{Docker, Kubernetes, Lxc, Podman, SystemdNspawn, Unknown};
        for (file, text, kind) in [
            ("run/.containerenv", "", Some(Podman)),
            (".dockerenv", "", Some(Docker)),
            ("run/systemd/container", "lxc\n", Some(Lxc)),
            (
                "run/host/container-manager",
                "systemd-nspawn\n",
                Some(SystemdNspawn),
            ),
            ("proc/1/environ", "A=1\0container=lxc\0", Some(Lxc)),
            ("proc/1/environ", "A=1\0xcontainer=lxc\0", None),
            (
                "run/secrets/kubernetes.io/serviceaccount/",
                "",
                Some(Kubernetes),
            ),
            (
                "var/run/secrets/kubernetes.io/serviceaccount/",
                "",
                Some(Kubernetes),
            ),
            ("proc/self/ns/pid", "-> pid:[4026531836]", None),
            ("proc/self/ns/pid", "-> pid:[4026532198]", Some(Unknown)),
            (
                "proc/self/ns/cgroup",
                "-> cgroup:[4026532198]",
                Some(Unknown),
            ),
            // A login on a host, whose user has built something.
            (
                "proc/self/cgroup",
                "0::/user.slice/docker-build/lxc.scope\n",
                None,
            ),
            (
                "proc/self/cgroup",
                "4:rdma:/kubepods/burstable/pod1\n",
                None,
            ),
        ] {
            let tree = tree(&[(file, text)])?;
            assert_eq!(container(&Files::new(tree.path())), kind, "{file} {text}");
        }
        Ok(())
    }

    /// Promise: a disk that was made from an image of docker is no container.
    #[test]
    fn a_mark_in_the_namespaces_of_the_host_is_none() -> io::Result<()> {
        let files = |other: Option<&str>| {
            let links = FIRST_NAMESPACES.map(|(kind, first)| {
                let target = match other == Some(kind) {
                    true => format!("-> {kind}:[4026532198]"),
                    false => format!("-> {first}"),
                };
                (format!("proc/self/ns/{kind}"), target)
            });
            let mut files: Vec<_> = links
                .iter()
                .map(|(path, text)| (&**path, &**text))
                .collect();
            files.push((".dockerenv", ""));
            let tree = tree(&files)?;
            Ok::<_, io::Error>(container(&Files::new(tree.path())))
        };
        assert_eq!(files(None)?, None);
        for (kind, _) in FIRST_NAMESPACES {
            assert_eq!(files(Some(kind))?, Some(Container::Docker), "{kind}");
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
