//! The RDMA devices of the host, with their ports.

use super::remedies;
use crate::facts::{Facts, Interface, Port, RdmaDevice};
use crate::report::Finding;

const CHECK: &str = "RDMA device";

/// Each device, or only the wanted one. A device without an active port is bad if no other one of
/// them has one. A device that can never serve counts as none.
pub(super) fn list(facts: &Facts, wanted: Option<&str>) -> Vec<Finding> {
    if facts.devices.is_empty() {
        let remedy = remedies::no_device(facts);
        let found = match facts.elsewhere() {
            Some(_) => "this network namespace has none",
            None => "this host has none",
        };
        return vec![Finding::bad(CHECK, found, remedy)];
    }
    let is_wanted = |device: &&RdmaDevice| wanted.is_none_or(|wanted| wanted == device.name);
    let devices = || facts.devices.iter().filter(is_wanted);
    let one_is_ready = devices().any(RdmaDevice::is_ready);
    let one_can_serve = devices().any(RdmaDevice::can_serve);
    let finding = |device: &RdmaDevice| {
        let found = describe(device);
        let never = || {
            format!(
                "{found}. It can never serve: rpma needs the reliable connections of InfiniBand, RoCE or iWARP"
            )
        };
        let inactive = || remedies::inactive(device, facts.container);
        match device.can_serve() {
            true if device.is_ready() => match remedies::passive_bond(device) {
                Some(remedy) => Finding::note(CHECK, found).with_remedy(remedy),
                None => Finding::good(CHECK, found),
            },
            true if one_is_ready => Finding::note(CHECK, found).with_remedy(inactive()),
            true => Finding::bad(CHECK, found, inactive()),
            false if one_can_serve => Finding::note(CHECK, never()),
            false => Finding::bad(CHECK, never(), another(facts)),
        }
    };
    devices().map(finding).collect()
}

/// For a device that no setting helps.
fn another(facts: &Facts) -> String {
    let mut others = facts.devices.iter().filter(|device| device.can_serve());
    match others.next() {
        Some(other) => format!("rpma doctor {}", other.name),
        None => remedies::no_device(facts),
    }
}

/// `rxe0 (rxe): port 1 is ACTIVE, Ethernet, eth0 up MTU 1500`.
fn describe(device: &RdmaDevice) -> String {
    let kind = device.node_type.filter(|kind| *kind != "CA");
    let kind = kind.map(|kind| match kind {
        "RNIC" => "iWARP".into(),
        kind => format!("node type {kind}"),
    });
    let firmware = device.firmware.as_ref();
    let firmware = firmware.map(|firmware| format!("firmware {firmware}"));
    let details = [
        device.description.clone(),
        device.board.clone(),
        firmware,
        kind,
    ];
    let details: Vec<String> = details.into_iter().flatten().collect();
    let details = match &details[..] {
        [] => String::new(),
        details => format!(" ({})", details.join(", ")),
    };
    let ports = device.ports.iter().map(port).collect::<Vec<_>>();
    let ports = match &ports[..] {
        [] => "no port".into(),
        ports => ports.join("; "),
    };
    format!("{}{details}: {ports}", device.name)
}

fn port(port: &Port) -> String {
    let state = port.state.unwrap_or("in an unknown state");
    let mut words = vec![format!("port {} is {state}", port.number)];
    words.extend(port.link_layer.map(Into::into));
    words.extend(port.interfaces.iter().map(interface));
    words.join(", ")
}

fn interface(interface: &Interface) -> String {
    let name = &interface.name;
    if interface.is_elsewhere {
        return format!("{name} in another network namespace");
    }
    let state = interface.state.map(|state| format!(" {state}"));
    let mtu = interface.mtu.map(|mtu| format!(" MTU {mtu}"));
    format!(
        "{name}{}{}",
        state.unwrap_or_default(),
        mtu.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    fn device(name: &str, state: &'static str, link_layer: &'static str) -> RdmaDevice {
        let interface = Interface {
            name: "eth0".into(),
            mtu: Some(1500),
            state: Some("up"),
            ..Interface::default()
        };
        RdmaDevice {
            name: name.into(),
            description: Some("rxe".into()),
            ports: vec![Port {
                number: 1,
                state: Some(state),
                link_layer: Some(link_layer),
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
    fn a_device_is_one_line() {
        let found = describe(&device("rxe0", "ACTIVE", "Ethernet"));
        assert_eq!(
            found,
            "rxe0 (rxe): port 1 is ACTIVE, Ethernet, eth0 up MTU 1500"
        );
        assert_eq!(describe(&RdmaDevice::default()), ": no port");
        let iwarp = RdmaDevice {
            node_type: Some("RNIC"),
            ..device("siw0", "ACTIVE", "Ethernet")
        };
        let found = "siw0 (rxe, iWARP): port 1 is ACTIVE, Ethernet, eth0 up MTU 1500";
        assert_eq!(describe(&iwarp), found);
    }
}
