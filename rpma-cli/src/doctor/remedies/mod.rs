//! The remedies. docs/getting-started.md has the same commands with their reasons.

mod containers;
mod files;
mod memory;
mod ports;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

use rpma::Error;
use rustix::io::Errno;

pub(super) use self::containers::give;
use self::containers::{give_network, give_path, refused_in_container};
pub(super) use self::files::file_with_size;
pub(super) use self::memory::{Wanted, other_memory};
pub(super) use self::ports::{inactive, no_address, passive_bond};
use super::opened::Opened;
use crate::facts::{Access, Adapter, Facts, ModuleState, Node, RdmaDevice};
use crate::problem;
pub(super) use crate::problem::reason;

/// Where that page begins with hardware.
const PAGE: &str = "docs/getting-started.md";

pub(super) const MEND: &str = "mend each BAD line above, from the top, and run `rpma doctor` again";

/// For a fault that has a line of its own.
pub(super) fn above(check: &str) -> String {
    format!("the line `{check}` above has the remedy")
}

/// After a good end.
pub(super) fn try_between_hosts(devices: &[Opened]) -> String {
    let has = |iwarp| devices.iter().any(|device| device.peer.is_iwarp() == iwarp);
    let tcp = "the TCP port of `rpma serve` (7204, unless you give another) for iWARP";
    let ports = [(false, "UDP port 4791 for RoCE"), (true, tcp)];
    let ports = ports.into_iter().filter(|(iwarp, _)| has(*iwarp));
    let ports: Vec<_> = ports.map(|(_, port)| port).collect();
    let mut addresses = devices.iter().flat_map(|device| &device.addresses);
    // A scope is of this host alone.
    let address = addresses.find(|address| !address.contains('%'));
    let address = address.map_or("ADDR", |address| address);
    format!(
        "try it between two hosts: `rpma serve {address}` here, and `rpma check {address}` on the other host. Firewalls \
         must open {}",
        ports.join(", and ")
    )
}

/// For a module that is not loaded. The devices' own modules come with the adapter's driver.
pub(super) fn load(modules: &[&str], facts: &Facts) -> String {
    if facts.is_replaced && facts.container.is_none() {
        return "the modules of the running kernel are gone, and /lib/modules has those of another: start the host again"
            .into();
    }
    let place = match facts.container {
        Some(_) => ", on the host of the container",
        None => "",
    };
    let mut forbidden = facts.forbidden.iter();
    let forbidden = forbidden.find(|(module, _)| modules.contains(module));
    let first = forbidden.map(|(module, file)| {
        format!(
            "the line `install {module}` of /{file} forbids it: take it out, with a line `blacklist {module}`. Then "
        )
    });
    let first = first.unwrap_or_default();
    format!(
        "{first}as root{place}: modprobe -a {}. If it fails, {LOG}",
        modules.join(" ")
    )
}

/// For a kernel that was built without a module.
pub(super) fn other_kernel(facts: &Facts) -> String {
    let release = facts.kernel.as_deref().unwrap_or("RELEASE");
    let debian = "linux-image-amd64 in the place of a cloud kernel".to_owned();
    let ubuntu = format!("linux-modules-extra-{release} on Ubuntu");
    let fedora =
        format!("kernel-modules-{release} and kernel-modules-extra-{release} on Fedora and RHEL");
    let packages = match release.rsplit(['-', '.']).next() {
        Some("amd64") => debian,
        Some("generic") => ubuntu,
        Some("x86_64") => fedora,
        _ => format!("{debian}, {ubuntu}, {fedora}"),
    };
    format!("install the kernel package with all modules: {packages}")
}

/// A module that a remedy loads, if this kernel has it.
fn or_other_kernel(facts: &Facts, module: &str, load: String) -> String {
    match facts.absent.contains(&module) {
        true => format!("this kernel has no {module}: {}", other_kernel(facts)),
        false => load,
    }
}

/// For a device whose provider is not installed.
pub(super) const PROVIDERS: &str = "install rdma-core's providers: ibverbs-providers on Debian and Ubuntu, libibverbs on \
                                    Fedora and RHEL. If the package is there, install it again in the version of \
                                    libibverbs (`apt list -a ibverbs-providers libibverbs1` or `rpm -qa | grep ibverbs` shows \
                                    the versions)";

