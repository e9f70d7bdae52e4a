//! The remedies. docs/getting-started.md has the same commands with their reasons.

use std::io::ErrorKind;

use rpma::Error;
use rustix::io::Errno;

use crate::facts::{Facts, Namespace, Pmem};

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

/// Without an RDMA device.
pub(super) fn no_device(facts: &Facts) -> String {
    let (interface, others) = match &facts.ethernet[..] {
        [] => (
            "INTERFACE",
            ". `ip link` must show an Ethernet interface that is up".into(),
        ),
        [one] => (&**one, String::new()),
        [best, others @ ..] => (
            &**best,
            format!(" (or another interface: {})", others.join(", ")),
        ),
    };
    let make = format!(
        "an adapter's driver makes its device. soft-RoCE makes one out of any Ethernet card until the next boot, as \
         root: modprobe -a rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev {interface}{others}. {PAGE} has the \
         other networks, and a guest machine and a simulated fabric for tests without RDMA"
    );
    if facts.container.is_some() {
        format!(
            "if the host of the container has one, give it to the container: {CONTAINER}. If not, {make}"
        )
    } else {
        make
    }
}

pub(super) const CONTAINER: &str = "--device /dev/infiniband/uverbs0 --device /dev/infiniband/rdma_cm --ulimit \
                                    memlock=-1 --network host";

pub(super) fn missing_node(path: &str, container: bool) -> String {
    if container {
        format!("give it to the container: --device {path}")
    } else {
        format!(
            "the kernel makes it with the modules ib_uverbs and rdma_ucm. If they are loaded, look for udev or for a \
             /dev of your own: {path}"
        )
    }
}

/// For a device file that this user may not use.
pub(super) fn refused_node(path: &str) -> String {
    format!(
        "this user needs the right to read and write it. rdma-core's udev rules give it to everybody (as root: \
         chmod 666 {path}, until the next boot). In a container: --device {path}"
    )
}

/// For a device without an active port.
pub(super) fn inactive(is_infiniband: bool, interface: Option<&str>) -> String {
    match (is_infiniband, interface) {
        (true, _) => "connect the cable, and run a subnet manager in the network (opensm)".into(),
        (false, Some(interface)) => format!(
            "connect the cable, and as root: ip link set {interface} up. `rdma link` must show ACTIVE"
        ),
        (false, None) => {
            "connect the cable, and as root: ip link set INTERFACE up. `rdma link` must show ACTIVE"
                .into()
        }
    }
}

/// For a device that no address leads to.
pub(super) fn no_address(is_infiniband: bool, interface: Option<&str>, container: bool) -> String {
    let interface = interface.unwrap_or("INTERFACE");
    match (container, is_infiniband) {
        (true, _) => {
            "give the container the network that has the address: --network host".into()
        }
        (false, true) => "as root: modprobe ib_ipoib, and give its interface an address: ip addr add ADDR/24 dev ib0"
            .into(),
        (false, false) => format!("as root: ip addr add ADDR/24 dev {interface}"),
    }
}

