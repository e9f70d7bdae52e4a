//! Remedies that need no host of files. `doctor/trees.rs` has the others.

use super::*;
use crate::facts::{Container, Interface, Port, RdmaDevice, User};

#[test]
fn rights_have_the_name_of_the_user() {
    let host = Facts::default();
    let remedy = memory_rights("/dev/dax0.0", "ann", false, &host);
    assert!(remedy.starts_with("as root: chown ann /dev/dax0.0. The right lasts until"));
    for host in [host, inside(Container::Docker, User::default())] {
        let remedy = memory_rights("/mnt/f", "ann", false, &host);
        assert_eq!(remedy, "as root: chown ann /mnt/f");
    }
}

fn inside(container: Container, user: User) -> Facts {
    Facts {
        container: Some(container),
        user,
        ..Facts::default()
    }
}

/// Promise: a device that the container has is not given to it again. EPERM is for the rule of its
/// control group, and EACCES for permissions.
#[test]
fn permissions_are_no_rule_of_a_container() {
    let user = |is_root, is_mapped| User { is_root, is_mapped };
    let path = "/dev/infiniband/uverbs0";
    let permissions = "the container has it, and its permissions refuse this user. as root, ";
    for (container, user, by_rule, remedy) in [
        (
            Some(Container::Docker),
            user(true, false),
            true,
            "give it to the container: --device PATH".to_owned(),
        ),
        (
            Some(Container::Docker),
            user(false, false),
            false,
            format!("{permissions}in the container: chmod 666 PATH"),
        ),
        (
            Some(Container::Podman),
            user(true, true),
            false,
            format!("{permissions}on the host of the container: chmod 666 PATH"),
        ),
        (
            Some(Container::Podman),
            user(true, false),
            false,
            "the container has it, and SELinux, AppArmor or a mount with `nodev` refuses it to root: permit it there \
             (--security-opt label=disable for SELinux)"
                .into(),
        ),
        (
            None,
            user(true, false),
            true,
            "a rule of the control group forbids it: DeviceAllow=PATH rw in the systemd unit".into(),
        ),
    ] {
        let facts = Facts {
            container,
            user,
            ..Facts::default()
        };
        let access = Access::Refused {
            reason: "denied".into(),
            by_rule,
        };
        let node = Node {
            path: path.into(),
            device: None,
            access,
        };
        assert_eq!(super::node(&node, &facts), remedy.replace("PATH", path));
        let found = memory_rights("/dev/dax0.0", "ann", by_rule, &facts);
        let remedy = remedy.replace("PATH", "/dev/dax0.0");
        let remedy = remedy.replace("chmod 666", "chown ann");
        assert_eq!(found, remedy);
    }
}

/// Promise: the remedy lasts. The kernel makes these files with the mode 0666.
#[test]
fn a_device_file_that_is_limited_has_its_rule() {
    let access = Access::Refused {
        reason: "denied".into(),
        by_rule: false,
    };
    let path = "/dev/infiniband/uverbs0".to_owned();
    let node = Node {
        path,
        device: None,
        access,
    };
    let remedy = super::node(&node, &Facts::default());
    for part in [
        "a udev rule of this host may limit it (/etc/udev/rules.d)",
        "As root, until the next boot: chmod 666 /dev/infiniband/uverbs0",
    ] {
        assert!(remedy.contains(part), "{remedy}");
    }
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

fn device(interface: Option<Interface>, driver: &'static str) -> RdmaDevice {
    RdmaDevice {
        name: "mlx5_3".into(),
        driver: Some(driver),
        ports: vec![Port {
            link_layer: Some("InfiniBand"),
            interfaces: interface.into_iter().collect(),
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
    let none = "as root: modprobe ib_ipoib. It makes a network interface of mlx5_3, such as ib0, which needs, as root: ip \
                link set ib0 up, and ip addr add ADDR/24 dev ib0. If it is loaded, look for its interface in other network \
                namespaces (`ip netns`)";
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
        let facts = Facts {
            container,
            ..Facts::default()
        };
        let device = device(interface, "mlx5_core");
        assert_eq!(no_address(&device, &facts), remedy);
    }
    let lacking = Facts {
        absent: vec!["ib_ipoib"],
        ..Facts::default()
    };
    let remedy = no_address(&device(None, "mlx5_core"), &lacking);
    assert!(remedy.starts_with("this kernel has no ib_ipoib: install the kernel package"));
}

/// Promise: IPoIB is for InfiniBand, and a port that is not there has no remedy of a port.
#[test]
fn a_device_of_ethernet_or_without_ports_needs_no_ipoib() {
    let mut device = device(None, "mlx5_core");
    device.ports[0].link_layer = Some("Ethernet");
    let remedy = no_address(&device, &Facts::default());
    assert!(
        remedy.starts_with("mlx5_3 has no network interface"),
        "{remedy}"
    );
    device.ports.clear();
    let remedy = inactive(&device, None);
    assert!(remedy.starts_with("its driver shows no port"), "{remedy}");
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
    let infiniband = |number, state: &'static str, physical: &'static str| Port {
        number,
        state: Some(state),
        physical: Some(physical),
        link_layer: Some("InfiniBand"),
        ..Port::default()
    };
    let ethernet = |name: &str, is_set_up| Port {
        state: Some("DOWN"),
        link_layer: Some("Ethernet"),
        interfaces: vec![Interface {
            name: name.into(),
            state: Some("down"),
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

/// Promise: a device that the kernel keeps for another network namespace is not taken for one that a
/// rule forbids, or that its driver has not made.
#[test]
fn a_device_of_another_network_namespace_is_moved() {
    let mut facts = Facts {
        nodes: vec![Node {
            path: "/dev/infiniband/uverbs0".into(),
            device: Some("mlx5_0".into()),
            access: Access::Refused {
                reason: "denied".into(),
                by_rule: true,
            },
        }],
        ..Facts::default()
    };
    let remedy = node(&facts.nodes[0], &facts);
    assert!(
        remedy.contains("rdma dev set mlx5_0 netns NAME"),
        "{remedy}"
    );
    assert_eq!(no_device(&facts), above("device file"));
    facts.devices.push(RdmaDevice {
        name: "mlx5_0".into(),
        ..RdmaDevice::default()
    });
    let remedy = node(&facts.nodes[0], &facts);
    assert!(remedy.contains("DeviceAllow="), "{remedy}");
}