/// For an address of a device that does not open it.
pub(super) fn of_opening(error: &Error, device: &RdmaDevice, facts: &Facts) -> String {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    let mut limits = facts.rdma_max.iter();
    let limit = limits.find(|(name, ..)| *name == device.name);
    if let Some((name, limit, path)) = limit.filter(|_| is(Errno::AGAIN) || is(Errno::NODEV)) {
        return format!(
            "a control group limits its programs to {limit} of {name} (rdma.current beside this file counts those in \
             use). As root, until the group is made again: echo '{name} hca_handle=max hca_object=max' > {path}"
        );
    }
    if is(Errno::NODEV) {
        if let Some(remedy) = passive_bond(device) {
            return remedy;
        }
        return format!(
            "the kernel has this device, and rdma-core does not know it: a warning of `ibv_devices` names the cause. \
             For a provider that is missing or of another version, {PROVIDERS}"
        );
    }
    problem::remedy(error).unwrap_or(LOG).into()
}

/// Without an RDMA device that rpma can use.
pub(super) fn no_device(facts: &Facts) -> String {
    if let Some(container) = facts.container {
        return format!(
            "if the host of the container has an RDMA device: {}. If not, {PAGE} has the ways to one",
            give(container, facts)
        );
    }
    if facts.elsewhere().is_some() {
        return above("device file");
    }
    if let Some(adapter) = &facts.adapter {
        return without_device(adapter, facts);
    }
    if let Some((place, driver)) = &facts.given_away {
        return format!(
            "the network adapter {place} belongs to {driver}, for a guest or a program. If it is the one, give it back \
             to its own driver, as root: driverctl unset-override {place}"
        );
    }
    let other = format!("{PAGE} has a guest machine and a simulated fabric for tests without RDMA");
    if facts.absent.contains(&"rdma_rxe") {
        return format!(
            "an adapter's driver makes its device, and this kernel has no soft-RoCE (rdma_rxe). For soft-RoCE, {}. Then \
             run `rpma doctor` again. {other}",
            other_kernel(facts)
        );
    }
    let Some((best, others)) = facts.ethernet.split_first() else {
        return format!(
            "an adapter's driver makes its device. soft-RoCE makes one out of an Ethernet interface that is up, and \
             this host has none: `ip link` shows the others. {other}"
        );
    };
    let others = match others {
        [] => String::new(),
        others => format!(" (or another interface: {})", others.join(", ")),
    };
    format!(
        "an adapter's driver makes its device. soft-RoCE makes one out of any Ethernet card until the next boot, as \
         root: modprobe -a rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev {best}{others}. {other}"
    )
}

/// For an adapter whose driver has made no device.
fn without_device(adapter: &Adapter, facts: &Facts) -> String {
    let Adapter {
        interface, module, ..
    } = adapter;
    if adapter.is_loaded {
        return format!(
            "{interface} is an adapter, and its module {module} has made no device: `devlink dev param show` shows \
             whether enable_roce or enable_rdma is false, and its DEV and MODE. If so, as root: devlink dev param set \
             DEV name NAME value true cmode MODE; for the mode driverinit, also devlink dev reload DEV, which \
             interrupts its network for a moment. Otherwise, {LOG}"
        );
    }
    let load = format!(
        "its module for RDMA is not loaded. As root: modprobe {module}. If it fails, {LOG}"
    );
    let remedy = or_other_kernel(facts, module, load);
    format!("{interface} is an adapter, and {remedy}")
}

/// The first process of the host is usually where the device is.
fn in_other_namespace(device: &str) -> String {
    format!(
        "{device} belongs to another network namespace, and this kernel does not share devices (`rdma system`). As root: \
         nsenter -t 1 -n rdma dev set {device} netns NAME, with the name that `ip netns identify` prints here. It leaves \
         the other namespace, until the next boot"
    )
}

/// For a device file that this process cannot use.
pub(super) fn node(node: &Node, facts: &Facts) -> String {
    let Access::Refused { by_rule, .. } = node.access else {
        return missing_node(&node.path, facts);
    };
    match (facts.elsewhere(), facts.container) {
        (Some(name), None) if node.device.as_deref() == Some(name) => in_other_namespace(name),
        _ => refused_node(&node.path, by_rule, facts),
    }
}

fn missing_node(path: &str, facts: &Facts) -> String {
    let states = |wanted| facts.modules.iter().any(|module| module.state == wanted);
    match facts.container {
        _ if states(ModuleState::Absent) => {
            format!(
                "the kernel makes it with its modules: {}",
                other_kernel(facts)
            )
        }
        _ if states(ModuleState::Missing) => {
            format!("{}: the kernel makes it then", above("kernel modules"))
        }
        Some(container) => give_path(container, path),
        None => format!(
            "the modules are loaded: look for udev, or for a /dev of your own (PrivateDevices= of a systemd unit): {path}"
        ),
    }
}

fn refused_node(path: &str, by_rule: bool, facts: &Facts) -> String {
    let chmod = format!("chmod 666 {path}");
    refused(path, by_rule, facts, &chmod).unwrap_or_else(|| {
        format!(
            "this user needs the right to read and write it. The kernel gives it to everybody, and a udev rule of this \
             host may limit it (/etc/udev/rules.d): change the rule, or add the user to the group that it names. As root, \
             until the next boot: {chmod}"
        )
    })
}

