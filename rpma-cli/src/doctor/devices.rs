//! The RDMA devices of the host, with their ports.

use super::remedies;
use crate::facts::{Facts, Gid, Interface, Port, RdmaDevice};
use crate::report::Finding;

/// Each device, or only the wanted one. A device without an active port is bad if no other one of
/// them has one.
pub(super) fn list(facts: &Facts, wanted: Option<&str>) -> Vec<Finding> {
    if facts.devices.is_empty() {
        let remedy = remedies::no_device(facts);
        return vec![Finding::bad("RDMA device", "this host has none", remedy)];
    }
    let is_wanted = |device: &&RdmaDevice| wanted.is_none_or(|wanted| wanted == device.name);
    let devices = || facts.devices.iter().filter(is_wanted);
    let one_is_active = devices().any(RdmaDevice::is_active);
    devices()
        .map(|device| finding(device, one_is_active))
        .collect()
}

fn finding(device: &RdmaDevice, one_is_active: bool) -> Finding {
    const CHECK: &str = "RDMA device";
    let found = describe(device);
    if device.is_active() {
        return Finding::good(CHECK, found);
    }
    let remedy = activate(device);
    if one_is_active {
        Finding::note(CHECK, found).with_remedy(remedy)
    } else {
        Finding::bad(CHECK, found, remedy)
    }
}

/// The remedy for a device without an active port.
pub(super) fn activate(device: &RdmaDevice) -> String {
    remedies::inactive(is_infiniband(device), first_interface(device))
}

pub(super) fn is_infiniband(device: &RdmaDevice) -> bool {
    let mut ports = device.ports.iter();
    ports.any(|port| port.link_layer.as_deref() == Some("InfiniBand"))
}

pub(super) fn first_interface(device: &RdmaDevice) -> Option<&str> {
    let interface = device.interfaces().next()?;
    Some(&interface.name)
}

/// `rxe0 (rxe): port 1 is ACTIVE, Ethernet, eth0 up MTU 1500, gids ...`.
fn describe(device: &RdmaDevice) -> String {
    let details = [
        device.description.clone(),
        device.board.clone(),
        device
            .firmware
            .as_ref()
            .map(|firmware| format!("firmware {firmware}")),
        device
            .node_type
            .clone()
            .filter(|_| device.is_iwarp())
            .map(|_| "iWARP".into()),
    ];
    let details: Vec<String> = details.into_iter().flatten().collect();
    let ports = device.ports.iter();
    let ports: Vec<String> = ports.map(|it| port(it, device.is_iwarp())).collect();
    let ports = if ports.is_empty() {
        "no port".into()
    } else {
        ports.join("; ")
    };
    if details.is_empty() {
        format!("{}: {ports}", device.name)
    } else {
        format!("{} ({}): {ports}", device.name, details.join(", "))
    }
}

fn port(port: &Port, is_iwarp: bool) -> String {
    let mut words = vec![format!(
        "port {} is {}",
        port.number,
        port.state.as_deref().unwrap_or("in an unknown state")
    )];
    words.extend(port.link_layer.clone());
    words.extend(port.interfaces.iter().map(interface));
    if !is_iwarp {
        // That of iWARP is the address of its hardware, and no program needs it.
        words.push(gids(port));
    }
    words.join(", ")
}

fn interface(interface: &Interface) -> String {
    let mtu = interface.mtu.map(|mtu| format!("MTU {mtu}"));
    let words = [Some(interface.name.clone()), interface.state.clone(), mtu];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// A port can have hundreds.
const MOST_GIDS: usize = 6;

fn gids(port: &Port) -> String {
    let gid = |gid: &Gid| match &gid.kind {
        Some(kind) => format!("{} {} ({kind})", gid.index, gid.gid),
        None => format!("{} {}", gid.index, gid.gid),
    };
    let shown: Vec<String> = port.gids.iter().take(MOST_GIDS).map(gid).collect();
    match port.gids.len() {
        0 => "no gid".into(),
        all if all > MOST_GIDS => {
            format!("gids {}, and {} more", shown.join(", "), all - MOST_GIDS)
        }
        _ => format!("gids {}", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    fn device(name: &str, state: &str, link_layer: &str) -> RdmaDevice {
        let interface = Interface {
            name: "eth0".into(),
            mtu: Some(1500),
            state: Some("up".into()),
        };
        RdmaDevice {
            name: name.into(),
            description: Some("rxe".into()),
            ports: vec![Port {
                number: 1,
                state: Some(state.into()),
                link_layer: Some(link_layer.into()),
                interfaces: vec![interface],
                ..Port::default()
            }],
            ..RdmaDevice::default()
        }
    }

    fn verdicts(devices: Vec<RdmaDevice>, wanted: Option<&str>) -> Vec<Verdict> {
        let facts = Facts {
            devices,
            ..Facts::default()
        };
        let findings = list(&facts, wanted);
        findings.iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn a_host_without_a_device_gets_commands() {
        let mut facts = Facts::default();
        let remedy = |facts: &Facts| list(facts, None)[0].remedy.clone().unwrap_or_default();
        assert!(remedy(&facts).contains("rdma link add rxe0 type rxe"));
        facts.container = Some("docker".into());
        assert!(remedy(&facts).contains("--device /dev/infiniband/uverbs0"));
    }

    #[test]
    fn an_inactive_device_is_bad_if_it_is_the_only_one_or_the_wanted_one() {
        let (up, down) = (
            device("rxe0", "ACTIVE", "Ethernet"),
            device("mlx5_0", "DOWN", "Ethernet"),
        );
        let both = vec![down.clone(), up];
        assert_eq!(verdicts(both.clone(), None), [Verdict::Note, Verdict::Good]);
        assert_eq!(verdicts(both.clone(), Some("mlx5_0")), [Verdict::Bad]);
        assert_eq!(verdicts(both, Some("rxe0")), [Verdict::Good]);
        assert_eq!(verdicts(vec![down], None), [Verdict::Bad]);
    }

    #[test]
    fn an_inactive_port_has_the_remedy_of_its_link() {
        let remedy = |link_layer| {
            let finding = finding(&device("mlx5_0", "INIT", link_layer), false);
            finding.remedy.unwrap_or_default()
        };
        assert!(remedy("InfiniBand").contains("subnet manager"));
        assert!(remedy("Ethernet").contains("ip link set eth0 up"));
    }

    #[test]
    fn a_device_is_one_line() {
        let found = describe(&device("rxe0", "ACTIVE", "Ethernet"));
        assert_eq!(
            found,
            "rxe0 (rxe): port 1 is ACTIVE, Ethernet, eth0 up MTU 1500, no gid"
        );
        assert_eq!(describe(&RdmaDevice::default()), ": no port");
        let iwarp = RdmaDevice {
            node_type: Some("RNIC".into()),
            ..device("siw0", "ACTIVE", "Ethernet")
        };
        let found = "siw0 (rxe, iWARP): port 1 is ACTIVE, Ethernet, eth0 up MTU 1500";
        assert_eq!(describe(&iwarp), found);
    }
}
