//! The usual causes of failed calls and their remedies, in one place: by the number of the error, the
//! object that the call makes, and the limits of this process.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// A cause and its remedy. Either can be empty.
pub(crate) type Hint = &'static [&'static str; 2];

/// A reason and its remedy. A remedy that begins with a capital letter is a sentence of its own.
pub(crate) fn with_remedy(reason: &str, remedy: &str) -> String {
    match remedy.chars().next() {
        None => reason.to_owned(),
        Some(first) if first.is_uppercase() => format!("{reason}. {remedy}"),
        Some(_) => format!("{reason}: {remedy}"),
    }
}

/// For `ENODEV` and `ENXIO` of an object that had a device.
const DEVICE_REMOVED: Hint = &[
    "This host's RDMA device was removed, and all objects on it have ended",
    "drop them, and open the device again when it is back",
];

/// A right to flush to persistence that the device refuses.
pub(crate) const PERSISTENT: Hint = &[
    "The device takes the memory for volatile, and a persistent flush needs persistent memory",
    "register it without MrUsage::FLUSH_TYPE_PERSISTENT, or use a device-DAX",
];

const DESCRIPTORS: Hint = &[
    "This process has as many open files as it may, and each connection has up to five descriptors",
    "raise RLIMIT_NOFILE (`ulimit -n`, LimitNOFILE= of a systemd unit), or make the connections for a Wait, \
     where they share a completion channel",
];
const LOCKED: Hint = &[
    "Registered memory is locked, and this process may not lock so much",
    "raise RLIMIT_MEMLOCK (`ulimit -l unlimited`, LimitMEMLOCK= of a systemd unit) or give the process CAP_IPC_LOCK",
];
const NO_MEMORY: Hint = &[
    "The host or the device has no room for this memory. RLIMIT_MEMLOCK is not the reason, because it does not \
     bind this process",
    "register less memory or fewer regions, and look at the kernel's log (dmesg)",
];
const LOCKED_OBJECT: Hint = &[
    "Adapters such as mlx5 lock memory for this object, and this process may lock only little; or the device has no \
     room for an object of this size",
    "raise RLIMIT_MEMLOCK (`ulimit -l unlimited`, LimitMEMLOCK= of a systemd unit), or ask for fewer slots",
];
const NO_ROOM: Hint = &[
    "The host or the device has no room for an object of this size. RLIMIT_MEMLOCK is not the reason, because it \
     does not bind this process",
    "ask for fewer slots, and look at the kernel's log (dmesg)",
];
const CGROUP: Hint = &[
    "The rdma controller of this process's cgroup allows no more objects of the device (rdma.max), or the device \
     has none left",
    "raise rdma.max of the cgroup, or end programs that use the device (`rdma resource` counts the objects)",
];
const DEVICE_FULL: Hint = &[
    "The device has no room for another object of this kind",
    "end programs that use the device, or make fewer objects (`rdma resource` counts them)",
];
const ON_DEMAND_PAGING: Hint = &[
    "A file on a DAX file system can be registered only on a device with on-demand paging",
    "use a device-DAX (/dev/dax…) instead",
];
const NOT_PINNED: Hint = &[
    "Since Linux 6.5 the kernel does not pin a mapping of an ordinary file for writing, and a mapping must have \
     the rights that the usage needs",
    "use a device-DAX, or register anonymous memory and copy to the file",
];
const FORK: Hint = &[
    "The kernel refuses verbs in the child of a fork and after a change of credentials",
    "do both before the device is opened",
];

/// The limits of a process that calls fail for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// No limit of locked memory binds the process.
    locks_freely: bool,
}

impl Limits {
    pub(crate) fn of_this_process() -> Self {
        let is_unlimited = || getrlimit(Resource::Memlock).current.is_none();
        let may_lock = || {
            let sets = capabilities(None);
            sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
        };
        Self {
            locks_freely: is_unlimited() || (may_lock() && is_user_of_the_host()),
        }
    }
}