/// For a device file that a container or a rule of a control group refuses. `command` gives the right.
fn refused(path: &str, by_rule: bool, facts: &Facts, command: &str) -> Option<String> {
    match facts.container {
        Some(container) if by_rule => Some(give_path(container, path)),
        Some(container) => Some(refused_in_container(container, facts.user, command)),
        None if by_rule => Some(format!(
            "a rule of the control group forbids it: DeviceAllow={path} rw in the systemd unit"
        )),
        None => None,
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

/// For an address that leads to no device. `others` are those that do. `soft` is its interface, if
/// soft-RoCE can have it.
pub(super) fn other_address(others: &[&str], soft: Option<&str>) -> String {
    if let Some(soft) = soft {
        return format!(
            "as root, until the next boot: rdma link add rxe_{soft} type rxe netdev {soft}"
        );
    }
    match others {
        [] => "use the address of an interface that `rdma link` shows".into(),
        others => format!("use an address of an RDMA device: {}", others.join(", ")),
    }
}

/// For a limit of locked memory that is too low.
pub(super) fn memlock(facts: &Facts) -> String {
    match facts.container {
        Some(container) => containers::memlock(container).into(),
        None => match &facts.unit {
            Some(unit) => format!(
                "raise the limit of the unit: systemctl edit {unit}, with LimitMEMLOCK=infinity under [Service], and \
                 systemctl restart {unit}"
            ),
            None => "raise the limit: `* - memlock unlimited` in a file of /etc/security/limits.d, and log in again; or \
                     LimitMEMLOCK=infinity in a systemd unit"
                .into(),
        },
    }
}

pub(super) const OLD_RDMA_CORE: &str =
    "if native flushes are wanted, build rpma with the headers of rdma-core 45 or newer";

pub(super) const OLD_KERNEL: &str = "rpma is tested with Linux 6.1 and newer";

/// For memory that this user may not open.
pub(super) fn memory_rights(path: &str, user: &str, by_rule: bool, facts: &Facts) -> String {
    let chown = format!("chown {user} {path}");
    if !path.starts_with("/dev/") {
        return format!("as root: {chown}");
    }
    refused(path, by_rule, facts, &chown).unwrap_or_else(|| match group_with_right(path) {
        Some(group) => format!(
            "its group ({group}) has the right: as root, add this user to the group (usermod -aG), and log in again"
        ),
        None => format!("as root: {chown}. The right lasts until the next boot, and a rule of udev makes it permanent"),
    })
}

/// The group of a file, if it may read and write.
fn group_with_right(path: &str) -> Option<u32> {
    const READ_AND_WRITE: u32 = 0o060;
    let file = fs::metadata(path).ok()?;
    (file.gid() != 0 && file.mode() & READ_AND_WRITE == READ_AND_WRITE).then(|| file.gid())
}

/// For memory that is not known to keep its data.
pub(super) fn other_domain(facts: &Facts) -> String {
    if facts.pmem.dimms.iter().any(|dimm| !dimm.faults.is_empty()) {
        return above("memory module");
    }
    // Nobody knows a virtual memory better: its hypervisor has to be asked.
    "if the kernel names no domain, and you know the platform, declare it by PeerCfg::set_durable and \
     PeerCfg::set_processor_persists (docs/persistence.md)"
        .into()
}

pub(super) const MODULE: &str = "end its programs, and save its data elsewhere (`daxio` reads a device-DAX). Then mend the \
                                 module or its energy source (battery, capacitor), and start the host again: `ndctl list \
                                 -DH` and the platform's log name the fault. Until then nothing on it is durable";

/// For an error of the kernel that has no other remedy.
const LOG: &str = "look for the cause in the kernel's log, as root: dmesg";

/// The reason and the remedy of a registration that failed. `other` is the remedy for memory of
/// that kind, if it is not one that each device registers.
pub(super) fn of_registering(
    error: &Error,
    other: Option<String>,
    facts: &Facts,
) -> (String, String) {
    let of_host = problem::remedy(error).unwrap_or(LOG);
    // EPERM is for a limit of 0.
    let limits = [ErrorKind::OutOfMemory, ErrorKind::PermissionDenied];
    let is_limit = kind(error).is_some_and(|kind| limits.contains(&kind));
    let remedy = match other {
        _ if is_limit && of_host.contains("MEMLOCK") => memlock(facts),
        Some(other) if !is_limit => other,
        _ => of_host.into(),
    };
    (reason(error), remedy)
}

/// The kind of a system call's error.
pub(super) fn kind(error: &Error) -> Option<ErrorKind> {
    match error {
        Error::Provider { cause, .. } => Some(cause.kind()),
        _ => None,
    }
}
