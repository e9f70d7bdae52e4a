//! Which addresses lead to a device: the library opens each of them.

use std::mem;
use std::net::{IpAddr, ToSocketAddrs};

use rpma::{Device, Side};

use super::opened::Opened;
use super::{Exam, Host, remedies};
use crate::facts::{self, Access, Facts, ModuleState, Node, RdmaDevice};
use crate::report::Finding;

const CHECK: &str = "address";

/// Opens the device of an address of this host.
pub(crate) fn device(address: &str) -> rpma::Result<Device> {
    Device::from_addr(address, Side::Local)
}

/// The tries of all addresses of this host.
#[derive(Default)]
struct Tried {
    opened: Vec<Opened>,
    failed: Vec<(String, rpma::Error)>,
    /// The error of the target, which can be another host's address.
    refusal: Option<rpma::Error>,
}

impl Tried {
    /// An address of a device that did not open it.
    fn failed(&self, device: &RdmaDevice) -> Option<&(String, rpma::Error)> {
        self.failed.iter().find(|(address, _)| device.has(address))
    }
}

/// Opens the devices by all addresses of this host, and keeps that of the target, or all of them.
pub(super) fn open(exam: &mut Exam<'_>) -> Vec<Finding> {
    let device = exam.wanted_device().map(str::to_owned);
    let target = exam.target.clone().filter(|_| device.is_none());
    if !can_be_opened(&exam.host.facts) {
        // A call of the library could load modules.
        let found = "no device was opened, because of the BAD lines above";
        let wrong = target.and_then(|target| wrong(exam, &target, &Tried::default()));
        return [Finding::unseen(CHECK, found)]
            .into_iter()
            .chain(wrong)
            .collect();
    }
    let mut tried = try_all(exam, target.as_deref());
    let Some(target) = target else {
        return keep_all(exam, device.as_deref(), tried);
    };
    let opened_by = |device: &Opened| device.addresses.contains(&target);
    match tried.opened.iter().position(opened_by) {
        Some(at) => keep(exam, vec![tried.opened.swap_remove(at)]),
        None => Vec::from_iter(wrong(exam, &target, &tried)),
    }
}

/// Whether the kernel's side is complete.
fn can_be_opened(facts: &Facts) -> bool {
    let mut modules = facts.modules.iter();
    let modules = modules.all(|module| module.state == ModuleState::Loaded);
    let mut nodes = facts.nodes.iter().filter(|node| node.device.is_none());
    let cm = nodes.all(|node| node.access == Access::Usable);
    modules && cm && facts.devices.iter().any(RdmaDevice::can_serve)
}

/// The target may be the name of an address.
fn try_all(exam: &Exam<'_>, target: Option<&str>) -> Tried {
    let mut tried = Tried::default();
    if let Some(target) = target {
        tried.refusal = open_one(exam.host, &mut tried.opened, target).err();
    }
    let opened = target.filter(|_| tried.refusal.is_none());
    let others = exam.host.facts.addresses.iter();
    for address in others.filter(|address| Some(&***address) != opened) {
        if exam.interrupt.is_set() {
            break;
        }
        if let Err(error) = open_one(exam.host, &mut tried.opened, address) {
            tried.failed.push((address.clone(), error));
        }
    }
    tried
}

/// Opens the device of an address, or adds the address to its device.
fn open_one(host: &Host, devices: &mut Vec<Opened>, address: &str) -> rpma::Result<()> {
    let device = (host.open)(address)?;
    let mut known = devices.iter_mut();
    match known.find(|known| known.name() == device.get_name()) {
        Some(known) => known.addresses.push(address.into()),
        None => devices.push(Opened::new(&device, address)?),
    }
    Ok(())
}

/// Keeps all devices or the one of this name, with the reasons why others were not opened.
fn keep_all(exam: &mut Exam<'_>, wanted: Option<&str>, mut tried: Tried) -> Vec<Finding> {
    let host = exam.host;
    let facts = &host.facts;
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    tried.opened.retain(|device| is_wanted(device.name()));
    let mut findings = keep(exam, mem::take(&mut tried.opened));
    let is_left = |device: &&RdmaDevice| {
        let is_opened = exam
            .devices
            .iter()
            .any(|opened| opened.name() == device.name);
        is_wanted(&device.name) && device.can_serve() && !is_opened
    };
    for device in facts.devices.iter().filter(is_left) {
        let (why, remedy) = why_not(facts, device, &tried);
        findings.push(match tried.failed(device) {
            _ if !exam.devices.is_empty() => Finding::note(CHECK, why).with_remedy(remedy),
            Some((address, error)) => {
                let reason = remedies::reason(error);
                let found = format!("{why} (the attempt by {address}: {reason})");
                Finding::bad(CHECK, found, remedy)
            }
            None => Finding::bad(CHECK, why, remedy),
        });
    }
    findings
}

/// Keeps the devices that can reach another host. It is bad if there is none.
fn keep(exam: &mut Exam<'_>, devices: Vec<Opened>) -> Vec<Finding> {
    let facts = &exam.host.facts;
    let is_ready = |device: &Opened| facts.device(device.name()).is_none_or(RdmaDevice::is_ready);
    let (active, mut inactive): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_ready);
    exam.devices = active;
    inactive.retain(|_| exam.devices.is_empty());
    let finding = |device: &Opened| {
        let (name, places) = (device.name(), device.addresses.join(", "));
        let found = format!("{name} is reached by {places}, and no port of it is ACTIVE");
        Finding::bad(CHECK, found, remedies::above("RDMA device"))
    };
    inactive.iter().map(finding).collect()
}

