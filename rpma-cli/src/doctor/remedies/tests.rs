//! Remedies that need no host of files. `doctor/trees.rs` has the others.

use super::*;
use crate::facts::{Gid, Interface, Port, RdmaDevice};

#[test]
fn rights_have_the_name_of_the_user() {
    let remedy = memory_rights("/dev/dax0.0", "ann", None);
    assert!(remedy.starts_with("as root: chown ann /dev/dax0.0. The right lasts until"));
    for container in [None, Some(Container::Docker)] {
        let remedy = memory_rights("/mnt/f", "ann", container);
        assert_eq!(remedy, "as root: chown ann /mnt/f");
    }
    // Its root may not open the devices of the host.
    let remedy = memory_rights("/dev/dax0.0", "root", Some(Container::Docker));
    assert!(remedy.ends_with("--device /dev/dax0.0"), "{remedy}");
}

#[test]
fn soft_roce_gets_an_interface_of_this_host() {
    let facts = Facts {
        ethernet: vec!["roce0".into(), "ssh0".into()],
        ..Facts::default()
    };
    let remedy = no_device(&facts);
    assert!(
        remedy.contains("netdev roce0 (or another interface: ssh0)."),
        "{remedy}"
    );
    assert!(remedy.contains("until the next boot"), "{remedy}");
}

fn device(interface: Option<Interface>, driver: &str) -> RdmaDevice {
    RdmaDevice {
        name: "mlx5_3".into(),
        driver: Some(driver.into()),
        ports: vec![Port {
            interfaces: interface.into_iter().collect(),
            gids: vec![Gid {
                index: 0,
                gid: std::net::Ipv6Addr::LOCALHOST,
                kind: None,
            }],
            ..Port::default()
        }],
        ..RdmaDevice::default()
    }
}

/// A device that no address leads to: its interface decides.
#[test]
fn an_interface_without_an_address_has_the_remedy_of_its_state() {
    let interface = |is_set_up, is_elsewhere| Interface {
        name: "ib7".into(),
        is_set_up,
        is_elsewhere,
        ..Interface::default()
    };
    let up = "as root: ip addr add ADDR/24 dev ib7";
    let down = "as root: ip link set ib7 up, and ip addr add ADDR/24 dev ib7";
    let elsewhere = "ib7 is in another network namespace: run rpma there (`ip netns` lists them; ip netns exec NAME rpma \
                     doctor)";
    let pod =
        "ib7 is in the network of the host: give the pod the host's network (hostNetwork: true)";
    let none = "as root: modprobe ib_ipoib. It makes a network interface of mlx5_3, which needs an address (ip addr add)";
    let nspawn = "start the container without --private-network";
    for (interface, container, remedy) in [
        (Some(interface(Some(true), false)), None, up),
        (Some(interface(None, false)), None, up),
        (Some(interface(Some(false), false)), None, down),
        (Some(interface(None, true)), None, elsewhere),
        (
            Some(interface(None, true)),
            Some(Container::Kubernetes),
            pod,
        ),
        (None, None, none),
        (None, Some(Container::SystemdNspawn), nspawn),
    ] {
        assert_eq!(
            no_address(&device(interface, "mlx5_core"), container),
            remedy
        );
    }
}

#[test]
fn a_device_needs_the_provider_of_its_driver() {
    let facts = Facts {
        providers: vec!["rxe".into(), "mlx5".into()],
        ..Facts::default()
    };
    for (driver, missing) in [
        ("mlx5_core", None),
        ("bnxt_en", Some("bnxt_re")),
        ("new", None),
    ] {
        assert_eq!(
            facts.missing_provider(&device(None, driver)),
            missing,
            "{driver}"
        );
    }
}

/// Promise: of several ports the one counts that needs no cable.
#[test]
fn a_port_that_needs_no_cable_comes_first() {
    let infiniband = |number, state: &str, physical: &str| Port {
        number,
        state: Some(state.into()),
        physical: Some(physical.into()),
        link_layer: Some("InfiniBand".into()),
        ..Port::default()
    };
    let ethernet = |name: &str, is_set_up| Port {
        state: Some("DOWN".into()),
        link_layer: Some("Ethernet".into()),
        interfaces: vec![Interface {
            name: name.into(),
            state: Some("down".into()),
            is_set_up: Some(is_set_up),
            ..Interface::default()
        }],
        ..Port::default()
    };
    let unplugged = infiniband(1, "DOWN", "Polling");
    for (second, remedy) in [
        (
            infiniband(2, "INIT", "LinkUp"),
            "the cable is connected: run a subnet manager",
        ),
        (
            infiniband(2, "DOWN", "Disabled"),
            "as root: ibportstate -C mlx5_3 -D 0 2 enable",
        ),
        (infiniband(2, "DOWN", "Polling"), "connect the cable"),
    ] {
        let ports = vec![unplugged.clone(), second];
        let found = inactive(
            &RdmaDevice {
                ports,
                ..device(None, "mlx5_core")
            },
            None,
        );
        assert!(found.starts_with(remedy), "{found}");
    }
    let ports = vec![ethernet("ens1f0", true), ethernet("ens1f1", false)];
    let found = inactive(
        &RdmaDevice {
            ports,
            ..device(None, "mlx5_core")
        },
        None,
    );
    assert!(
        found.starts_with("as root: ip link set ens1f1 up"),
        "{found}"
    );
}
