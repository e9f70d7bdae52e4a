//! The remedies. docs/getting-started.md has the same commands with their reasons.

mod containers;
mod memory;
mod ports;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;

use rpma::Error;
use rustix::io::Errno;

pub(super) use self::containers::give;
use self::containers::{give_network, give_path};
pub(super) use self::memory::{device_remedy, other_memory};
pub(super) use self::ports::{inactive, no_address};
use crate::facts::{Container, Facts};
use crate::problem;
pub(super) use crate::problem::reason;

/// Where that page begins with hardware.
const PAGE: &str = "docs/getting-started.md";

pub(super) const MEND: &str = "mend each BAD line above, from the top, and run `rpma doctor` again";

/// After a good end. The devices are of iWARP, are not, or some are.
pub(super) fn try_between_hosts(iwarp: bool, others: bool) -> String {
    let firewalls = match (iwarp, others) {
        (true, false) => "let the TCP port of `rpma serve` pass (7204, unless you give another)",
        (false, _) => "let RoCE pass (UDP port 4791)",
        (true, true) => "let RoCE pass (UDP port 4791), and for iWARP the TCP port of `rpma serve`",
    };
    format!(
        "try it between two hosts: `rpma serve ADDR` here, and `rpma check ADDR` on the other host. Firewalls must \
         {firewalls}"
    )
}

/// For a module that is not loaded. The devices' own modules come with the adapter's driver.
pub(super) fn load(modules: &[&str], container: bool) -> String {
    let place = if container {
        "as root, on the host of the container"
    } else {
        "as root"
    };
    format!("{place}: modprobe -a {}", modules.join(" "))
}

/// For a kernel that was built without the modules.
pub(super) const OTHER_KERNEL: &str = "install the kernel package with all modules: linux-image-amd64 in the place of \
                                       a cloud kernel, linux-modules-extra on Ubuntu, kernel-modules-extra on Fedora";

/// For a device whose provider is not installed.
pub(super) const PROVIDERS: &str = "install rdma-core's providers: ibverbs-providers on Debian and Ubuntu, libibverbs on \
                                    Fedora and RHEL";

/// Without an RDMA device that rpma can use.
pub(super) fn no_device(facts: &Facts) -> String {
    if let Some(container) = facts.container {
        return format!(
            "if the host of the container has an RDMA device: {}. If not, {PAGE} has the ways to one",
            give(container, facts)
        );
    }
    if let Some((interface, module)) = &facts.without_rdma {
        return format!(
            "{interface} is an adapter, and its module for RDMA is not loaded. As root: modprobe {module}"
        );
    }
    let other = format!("{PAGE} has a guest machine and a simulated fabric for tests without RDMA");
    if facts.has_soft_roce == Some(false) {
        return format!(
            "an adapter's driver makes its device, and this kernel has no soft-RoCE (rdma_rxe). {other}. For \
             soft-RoCE, {OTHER_KERNEL}"
        );
    }
    let (best, others) = match &facts.ethernet[..] {
        [] => {
            return format!(
                "an adapter's driver makes its device. soft-RoCE makes one out of an Ethernet interface that is up, \
                 and this host has none: `ip link` shows the others. {other}"
            );
        }
        [best] => (best, String::new()),
        [best, others @ ..] => (
            best,
            format!(" (or another interface: {})", others.join(", ")),
        ),
    };
    format!(
        "an adapter's driver makes its device. soft-RoCE makes one out of any Ethernet card until the next boot, as \
         root: modprobe -a rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev {best}{others}. {other}"
    )
}

pub(super) const MODULES_FIRST: &str = "load the modules first: the kernel makes it then";

pub(super) fn missing_node(path: &str, container: Option<Container>) -> String {
    match container {
        Some(container) => give_path(container, path),
        None => format!(
            "the kernel makes it with the modules ib_uverbs and rdma_ucm. If they are loaded, look for udev or for a \
             /dev of your own: {path}"
        ),
    }
}

/// For a device file that this user may not use.
pub(super) fn refused_node(path: &str, container: Option<Container>) -> String {
    match container {
        Some(container) => give_path(container, path),
        None => format!(
            "this user needs the right to read and write it. rdma-core's udev rules give it to everybody (as root: \
             chmod 666 {path}, until the next boot)"
        ),
    }
}