/// Why a device is not opened, and the remedy.
fn why_not(facts: &Facts, device: &RdmaDevice, tried: &Tried) -> (String, String) {
    let name = &device.name;
    let is_unusable =
        |node: &&Node| node.device.as_ref() == Some(name) && node.access != Access::Usable;
    if let Some(node) = facts.nodes.iter().find(is_unusable) {
        let found = format!("{name} cannot be opened without {}", node.path);
        return (found, remedies::above("device file"));
    }
    if let Some(provider) = facts.missing_provider(device) {
        let found = format!("{name} cannot be opened: rdma-core has no provider {provider} here");
        return (found, remedies::PROVIDERS.into());
    }
    match tried.failed(device) {
        _ if !device.is_ready() => (
            format!("{name} is not opened, and no port of it is ACTIVE"),
            remedies::above("RDMA device"),
        ),
        Some((address, error)) => (
            format!("{name} cannot be opened by its address {address}"),
            remedies::of_opening(error, device, facts),
        ),
        None => (
            format!("no address of this host leads to {name}"),
            remedies::no_address(device, facts),
        ),
    }
}

/// A target that leads to no device. The remedy is an address that leads to one, or that of a device
/// without such an address. `None` if it may be right, and no address was tried.
fn wrong(exam: &Exam<'_>, target: &str, tried: &Tried) -> Option<Finding> {
    let facts = &exam.host.facts;
    let found = facts::parse_address(target).map_or_else(|| looked_up(target), |ip| vec![ip]);
    if found.is_empty() {
        return Some(unknown(exam, target));
    }
    if let Some(finding) = without_scope(exam, target, &found) {
        return Some(finding);
    }
    let own = exam.host.facts.addresses.iter();
    let mut own = own.filter_map(|text| facts::parse_address(text));
    let text = if found.iter().all(IpAddr::is_loopback) {
        "is the loopback address, which belongs to no RDMA device".into()
    } else if found.iter().all(IpAddr::is_unspecified) {
        "is a wildcard, which belongs to no RDMA device in particular".into()
    } else if !own.any(|address| found.contains(&address)) {
        "is not an address of this host".into()
    } else {
        let reason = remedies::reason(tried.refusal.as_ref()?);
        format!("is an address of this host, and leads to no RDMA device ({reason})")
    };
    let others = tried.opened.iter().flat_map(|device| &device.addresses);
    let others: Vec<&str> = others.map(|address| &**address).collect();
    let serving = facts.devices.iter().filter(|device| device.can_serve());
    let own = facts.devices.iter().find(|device| device.has(target));
    // Of several devices, the nearest one to its use.
    let nearest = serving.min_by_key(|device| !device.is_ready());
    let device = own.or(nearest.filter(|_| others.is_empty()));
    let soft = found.iter().find_map(|ip| facts.for_soft_roce(ip));
    Some(
        match device.filter(|_| tried.refusal.is_some() && soft.is_none()) {
            Some(device) => {
                let (why, remedy) = why_not(facts, device, tried);
                let and = if text.ends_with(')') { ": " } else { ", and " };
                Finding::bad(CHECK, format!("{target} {text}{and}{why}"), remedy)
            }
            None => {
                let remedy = remedies::other_address(&others, soft);
                Finding::bad(CHECK, format!("{target} {text}"), remedy)
            }
        },
    )
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
        return Finding::bad(CHECK, found, format!("rpma doctor {}", device.name));
    }
    let found = format!("{target:?} is no address, no host and no RDMA device");
    Finding::bad(CHECK, found, remedies::other_target(facts))
}

/// A link-local address of this host without its interface: `fe80::1` for `fe80::1%eth0`.
fn without_scope(exam: &Exam<'_>, target: &str, found: &[IpAddr]) -> Option<Finding> {
    let is_it = |own: &&String| {
        let address = own.split_once('%').and_then(|_| facts::parse_address(own));
        found.len() == 1 && address.as_ref() == found.first()
    };
    let mut own = exam.host.facts.addresses.iter();
    let scoped = own.find(is_it).filter(|_| !target.contains('%'))?;
    let found = format!("{target} is a link-local address, which needs its interface");
    Some(Finding::bad(CHECK, found, format!("rpma doctor {scoped}")))
}

/// The addresses of a host name. The system's resolver has its own limit.
fn looked_up(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs().into_iter().flatten();
    found.map(|address| address.ip()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Module, Port};

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
        facts.modules[0].state = ModuleState::Loaded;
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

        node.device = Some("rxe0".into());
        facts.nodes = vec![node];
        assert!(can_be_opened(&facts), "another device may do");
        for (name, words) in [("rxe0", "cannot be opened without"), ("rxe1", "no address")] {
            let device = RdmaDevice {
                name: name.into(),
                ports: vec![Port {
                    state: Some("ACTIVE"),
                    ..Port::default()
                }],
                ..RdmaDevice::default()
            };
            let (why, _) = why_not(&facts, &device, &Tried::default());
            assert!(why.contains(words), "{why}");
        }
        facts.devices.clear();
        assert!(!can_be_opened(&facts));
    }
}
