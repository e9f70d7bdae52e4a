//! Which addresses lead to a device: the library opens each of them.

use std::net::{IpAddr, ToSocketAddrs};

use rpma::{Device, Side};

use super::opened::Opened;
use super::{Exam, Host, remedies};
#[cfg(any(test, not(feature = "sim")))]
use crate::facts::Files;
use crate::facts::{self, Access, Facts, ModuleState, Node, RdmaDevice};
use crate::report::Finding;

const CHECK: &str = "address";

/// The addresses that can lead to a device: those of the host, and the gids of RoCE in case that
/// procfs does not show them. A link-local gid has no scope, and the kernel binds no such address.
#[cfg(any(test, not(feature = "sim")))]
pub(super) fn of_host(files: &Files, facts: &Facts) -> Vec<String> {
    let mut addresses = facts::local_addresses(files);
    let gids = facts.devices.iter().flat_map(RdmaDevice::addresses);
    for address in gids {
        let is_known = |known: &String| facts::parse_address(known) == Some(address);
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if !is_link_local && !addresses.iter().any(is_known) {
            addresses.push(address.to_string());
        }
    }
    addresses
}

/// Opens the device of an address of this host.
pub(crate) fn device(address: &str) -> rpma::Result<Device> {
    Device::from_addr(address, Side::Local)
}

/// Opens the devices: of the target, or all of them.
pub(super) fn open(exam: &mut Exam<'_>) -> Vec<Finding> {
    let target = exam.target.clone();
    let target = target.filter(|_| exam.wanted_device().is_none());
    if !can_be_opened(&exam.host.facts) {
        // A call of the library could load modules.
        let found = "no device was opened, because of the BAD lines above";
        let mut findings = vec![Finding::unseen(CHECK, found)];
        findings.extend(target.and_then(|target| wrong(exam, &target)));
        return findings;
    }
    match target {
        Some(target) => open_target(exam, &target),
        None => open_all(exam),
    }
}

/// Whether the kernel's side is complete.
fn can_be_opened(facts: &Facts) -> bool {
    let is_there = |state| matches!(state, ModuleState::Loaded | ModuleState::BuiltIn);
    let modules = facts.modules.iter().all(|module| is_there(module.state));
    let mut nodes = facts.nodes.iter().filter(|node| node.device.is_none());
    let cm = nodes.all(|node| node.access == Access::Usable);
    modules && cm && facts.devices.iter().any(RdmaDevice::can_serve)
}

/// Opens the devices by all addresses of this host. Only the wanted one is kept, if there is one.
fn open_all(exam: &mut Exam<'_>) -> Vec<Finding> {
    let host = exam.host;
    let wanted = exam.wanted_device().map(str::to_owned);
    let (mut devices, failed) = try_all(exam);
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    devices.retain(|device| is_wanted(device.name()));
    let is_left = |device: &&RdmaDevice| {
        let is_opened = devices.iter().any(|opened| opened.name() == device.name);
        is_wanted(&device.name) && !is_opened && device.can_serve()
    };
    let left: Vec<&RdmaDevice> = host.facts.devices.iter().filter(is_left).collect();
    let mut findings = keep(exam, devices);
    let is_bad = exam.devices.is_empty();
    findings.extend(
        left.iter()
            .map(|device| not_opened(exam, device, is_bad, &failed)),
    );
    findings
}

/// An address that opens no device.
type Failed<'a> = (&'a str, rpma::Error);

/// Tries all addresses of this host: the devices that they open, and the other addresses.
fn try_all<'a>(exam: &Exam<'a>) -> (Vec<Opened>, Vec<Failed<'a>>) {
    let host = exam.host;
    let (mut devices, mut failed) = (Vec::new(), Vec::new());
    for address in &host.addresses {
        if exam.interrupt.is_set() {
            break;
        }
        if let Err(error) = open_one(host, &mut devices, address) {
            failed.push((&**address, error));
        }
    }
    (devices, failed)
}

/// Opens the device of an address, or adds the address to its device.
fn open_one(host: &Host, devices: &mut Vec<Opened>, address: &str) -> rpma::Result<()> {
    let device = (host.open)(address)?;
    let known = devices
        .iter_mut()
        .find(|known| known.name() == device.get_name());
    match known {
        Some(known) => known.addresses.push(address.into()),
        None => devices.push(Opened::new(&device, address)?),
    }
    Ok(())
}

