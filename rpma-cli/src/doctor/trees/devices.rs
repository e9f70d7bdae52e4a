//! Hosts with and without RDMA devices.

use super::*;

/// A target that was refused would be refused in the next command as well.
#[test]
fn a_refused_target_is_in_no_remedy() -> io::Result<()> {
    let lines = diagnose(&["127.0.0.1"], &[DEVDAX])?;
    let remedies: Vec<_> = lines
        .iter()
        .filter_map(|line| line.trim_start().strip_prefix("-> "))
        .collect();
    assert!(
        remedies.contains(&"rpma doctor --memory /dev/dax0.0"),
        "{lines:#?}"
    );
    assert!(
        !remedies.iter().any(|remedy| remedy.contains("127.0.0.1")),
        "{lines:#?}"
    );
    Ok(())
}

const SOFT_ROCE: &str = "an adapter's driver makes its device. soft-RoCE makes one out of any Ethernet card until the \
                         next boot, as root: modprobe -a rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev enp5s0. \
                         docs/getting-started.md has a guest machine and a simulated fabric for tests without RDMA";
const NEVER: &str =
    "It can never serve: rpma needs the reliable connections of InfiniBand, RoCE or iWARP";

/// Promise: a device without reliable connections is not good, and no command is for it.
#[test]
fn a_device_that_can_never_serve_is_not_good() {
    let active = [("state", "4: ACTIVE"), ("link_layer", "Ethernet")];
    for (name, kind, found) in [
        ("usnic_0", "5: usNIC", "usNIC"),
        ("usnic_0", "6: usNIC UDP", "usNIC UDP"),
        ("efa_0", "7: unspecified", "unspecified"),
        ("sw0", "2: switch", "switch"),
        ("rt0", "3: router", "router"),
    ] {
        let never = device(name, &[("node_type", kind)], &active);
        let lines = with_devices(&[], std::slice::from_ref(&never), ETHERNET);
        let found =
            format!("RDMA device: {name} (node type {found}): port 1 is ACTIVE, Ethernet. {NEVER}");
        finds(&lines, &format!("BAD     {found}"), SOFT_ROCE);

        let serves = device("mlx5_0", &[("node_type", "1: CA")], &active);
        let both = [never, serves];
        let lines = with_devices(&[], &both, &[]);
        assert!(lines.contains(&format!("note    {found}")), "{lines:#?}");
        let good = "good    RDMA device: mlx5_0: port 1 is ACTIVE, Ethernet";
        assert!(lines.contains(&good.to_owned()), "{lines:#?}");
        let lines = with_devices(&[name], &both, &[]);
        finds(&lines, &format!("BAD     {found}"), "rpma doctor mlx5_0");
    }
    let files = [("node_type", "1: CA")];
    let unknown = device(
        "x0",
        &files,
        &[("state", "4: ACTIVE"), ("link_layer", "Unspecified")],
    );
    let found = format!("BAD     RDMA device: x0: port 1 is ACTIVE, Unspecified. {NEVER}");
    finds(&with_devices(&[], &[unknown], ETHERNET), &found, SOFT_ROCE);
}

/// RoCE, iWARP and InfiniBand.
#[test]
fn devices_that_serve_are_good() {
    for (kind, link, found) in [
        (
            "1: CA",
            "Ethernet",
            "good    RDMA device: x0: port 1 is ACTIVE, Ethernet",
        ),
        (
            "1: CA",
            "InfiniBand",
            "good    RDMA device: x0: port 1 is ACTIVE, InfiniBand",
        ),
        (
            "4: RNIC",
            "Ethernet",
            "good    RDMA device: x0 (iWARP): port 1 is ACTIVE, Ethernet",
        ),
    ] {
        let device = device(
            "x0",
            &[("node_type", kind)],
            &[("state", "4: ACTIVE"), ("link_layer", link)],
        );
        let lines = with_devices(&[], &[device], &[]);
        assert!(lines.contains(&found.to_owned()), "{lines:#?}");
    }
}

/// A port of InfiniBand that is not active.
#[test]
fn a_port_of_infiniband_has_the_remedy_of_its_state() {
    let cable = "connect the cable to a switch or host of InfiniBand that is on. For Ethernet, set the port's type and start \
                 the host again (mstconfig -d PCI set LINK_TYPE_P1=2)";
    let manager = "the cable is connected: run a subnet manager in the network (opensm)";
    for (state, physical, remedy) in [
        ("1: DOWN", "2: Polling", cable),
        (
            "1: DOWN",
            "3: Disabled",
            "as root: ibportstate -C mlx5_3 -D 0 1 enable",
        ),
        ("2: INIT", "5: LinkUp", manager),
        ("3: ARMED", "5: LinkUp", manager),
    ] {
        let port = [
            ("state", state),
            ("phys_state", physical),
            ("link_layer", "InfiniBand"),
        ];
        let device = device("mlx5_3", &[("node_type", "1: CA")], &port);
        let state = &state[3..];
        let found = format!("BAD     RDMA device: mlx5_3: port 1 is {state}, InfiniBand");
        finds(&with_devices(&[], &[device], &[]), &found, remedy);
    }
}