/// For a target that is nothing.
pub(super) fn other_target(facts: &Facts) -> String {
    let names: Vec<&str> = facts.devices.iter().map(|device| &*device.name).collect();
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

/// For memory that is not persistent or not there: the best that this host has. `doctor` is the
/// command, up to the path of the memory.
pub(super) fn other_memory(facts: &Facts, doctor: &str) -> String {
    let Pmem {
        devices,
        hidden,
        namespaces,
        has_space,
    } = &facts.pmem;
    if let [path, others @ ..] = &devices[..] {
        return match others {
            [] => format!("{doctor} {path}"),
            others => format!("{doctor} {path} (or {})", others.join(", ")),
        };
    }
    if let [path, ..] = &hidden[..] {
        return if facts.container.is_some() {
            format!("give the device-DAX to the container: --device {path}")
        } else {
            format!("as root: modprobe device_dax. It makes {path}")
        };
    }
    if *has_space {
        return "as root: ndctl create-namespace --mode=devdax. It makes a device-DAX".into();
    }
    if let [Namespace { name, mode, size }, ..] = &namespaces[..] {
        return format!(
            "make a device-DAX out of {name} ({mode}, {size} bytes), if its contents may be lost. As root: ndctl \
             create-namespace --force --reconfig={name} --mode=devdax"
        );
    }
    format!(
        "this host has no persistent memory: use a host that has some. {PAGE} has a guest machine for tests"
    )
}

/// For a file without bytes.
pub(super) fn size(path: &str) -> String {
    format!("if it is on a DAX file system, give it a size: fallocate -l SIZE {path}")
}

/// For a device that could register a file on a DAX file system.
pub(super) fn or_file(other_memory: &str) -> String {
    format!("{other_memory}; or name a file on a DAX file system")
}

/// For memory that this user may not open.
pub(super) fn memory_rights(path: &str, user: &str, container: bool) -> String {
    if container && path.starts_with("/dev/") {
        return format!("give the device to the container: --device {path}");
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
    let (reason, hint) = split(error);
    let remedy = match (kind(error), other) {
        // EPERM is for a limit of 0. The hint is about programs.
        (Some(ErrorKind::OutOfMemory | ErrorKind::PermissionDenied), _) => MEMLOCK.into(),
        (_, Some(other)) => other,
        (_, None) => hint.unwrap_or(LOG).into(),
    };
    (reason, remedy)
}

/// The reason and the remedy of memory that cannot be mapped. `rights` is the remedy if this user
/// may not open it.
pub(super) fn of_mapping(error: &Error, rights: String, other: String) -> (String, String) {
    let (reason, hint) = split(error);
    let remedy = match (kind(error), hint) {
        (Some(ErrorKind::PermissionDenied), _) => rights,
        (_, Some(hint)) => hint.into(),
        (_, None) => other,
    };
    (reason, remedy)
}

/// The message of an error without its remedy.
pub(super) fn reason(error: &Error) -> String {
    split(error).0
}

/// The message of an error, and the remedy that belongs to it.
fn split(error: &Error) -> (String, Option<&'static str>) {
    match error {
        Error::Provider { call, cause, hint } => (format!("{call} failed: {cause}"), *hint),
        // They name the remedy themselves.
        other => (other.to_string(), None),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_have_the_name_of_the_user() {
        let remedy = memory_rights("/dev/dax0.0", "ann", false);
        assert!(remedy.starts_with("as root: chown ann /dev/dax0.0. The right lasts until"));
        for container in [false, true] {
            let remedy = memory_rights("/mnt/f", "ann", container);
            assert_eq!(remedy, "as root: chown ann /mnt/f");
        }
        // Its root may not open the devices of the host.
        let remedy = memory_rights("/dev/dax0.0", "root", true);
        assert!(remedy.ends_with("--device /dev/dax0.0"), "{remedy}");
    }

    #[test]
    fn soft_roce_gets_an_interface_of_this_host() {
        let mut facts = Facts {
            ethernet: vec!["roce0".into(), "ssh0".into()],
            ..Facts::default()
        };
        let remedy = no_device(&facts);
        assert!(
            remedy.contains("netdev roce0 (or another interface: ssh0)."),
            "{remedy}"
        );
        assert!(remedy.contains("until the next boot"), "{remedy}");
        facts.ethernet.pop();
        assert!(no_device(&facts).contains("netdev roce0."));
        facts.ethernet.pop();
        assert!(no_device(&facts).contains("netdev INTERFACE. `ip link`"));
    }

    fn facts(pmem: Pmem) -> Facts {
        Facts {
            pmem,
            ..Facts::default()
        }
    }

    /// Promise: no remedy loses data if a device-DAX is there or can be made in another place.
    #[test]
    fn a_device_dax_is_named_before_one_is_made() {
        let fsdax = Namespace {
            name: "namespace1.0".into(),
            mode: "fsdax".into(),
            size: 1 << 30,
        };
        let mut facts = facts(Pmem {
            devices: vec!["/dev/dax0.0".into(), "/dev/dax1.0".into()],
            hidden: vec!["/dev/dax2.0".into()],
            namespaces: vec![fsdax],
            has_space: true,
        });
        let remedy = |facts: &Facts| other_memory(facts, "rpma doctor rxe0 --memory");
        assert_eq!(
            remedy(&facts),
            "rpma doctor rxe0 --memory /dev/dax0.0 (or /dev/dax1.0)"
        );
        facts.pmem.devices.pop();
        assert_eq!(remedy(&facts), "rpma doctor rxe0 --memory /dev/dax0.0");
        facts.pmem.devices.pop();
        assert!(remedy(&facts).contains("modprobe device_dax"));
        facts.container = Some("podman".into());
        assert!(remedy(&facts).ends_with("--device /dev/dax2.0"));
        facts.pmem.hidden.pop();
        assert!(!remedy(&facts).contains("--force"), "there is space");
        facts.pmem.has_space = false;
        assert!(remedy(&facts).contains("--reconfig=namespace1.0"));
    }

    #[test]
    fn a_host_without_persistent_memory_gets_no_command_of_ndctl() {
        let remedy = other_memory(&facts(Pmem::default()), "rpma doctor --memory");
        assert!(
            remedy.starts_with("this host has no persistent memory"),
            "{remedy}"
        );
        assert!(!remedy.contains("ndctl"), "{remedy}");
    }
}