/// Keeps the devices that can reach another host.
fn keep(exam: &mut Exam<'_>, devices: Vec<Opened>) -> Vec<Finding> {
    let host = exam.host;
    let facts = &host.facts;
    let is_ready = |device: &Opened| facts.device(device.name()).is_none_or(RdmaDevice::is_ready);
    let (active, inactive): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_ready);
    let mut findings = Vec::new();
    for device in &active {
        let found = format!(
            "{} is opened by {}",
            device.name(),
            device.addresses.join(", ")
        );
        findings.push(Finding::good(CHECK, found));
    }
    for device in inactive {
        let addresses = device.addresses.join(", ");
        let found = format!(
            "{addresses} leads to {}, and no port of it is ACTIVE",
            device.name()
        );
        let remedy = facts
            .device(device.name())
            .map_or_else(String::new, |device| {
                remedies::inactive(device, facts.container)
            });
        findings.push(if active.is_empty() {
            Finding::bad(CHECK, found, remedy)
        } else {
            Finding::note(CHECK, found).with_remedy(remedy)
        });
    }
    exam.devices = active;
    findings
}

/// A device that no address has opened. `failed` has the tries of all addresses.
fn not_opened(
    exam: &Exam<'_>,
    device: &RdmaDevice,
    is_bad: bool,
    failed: &[Failed<'_>],
) -> Finding {
    let own = own_of(device, failed);
    let (mut found, remedy) = why_not(&exam.host.facts, device, own);
    if !is_bad {
        return Finding::note(CHECK, found).with_remedy(remedy);
    }
    if let Some((address, error)) = own.or(failed.last()) {
        let reason = remedies::reason(error);
        found = format!("{found} (the attempt by {address}: {reason})");
    }
    Finding::bad(CHECK, found, remedy)
}

/// The address of a device among those that opened none.
fn own_of<'a, 'b>(device: &RdmaDevice, failed: &'b [Failed<'a>]) -> Option<&'b Failed<'a>> {
    failed.iter().find(|(address, _)| device.has(address))
}

/// Why a device is not opened, and the remedy. `own` is an address of it, with the error.
fn why_not(facts: &Facts, device: &RdmaDevice, own: Option<&Failed<'_>>) -> (String, String) {
    let name = &device.name;
    if let Some(node) = unusable_node(facts, Some(name)) {
        let found = format!("{name} cannot be opened without {}", node.path);
        return (found, remedies::node(node, facts));
    }
    if let Some(provider) = facts.missing_provider(device) {
        let found = format!("{name} cannot be opened: rdma-core has no provider {provider} here");
        return (found, remedies::PROVIDERS.into());
    }
    match own {
        _ if !device.is_ready() => (
            format!("{name} is not opened, and no port of it is ACTIVE"),
            remedies::inactive(device, facts.container),
        ),
        Some((address, error)) => (
            format!("{name} cannot be opened by its address {address}"),
            remedies::of_opening(error),
        ),
        None => (
            format!("no address of this host leads to {name}"),
            remedies::no_address(device, facts),
        ),
    }
}

/// The file of a device, or of any one, that this process cannot open.
fn unusable_node<'a>(facts: &'a Facts, device: Option<&str>) -> Option<&'a Node> {
    let mut nodes = facts.nodes.iter();
    nodes.find(|node| {
        let is_of = node.device.is_some() && (device.is_none() || node.device.as_deref() == device);
        is_of && node.access != Access::Usable
    })
}

/// Opens the device of an address or a host name.
fn open_target(exam: &mut Exam<'_>, target: &str) -> Vec<Finding> {
    let mut devices = Vec::new();
    match open_one(exam.host, &mut devices, target) {
        Ok(()) => keep(exam, devices),
        Err(error) => vec![wrong(exam, target).unwrap_or_else(|| refused(exam, target, &error))],
    }
}

/// A target that can lead to no device, whichever devices there are.
fn wrong(exam: &Exam<'_>, target: &str) -> Option<Finding> {
    let found = match facts::parse_address(target) {
        Some(address) => vec![address],
        None => looked_up(target),
    };
    if found.is_empty() {
        return Some(unknown(exam, target));
    }
    if let Some(finding) = without_scope(exam, target, &found) {
        return Some(finding);
    }
    let addresses = exam.host.addresses.iter();
    let own: Vec<IpAddr> = addresses
        .filter_map(|text| facts::parse_address(text))
        .collect();
    let text = if found.iter().all(IpAddr::is_loopback) {
        "is the loopback address, which belongs to no RDMA device"
    } else if found.iter().all(IpAddr::is_unspecified) {
        "is a wildcard, which belongs to no RDMA device in particular"
    } else if !found.iter().any(|address| own.contains(address)) {
        "is not an address of this host"
    } else {
        return None;
    };
    Some(instead(exam, format!("{target} {text}")))
}