/// A port of RoCE or iWARP that is not active: its interface is the reason.
#[test]
fn a_port_of_ethernet_has_the_remedy_of_its_interface() {
    let no_carrier = "ens1 is up and has no carrier: connect its cable, and look at the other end. `rdma link` must \
                      show ACTIVE";
    let set_up =
        "as root: ip link set ens1 up. If `rdma link` does not show ACTIVE then, connect the cable";
    let is_up =
        "ens1 is up, and the port is not: look for the cause in the kernel's log, as root: dmesg";
    for kind in ["1: CA", "4: RNIC"] {
        let port = [("state", "1: DOWN"), ("link_layer", "Ethernet")];
        let of =
            |device: &str| self::device(device, &[("node_type", kind), ("parent", "ens1")], &port);
        for (flags, state, remedy) in [
            ("0x1003", "down", no_carrier),
            ("0x1002", "down", set_up),
            ("0x1003", "up", is_up),
        ] {
            let net = [
                ("sys/class/net/ens1/flags", flags),
                ("sys/class/net/ens1/operstate", state),
            ];
            let lines = with_devices(&[], &[of("x0")], &net);
            let line = lines
                .iter()
                .position(|line| line.starts_with("BAD     RDMA device: x0"));
            let line = &lines[line.expect("a finding")];
            assert!(
                line.ends_with(&format!("port 1 is DOWN, Ethernet, ens1 {state}")),
                "{line}"
            );
            finds(&lines, line, remedy);
        }
        let lines = with_devices(&[], &[of("x0")], &[]);
        let line = lines
            .iter()
            .find(|line| line.contains("ens1 in another network namespace"));
        let elsewhere = "ens1 is in another network namespace: run rpma there (`ip netns` lists them; ip netns exec NAME \
                         rpma doctor)";
        finds(&lines, line.expect("a finding"), elsewhere);
        let lines = with_devices(&[], &[of("x0")], &[(".dockerenv", "")]);
        let line = lines
            .iter()
            .find(|line| line.contains("ens1 in another network namespace"));
        let host = "ens1 is in the network of the host: start the container with --network host";
        finds(&lines, line.expect("a finding"), host);
    }
}

#[test]
fn a_host_without_a_device_gets_its_own_names() {
    let none = "BAD     RDMA device: this host has none";
    finds(
        &diagnose(&[], &[ETHERNET]).expect("a tree"),
        none,
        SOFT_ROCE,
    );
    let no_ethernet = "an adapter's driver makes its device. soft-RoCE makes one out of an Ethernet interface that is up, \
                       and this host has none: `ip link` shows the others. docs/getting-started.md has a guest machine \
                       and a simulated fabric for tests without RDMA";
    finds(&diagnose(&[], &[]).expect("a tree"), none, no_ethernet);
    // An adapter whose module is not loaded.
    let adapter: Tree<'_> = &[(
        "sys/class/net/enp5s0/device/driver",
        "-> ../../../bus/pci/drivers/mlx5_core",
    )];
    let load = "enp5s0 is an adapter, and its module for RDMA is not loaded. As root: modprobe mlx5_ib. If it fails, look for the \
         cause in the kernel's log, as root: dmesg";
    finds(
        &diagnose(&[], &[ETHERNET, adapter]).expect("a tree"),
        none,
        load,
    );
    let off = "enp5s0 is an adapter, and its module mlx5_ib has made no device: `devlink dev param show` shows whether \
               enable_roce or enable_rdma is false, and its DEV and MODE. If so, as root: devlink dev param set DEV name NAME \
               value true cmode MODE; for the mode driverinit, also devlink dev reload DEV, which interrupts its network for a \
               moment. Otherwise, look for the cause in the kernel's log, as root: dmesg";
    let loaded: Tree<'_> = &[("sys/module/mlx5_ib/", "")];
    let built_in: Tree<'_> = &[
        ("proc/sys/kernel/osrelease", "6.12.1"),
        (
            "lib/modules/6.12.1/modules.dep",
            "kernel/drivers/rdma_rxe.ko:\n",
        ),
        (
            "lib/modules/6.12.1/modules.builtin",
            "kernel/drivers/mlx5_ib.ko\n",
        ),
    ];
    for running in [loaded, built_in] {
        let lines = diagnose(&[], &[ETHERNET, adapter, running]).expect("a tree");
        finds(&lines, none, off);
    }
    // A kernel of a cloud.
    let cut_down: Tree<'_> = &[
        ("proc/sys/kernel/osrelease", "6.12.1"),
        (
            "lib/modules/6.12.1/modules.dep",
            "kernel/drivers/infiniband/core/ib_core.ko.xz:\n",
        ),
    ];
    let lines = diagnose(&[], &[ETHERNET, cut_down]).expect("a tree");
    let at = lines
        .iter()
        .position(|line| line == none)
        .expect("a finding");
    assert!(
        lines[at + 1].contains("this kernel has no soft-RoCE"),
        "{lines:#?}"
    );
    assert!(!lines[at + 1].contains("rdma link add"), "{lines:#?}");
    let lines = diagnose(&[], &[ETHERNET, adapter, cut_down]).expect("a tree");
    finds(
        &lines,
        none,
        &format!("enp5s0 is an adapter, and this kernel has no mlx5_ib: {OTHER_KERNEL}"),
    );
    let modules = "BAD     kernel modules: this kernel has no ib_uverbs, rdma_cm, rdma_ucm";
    finds(&lines, modules, OTHER_KERNEL);
    let file = "BAD     device file: /dev/infiniband/rdma_cm does not exist";
    finds(
        &lines,
        file,
        &format!("the kernel makes it with its modules: {OTHER_KERNEL}"),
    );
}