/// For a target that is nothing.
pub(super) fn other_target(facts: &Facts) -> String {
    let devices = facts.devices.iter().filter(|device| device.can_serve());
    let names: Vec<&str> = devices.map(|device| &*device.name).collect();
    match &names[..] {
        [] => "name an RDMA device, or an address of one, when there is one".into(),
        names => format!("name a device ({}) or an address of it", names.join(", ")),
    }
}

/// For an address that leads to no device. `others` are those that do.
pub(super) fn other_address(others: &[String]) -> String {
    match others {
        [] => "use the address of an interface that `rdma link` shows".into(),
        others => format!("use an address of an RDMA device: {}", others.join(", ")),
    }
}

pub(super) const MEMLOCK: &str = "raise the limit: `* - memlock unlimited` in a file of /etc/security/limits.d, and log \
                                  in again; or LimitMEMLOCK=infinity in a systemd unit; or --ulimit memlock=-1 for a \
                                  container";

/// For memory that is larger than the limit.
pub(super) fn memlock_or_range() -> String {
    format!("{MEMLOCK}; or map a part, and give it here too: --range START..END")
}

pub(super) const OLD_RDMA_CORE: &str =
    "if native flushes are wanted, build rpma with the headers of rdma-core 45 or newer";

pub(super) const OLD_KERNEL: &str = "rpma is tested with Linux 6.1 and newer";

/// For a file without bytes.
pub(super) fn size(path: &str) -> String {
    format!("if it is on a DAX file system, give it a size: fallocate -l SIZE {path}")
}

/// For a device that could register a file on a DAX file system.
pub(super) fn or_file(other_memory: &str) -> String {
    format!("{other_memory}; or name a file on a DAX file system")
}

/// For memory that this user may not open.
pub(super) fn memory_rights(path: &str, user: &str, container: Option<Container>) -> String {
    if let Some(container) = container.filter(|_| path.starts_with("/dev/")) {
        return give_path(container, path);
    }
    let lasting = match path.starts_with("/dev/") {
        true => ". The right lasts until the next boot, and a rule of udev makes it permanent",
        false => "",
    };
    format!("as root: chown {user} {path}{lasting}")
}

/// For a range that cannot be mapped.
pub(super) const ALIGNMENT: &str = "choose a range inside the memory that begins and ends at multiples of the \
                                    alignment; a program can map all of it and take a part (PmemMap::part)";

pub(super) const SHUTDOWNS: &str =
    "a program keeps the count beside its data, and compares (PmemMap::unsafe_shutdowns)";

// Nobody knows a virtual memory better: its hypervisor has to be asked.
pub(super) const OTHER_DOMAIN: &str = "if the kernel names no domain, and you know the platform, declare it by \
     PeerCfg::set_durable and PeerCfg::set_processor_persists (docs/persistence.md)";

/// For an error of the kernel that has no other remedy.
const LOG: &str = "look for the cause in the kernel's log, as root: dmesg";

/// The reason and the remedy of a registration that failed. `other` is the remedy for memory of
/// that kind, if it is not one that each device registers.
pub(super) fn of_registering(error: &Error, other: Option<String>) -> (String, String) {
    let of_host = problem::remedy(error).unwrap_or(LOG);
    let remedy = match (kind(error), other) {
        // EPERM is for a limit of 0.
        (Some(ErrorKind::OutOfMemory | ErrorKind::PermissionDenied), _) => {
            if of_host.contains("MEMLOCK") {
                MEMLOCK
            } else {
                of_host
            }
            .into()
        }
        (_, Some(other)) => other,
        (_, None) => of_host.into(),
    };
    (reason(error), remedy)
}

/// The reason and the remedy of memory that cannot be mapped. `rights` is the remedy if this user
/// may not open it.
pub(super) fn of_mapping(error: &Error, rights: String, other: String) -> (String, String) {
    let remedy = match (kind(error), problem::remedy(error)) {
        (Some(ErrorKind::PermissionDenied), _) => rights,
        (_, Some(remedy)) => remedy.into(),
        (_, None) => other,
    };
    (reason(error), remedy)
}

/// Whether a system call has failed with that number.
pub(super) fn is_errno(error: &Error, errno: Errno) -> bool {
    match error {
        Error::Provider { cause, .. } => cause.raw_os_error() == Some(errno.raw_os_error()),
        _ => false,
    }
}

fn kind(error: &Error) -> Option<ErrorKind> {
    match error {
        Error::Provider { cause, .. } => Some(cause.kind()),
        _ => None,
    }
}
