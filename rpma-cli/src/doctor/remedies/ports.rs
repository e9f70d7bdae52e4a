//! The remedies for ports and their network interfaces, by their states.

use super::{LOG, give_network};
use crate::facts::{Container, Interface, Port, RdmaDevice};

/// The port that becomes active by the least work: its network needs a manager, or it is off. A cable is
/// more.
fn nearest(device: &RdmaDevice) -> Option<&Port> {
    let work = |port: &&Port| {
        let mut interfaces = port.interfaces.iter();
        let is_off = interfaces.any(|of| !of.is_elsewhere && of.is_set_up == Some(false));
        match (port.state.as_deref(), port.physical.as_deref()) {
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
    let is_infiniband = |link: &Option<String>| link.as_deref() == Some("InfiniBand");
    let Some(port) = nearest(device) else {
        return LOG.into();
    };
    if is_infiniband(&port.link_layer) {
        return match (port.state.as_deref(), port.physical.as_deref()) {
            (Some("INIT" | "ARMED"), _) => {
                "the cable is connected: run a subnet manager in the network (opensm)".into()
            }
            (_, Some("Disabled")) => format!(
                "as root: ibportstate -C {} -D 0 {} enable",
                device.name, port.number
            ),
            _ => "connect the cable to a switch or host that is on".into(),
        };
    }
    match port.interfaces.first() {
        Some(interface) if interface.is_elsewhere => elsewhere(interface, container),
        Some(Interface { name, state, .. }) if state.as_deref() == Some("up") => {
            format!("{name} is up, and the port is not: {LOG}")
        }
        Some(Interface {
            name,
            is_set_up: Some(true),
            ..
        }) => format!(
            "{name} is set up and has no carrier: connect its cable, and look at the other end. `rdma link` must show \
             ACTIVE"
        ),
        Some(Interface { name, .. }) => format!(
            "as root: ip link set {name} up. If `rdma link` does not show ACTIVE then, connect the cable"
        ),
        None => format!(
            "{} has no network interface that this process sees: `rdma link` shows the one of its adapter",
            device.name
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

/// For a device that no address leads to.
pub(in crate::doctor) fn no_address(device: &RdmaDevice, container: Option<Container>) -> String {
    match device.interfaces().next() {
        Some(interface) if interface.is_elsewhere => elsewhere(interface, container),
        None if container
            .is_some_and(|_| device.ports.iter().any(|port| !port.gids.is_empty())) =>
        {
            container.map_or_else(String::new, |container| give_network(container).into())
        }
        Some(Interface {
            name,
            is_set_up: Some(false),
            ..
        }) => {
            format!("as root: ip link set {name} up, and ip addr add ADDR/24 dev {name}")
        }
        Some(Interface { name, .. }) => format!("as root: ip addr add ADDR/24 dev {name}"),
        None => format!(
            "as root: modprobe ib_ipoib. It makes a network interface of {}, which needs an address (ip addr add)",
            device.name
        ),
    }
}