const OTHER_KERNEL: &str = "install the kernel package with all modules: linux-image-amd64 in the place of a cloud \
                            kernel, linux-modules-extra-6.12.1 on Ubuntu, kernel-modules-6.12.1 and \
                            kernel-modules-extra-6.12.1 on Fedora and RHEL";

/// All that librdmacm needs of the kernel.
const KERNEL: Tree<'_> = &[
    ("sys/module/ib_core/", ""),
    ("sys/module/ib_uverbs/", ""),
    ("sys/module/rdma_cm/", ""),
    ("sys/module/rdma_ucm/", ""),
    ("dev/infiniband/rdma_cm", ""),
    ("dev/infiniband/uverbs0", ""),
    ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"),
];
/// An interface with the address 192.0.2.2.
const ADDRESS: Tree<'_> = &[
    ("sys/class/net/ens1/flags", "0x1003"),
    ("proc/net/fib_trie", "|-- 192.0.2.2\n/32 host LOCAL\n"),
    (
        "proc/net/route",
        "ens1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n",
    ),
];
const LIBRARIES: Tree<'_> = &[
    (
        "proc/self/maps",
        "7f00-7f01 r-xp 0 0 0   /usr/lib64/libibverbs.so.1.14.56.0\n",
    ),
    ("etc/libibverbs.d/mlx5.driver", "driver mlx5\n"),
];
const PROVIDERS: &str = "install rdma-core's providers: ibverbs-providers on Debian and Ubuntu, libibverbs on Fedora \
                         and RHEL. If the package is there, install it again in the version of libibverbs (`apt list -a \
                         ibverbs-providers libibverbs1` or `rpm -qa | grep ibverbs` shows the versions)";

/// RoCE, InfiniBand and iWARP, each with an address.
fn adapter(kind: &str, link: &str) -> Vec<(String, String)> {
    let mut files = device(
        "mlx5_0",
        &[("node_type", kind), ("device/net/ens1/", "")],
        &[("state", "4: ACTIVE"), ("link_layer", link)],
    );
    let driver = "sys/class/infiniband/mlx5_0/device/driver";
    files.push((
        driver.into(),
        "-> ../../../bus/pci/drivers/mlx5_core".into(),
    ));
    files
}