/// For a target that leads to no device: an address that leads to one, or the remedy of a device
/// without such an address.
fn instead(exam: &Exam<'_>, found: String) -> Finding {
    let facts = &exam.host.facts;
    if !can_be_opened(facts) {
        return Finding::bad(CHECK, found, remedies::other_address(&[]));
    }
    let (opened, failed) = try_all(exam);
    let others = addresses_of(opened);
    let devices = facts.devices.iter().filter(|device| device.can_serve());
    match devices.min_by_key(|device| !device.is_ready()) {
        Some(device) if others.is_empty() => {
            let (why, remedy) = why_not(facts, device, own_of(device, &failed));
            Finding::bad(CHECK, format!("{found}, and {why}"), remedy)
        }
        _ => Finding::bad(CHECK, found, remedies::other_address(&others)),
    }
}

/// A target that is neither an address nor a host: a wrong name, or a network interface.
fn unknown(exam: &Exam<'_>, target: &str) -> Finding {
    let facts = &exam.host.facts;
    let is_of = |device: &&RdmaDevice| {
        let mut interfaces = device.interfaces();
        interfaces.any(|interface| interface.name == target)
    };
    if let Some(device) = facts.devices.iter().find(is_of) {
        let found = format!("{target} is the network interface of {}", device.name);
        return Finding::bad(CHECK, found, exam.command(&device.name));
    }
    let interfaces = exam.host.files.names("sys/class/net");
    let found = if interfaces.iter().any(|name| name == target) {
        format!("{target} is a network interface without an RDMA device")
    } else {
        format!("{target:?} is no address, no host and no RDMA device")
    };
    Finding::bad(CHECK, found, remedies::other_target(facts))
}

/// A link-local address of this host without its interface: `fe80::1` for `fe80::1%eth0`.
fn without_scope(exam: &Exam<'_>, target: &str, found: &[IpAddr]) -> Option<Finding> {
    let [IpAddr::V6(address)] = found else {
        return None;
    };
    if !address.is_unicast_link_local() || target.contains('%') {
        return None;
    }
    let mut own = exam.host.addresses.iter();
    let scoped = own
        .find(|own| own.contains('%') && facts::parse_address(own) == Some(IpAddr::V6(*address)))?;
    let found = format!("{target} is a link-local address, which needs its interface");
    Some(Finding::bad(CHECK, found, exam.command(scoped)))
}

/// An address of this host that opens no device.
fn refused(exam: &Exam<'_>, target: &str, error: &rpma::Error) -> Finding {
    let reason = remedies::reason(error);
    let found =
        format!("{target} is an address of this host, and leads to no RDMA device ({reason})");
    let facts = &exam.host.facts;
    let own = facts.devices.iter().find(|device| device.has(target));
    let (opened, failed) = try_all(exam);
    let others = addresses_of(opened);
    // Of several devices, nobody knows to which one the address leads.
    let device = match &facts.devices[..] {
        [device] if others.is_empty() => Some(device),
        _ => own,
    };
    let (found, remedy) = match (device, unusable_node(facts, None)) {
        (Some(device), _) => {
            let (why, remedy) = why_not(facts, device, own_of(device, &failed));
            (format!("{found}: {why}"), remedy)
        }
        (None, Some(node)) => (found, remedies::node(node, facts)),
        (None, None) => (found, remedies::other_address(&others)),
    };
    Finding::bad(CHECK, found, remedy)
}

/// The addresses of a host name. The system's resolver has its own limit.
fn looked_up(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs();
    found.map_or_else(
        |_| Vec::new(),
        |found| found.map(|address| address.ip()).collect(),
    )
}

fn addresses_of(devices: Vec<Opened>) -> Vec<String> {
    let devices = devices.into_iter();
    devices.flat_map(|device| device.addresses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Module;

    #[test]
    fn the_library_is_called_only_if_all_is_there() {
        let mut facts = Facts {
            devices: vec![RdmaDevice::default()],
            ..Facts::default()
        };
        assert!(can_be_opened(&facts));
        facts.modules.push(Module {
            name: "rdma_ucm",
            state: ModuleState::Missing,
        });
        assert!(!can_be_opened(&facts), "a call could load it");
        facts.modules[0].state = ModuleState::BuiltIn;
        assert!(can_be_opened(&facts));
        let mut node = Node {
            path: "/dev/infiniband/rdma_cm".into(),
            device: None,
            access: Access::Refused {
                reason: "denied".into(),
                by_rule: false,
            },
        };
        facts.nodes.push(node.clone());
        assert!(!can_be_opened(&facts));
        assert!(unusable_node(&facts, None).is_none(), "it is of no device");

        node.device = Some("rxe0".into());
        facts.nodes = vec![node];
        assert!(can_be_opened(&facts), "another device may do");
        assert!(unusable_node(&facts, Some("rxe0")).is_some());
        assert!(unusable_node(&facts, None).is_some());
        assert!(unusable_node(&facts, Some("rxe1")).is_none());
        facts.devices.clear();
        assert!(!can_be_opened(&facts));
    }
}
