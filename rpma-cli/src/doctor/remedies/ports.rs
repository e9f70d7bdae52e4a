//! The remedies for ports and their network interfaces, by their states.

use super::{LOG, give_network, or_other_kernel};
use crate::facts::{Container, Facts, Interface, Port, RdmaDevice};

/// The port that becomes active by the least work: its network needs a manager, or it is off. A cable is
/// more.
fn nearest(device: &RdmaDevice) -> Option<&Port> {
    let work = |port: &&Port| {
        let mut interfaces = port.interfaces.iter();
        let is_off = interfaces.any(|of| !of.is_elsewhere && of.is_set_up == Some(false));
        match (port.state, port.physical) {
            (Some("INIT" | "ARMED"), _) => 0,
            (_, Some("Disabled")) => 1,
            _ if is_off => 1,
            _ => 2,
        }
    };
    device.ports.iter().min_by_key(work)
}

/// For a device without an active port.
pub(in crate::doctor) fn inactive(device: &RdmaDevice, container: Option<Container>) -> String {
    let Some(port) = nearest(device) else {
        return format!("its driver shows no port: {LOG}");
    };
    if port.is_infiniband() {
        return match (port.state, port.physical) {
            (Some("INIT" | "ARMED"), _) => {
                "the cable is connected: run a subnet manager in the network (opensm)".into()
            }
            (_, Some("Disabled")) => format!(
                "as root: ibportstate -C {} -D 0 {} enable",
                device.name, port.number
            ),
            _ => "connect the cable to a switch or host of InfiniBand that is on. For Ethernet, set the port's type and start \
                  the host again (mstconfig -d PCI set LINK_TYPE_P1=2)"
                .into(),
        };
    }
    let Some(interface) = port.interfaces.first() else {
        return no_interface(device);
    };
    let name = &interface.name;
    match interface.state {
        _ if interface.is_elsewhere => elsewhere(interface, container),
        Some("up") => format!("{name} is up, and the port is not: {LOG}"),
        _ if interface.is_set_up == Some(true) => format!(
            "{name} is up and has no carrier: connect its cable, and look at the other end. `rdma link` must show \
             ACTIVE"
        ),
        _ => format!(
            "as root: ip link set {name} up. If `rdma link` does not show ACTIVE then, connect the cable"
        ),
    }
}

/// For an interface in another network namespace.
fn elsewhere(interface: &Interface, container: Option<Container>) -> String {
    let name = &interface.name;
    match container {
        Some(container) => format!(
            "{name} is in the network of the host: {}",
            give_network(container)
        ),
        None => format!(
            "{name} is in another network namespace: run rpma there (`ip netns` lists them; ip netns exec NAME rpma \
             doctor)"
        ),
    }
}

/// For a device of a bond that sends through another one.
pub(in crate::doctor) fn passive_bond(device: &RdmaDevice) -> Option<String> {
    let bond = device.passive_bond()?;
    let (active, own) = bond.members.as_ref()?;
    Some(format!(
        "{bond} sends through {active}, and {own} of {device} is a backup, so no address of {bond} leads to {device}. As \
         root, until the bond changes its member: ip link set {bond} type bond active_slave {own}. For ever: the option \
         `primary {own}` in the bond's configuration. RDMA ends when the bond changes to {active}",
        bond = bond.name,
        device = device.name
    ))
}

/// For a device with an active port that no address leads to.
pub(in crate::doctor) fn no_address(device: &RdmaDevice, facts: &Facts) -> String {
    let Some(interface) = device.interfaces().next() else {
        return without_interface(device, facts);
    };
    let name = &interface.name;
    match interface.is_set_up {
        _ if interface.is_elsewhere => elsewhere(interface, facts.container),
        Some(false) => {
            format!("as root: ip link set {name} up, and ip addr add ADDR/24 dev {name}")
        }
        _ => format!("as root: ip addr add ADDR/24 dev {name}"),
    }
}

fn without_interface(device: &RdmaDevice, facts: &Facts) -> String {
    if let Some(container) = facts.container {
        return give_network(container).into();
    }
    if !device.ports.iter().any(Port::is_infiniband) {
        return no_interface(device);
    }
    let load = format!(
        "as root: modprobe ib_ipoib. It makes a network interface of {}, such as ib0, which needs, as root: ip link set \
         ib0 up, and ip addr add ADDR/24 dev ib0. If it is loaded, look for its interface in other network namespaces \
         (`ip netns`)",
        device.name
    );
    or_other_kernel(facts, "ib_ipoib", load)
}

fn no_interface(device: &RdmaDevice) -> String {
    format!(
        "{} has no network interface that this process sees: `rdma link` shows the one of its adapter",
        device.name
    )
}