/// Whether the capabilities of this process are those of the host: a container of an ordinary user
/// has its own.
fn is_user_of_the_host() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map");
    map.map_or(true, |map| {
        map.split_whitespace().eq(["0", "0", "4294967295"])
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Region,
    /// A protection domain, a completion queue, a shared receive queue or a queue pair.
    InDevice,
    Channel,
    /// An address. librdmacm opens its device, and makes a protection domain.
    Address,
    /// A post to a queue.
    Post,
    Other,
}

impl Object {
    fn of(call: &str) -> Self {
        match call {
            "ibv_reg_mr" => Self::Region,
            "ibv_alloc_pd" | "ibv_create_cq" | "ibv_create_srq" | "rdma_create_qp" => {
                Self::InDevice
            }
            "ibv_create_comp_channel" | "rdma_create_event_channel" => Self::Channel,
            "rdma_create_id" | "rdma_bind_addr" | "rdma_resolve_addr" | "rdma_resolve_route" => {
                Self::Address
            }
            _ if call.starts_with("ibv_post_") || call.starts_with("ibv_wr_") => Self::Post,
            _ => Self::Other,
        }
    }
}

/// The usual cause of a failed call of verbs or librdmacm, and its remedy, if they are known.
#[cold]
pub(crate) fn of(call: &str, errno: Errno, limits: impl Fn() -> Limits) -> Option<Hint> {
    use Object::{Address, Channel, InDevice, Other, Post, Region};
    if !(call.starts_with("ibv_") || call.starts_with("rdma_")) {
        return None;
    }
    Some(match (Object::of(call), errno) {
        // EPERM is for a limit of 0.
        (Region, Errno::NOMEM | Errno::PERM) if limits().locks_freely => NO_MEMORY,
        (Region, Errno::NOMEM | Errno::PERM) => LOCKED,
        (InDevice, Errno::NOMEM) if limits().locks_freely => NO_ROOM,
        (InDevice, Errno::NOMEM) => LOCKED_OBJECT,
        (Address | Region | InDevice, Errno::AGAIN) => CGROUP,
        (Region | InDevice, Errno::NOSPC) => DEVICE_FULL,
        (Region, Errno::OPNOTSUPP) => ON_DEMAND_PAGING,
        (Region, Errno::FAULT) => NOT_PINNED,
        (Channel, Errno::MFILE | Errno::NFILE) => DESCRIPTORS,
        (Post, Errno::ACCESS) => FORK,
        (Region | InDevice | Post | Other, Errno::NODEV | Errno::NXIO) => DEVICE_REMOVED,
        (Address | Channel | InDevice | Other | Post | Region, _) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Limits = Limits {
        locks_freely: false,
    };
    const FREE: Limits = Limits { locks_freely: true };
    const IN_DEVICE: [&str; 4] = [
        "ibv_alloc_pd",
        "ibv_create_cq",
        "ibv_create_srq",
        "rdma_create_qp",
    ];

    fn hint(call: &str, errno: Errno, limits: Limits) -> [&'static str; 2] {
        *of(call, errno, || limits).unwrap_or_else(|| panic!("{call} {errno:?}"))
    }

    /// Promise: the limit is the remedy of memory that cannot be locked, for each object, and only
    /// if it binds this process.
    #[test]
    fn a_limit_is_raised_only_if_it_binds() {
        for call in [&["ibv_reg_mr"][..], &IN_DEVICE].concat() {
            let [cause, remedy] = hint(call, Errno::NOMEM, BOUND);
            assert!(
                remedy.starts_with("raise RLIMIT_MEMLOCK"),
                "{call}: {remedy}"
            );
            assert!(!cause.is_empty(), "{call}");
            let [cause, remedy] = hint(call, Errno::NOMEM, FREE);
            assert!(
                cause.contains("RLIMIT_MEMLOCK is not the reason"),
                "{call}: {cause}"
            );
            assert!(!remedy.contains("MEMLOCK"), "{call}: {remedy}");
        }
        assert_eq!(hint("ibv_reg_mr", Errno::PERM, BOUND), *LOCKED);
    }

    /// Promise: a full cgroup, a full device and a device that is gone have hints of their own.
    #[test]
    fn each_object_has_the_causes_of_its_device() {
        for call in [&["ibv_reg_mr"][..], &IN_DEVICE].concat() {
            assert_eq!(hint(call, Errno::AGAIN, FREE), *CGROUP, "{call}");
            assert_eq!(hint(call, Errno::NOSPC, FREE), *DEVICE_FULL, "{call}");
            for errno in [Errno::NODEV, Errno::NXIO] {
                assert_eq!(hint(call, errno, FREE), *DEVICE_REMOVED, "{call}");
            }
        }
        assert_eq!(hint("rdma_bind_addr", Errno::AGAIN, FREE), *CGROUP);
        for call in ["ibv_post_send", "rdma_get_cm_event", "ibv_req_notify_cq"] {
            assert_eq!(hint(call, Errno::NXIO, FREE), *DEVICE_REMOVED, "{call}");
        }
    }

    #[test]
    fn a_remedy_is_a_part_of_a_sentence_or_a_sentence() {
        for (remedy, text) in [
            ("", "it ended"),
            ("try again", "it ended: try again"),
            ("Do it", "it ended. Do it"),
        ] {
            assert_eq!(with_remedy("it ended", remedy), text);
        }
    }

    /// No event now, a wrong address and a file of the system are no failed device.
    #[test]
    fn other_failures_have_no_hint_of_a_device() {
        for (call, errno) in [
            ("rdma_get_cm_event", Errno::AGAIN),
            ("rdma_bind_addr", Errno::NODEV),
            ("rdma_resolve_addr", Errno::NODEV),
            ("open", Errno::NXIO),
            ("mmap", Errno::NOMEM),
            ("ibv_post_send", Errno::NOMEM),
        ] {
            assert_eq!(of(call, errno, || FREE), None, "{call}");
        }
    }
}