/// Promise: an address that is there is not added again.
#[cfg(target_endian = "little")]
#[test]
fn a_device_with_an_address_needs_no_other() {
    let library: Tree<'_> = &[("usr/lib64/libibverbs/libmlx5-rdmav34.so", "")];
    for (kind, link) in [
        ("1: CA", "Ethernet"),
        ("1: CA", "InfiniBand"),
        ("4: RNIC", "Ethernet"),
    ] {
        let on = |args: &[&str], more: &[Tree<'_>]| {
            with_devices(
                args,
                &[adapter(kind, link)],
                &[&[KERNEL, LIBRARIES], more].concat().concat(),
            )
        };
        // The library of its provider is gone.
        let failed = "rdma_bind_addr failed: No such device (os error 19)";
        let attempt = format!("the attempt by 192.0.2.2: {failed}");
        let found = "mlx5_0 cannot be opened: rdma-core has no provider mlx5 here";
        finds(
            &on(&[], &[ADDRESS]),
            &format!("BAD     address: {found} ({attempt})"),
            PROVIDERS,
        );
        let target = format!(
            "192.0.2.2 is an address of this host, and leads to no RDMA device ({failed}): {found}"
        );
        finds(
            &on(&["192.0.2.2"], &[ADDRESS]),
            &format!("BAD     address: {target}"),
            PROVIDERS,
        );
        // It is there, and does not know the device.
        let unknown = format!(
            "the kernel has this device, and rdma-core does not know it: a warning of `ibv_devices` names the cause. \
             For a provider that is missing or of another version, {PROVIDERS}"
        );
        let found = "mlx5_0 cannot be opened by its address 192.0.2.2";
        finds(
            &on(&[], &[ADDRESS, library]),
            &format!("BAD     address: {found} ({attempt})"),
            &unknown,
        );
        // The address of another interface is no reason to add one either.
        let other: Tree<'_> = &[
            ADDRESS[0],
            ADDRESS[2],
            (
                "proc/net/fib_trie",
                "|-- 192.0.2.2\n/32 host LOCAL\n|-- 198.51.100.7\n/32 host LOCAL\n",
            ),
        ];
        let target = format!(
            "198.51.100.7 is an address of this host, and leads to no RDMA device ({failed}): {found}"
        );
        finds(
            &on(&["198.51.100.7"], &[other, library]),
            &format!("BAD     address: {target}"),
            &unknown,
        );
        // Without an address.
        finds(
            &on(&[], &[library, &[("sys/class/net/ens1/flags", "0x1003")]]),
            "BAD     address: no address of this host leads to mlx5_0",
            "as root: ip addr add ADDR/24 dev ens1",
        );
    }
}

/// Promise: the operator learns that the device has no address, whichever target is planned. The
/// link-local gid of RoCE is no address without its interface.
#[test]
fn a_planned_target_gets_the_remedy_of_the_device_without_an_address() {
    let net: Tree<'_> = &[("sys/class/net/ens1/flags", "0x1003")];
    let library: Tree<'_> = &[("usr/lib64/libibverbs/libmlx5-rdmav34.so", "")];
    let gid = "sys/class/infiniband/mlx5_0/ports/1/gids/0".to_owned();
    let mut roce = adapter("1: CA", "Ethernet");
    roce.push((gid, "fe80:0000:0000:0000:ac5e:45ff:fe77:a001".into()));
    let more = [KERNEL, LIBRARIES, library, net].concat();
    let why = "no address of this host leads to mlx5_0";
    let add = "as root: ip addr add ADDR/24 dev ens1";
    for (target, text) in [
        ("192.0.2.20", "is not an address of this host"),
        (
            "fe80::ac5e:45ff:fe77:a001",
            "is not an address of this host",
        ),
        (
            "fe80::ac5e:45ff:fe77:a001%ens1",
            "is not an address of this host",
        ),
        (
            "127.0.0.1",
            "is the loopback address, which belongs to no RDMA device",
        ),
    ] {
        let lines = with_devices(&[target], &[roce.clone()], &more);
        let found = format!("BAD     address: {target} {text}, and {why}");
        finds(&lines, &found, add);
    }
    let lines = with_devices(&[], &[roce], &more);
    finds(&lines, &format!("BAD     address: {why}"), add);
}

/// A device file cannot be given before the kernel makes it.
#[test]
fn a_missing_device_file_waits_for_the_modules() {
    let found = "BAD     device file: /dev/infiniband/rdma_cm does not exist";
    let container: Tree<'_> = &[(".dockerenv", "")];
    let modules = "the line `kernel modules` above has the remedy: the kernel makes it then";
    finds(
        &diagnose(&[], &[container]).expect("a tree"),
        found,
        modules,
    );
    let loaded =
        ["ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"].map(|name| format!("sys/module/{name}/"));
    let loaded = loaded.each_ref().map(|path| (&**path, ""));
    let give = "give it to the container: --device /dev/infiniband/rdma_cm";
    finds(
        &diagnose(&[], &[&loaded, container]).expect("a tree"),
        found,
        give,
    );
    let udev = "the modules are loaded: look for udev, or for a /dev of your own (PrivateDevices= of a systemd unit): \
         /dev/infiniband/rdma_cm";
    finds(&diagnose(&[], &[&loaded]).expect("a tree"), found, udev);
}
