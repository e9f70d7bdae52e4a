//! Broken hosts, as an operator finds them: files of usual machines, and one fault in each.

use super::*;

/// Hosts of which each has all that librdmacm needs of the kernel.
const MODULES: Tree<'_> = &[
    ("sys/module/ib_core/", ""),
    ("sys/module/ib_uverbs/", ""),
    ("sys/module/rdma_cm/", ""),
    ("sys/module/rdma_ucm/", ""),
    ("proc/sys/kernel/osrelease", "6.12.43"),
];
const CM: Tree<'_> = &[("dev/infiniband/rdma_cm", "")];
const NO_DEVICE: &str = "BAD     RDMA device: this host has none";

/// An Ethernet interface that is up, with the driver of its adapter.
fn interface(name: &str, driver: &str) -> Vec<(String, String)> {
    let file = |file: &str, text: &str| (format!("sys/class/net/{name}/{file}"), text.to_owned());
    vec![
        file("type", "1"),
        file("flags", "0x1003"),
        file("operstate", "up"),
        file(
            "device/driver",
            &format!("-> ../../../bus/pci/drivers/{driver}"),
        ),
    ]
}

/// Promise: the fault of each host is found, and its remedy is for this fault.
#[track_caller]
fn host(
    args: &[&str],
    own: &[Vec<(String, String)>],
    trees: &[Tree<'_>],
    found: &str,
    remedy: &str,
) {
    let lines = with_devices(args, own, &trees.concat());
    finds(&lines, found, remedy);
}

#[test]
fn a_virtual_machine_without_the_module_of_its_adapter() {
    let own = [interface("eth1", "mana")];
    let load = "eth1 is an adapter, and its module for RDMA is not loaded. As root: modprobe mana_ib. If it fails, look for \
         the cause in the kernel's log, as root: dmesg";
    host(&[], &own, &[MODULES, CM], NO_DEVICE, load);
}

#[test]
fn an_adapter_that_a_guest_or_a_program_has() {
    let pci: Tree<'_> = &[
        ("sys/bus/pci/devices/0000:3a:00.0/class", "0x010802"),
        (
            "sys/bus/pci/devices/0000:3a:00.0/driver",
            "-> ../../../bus/pci/drivers/vfio-pci",
        ),
        ("sys/bus/pci/devices/0000:3b:00.0/class", "0x020000"),
        (
            "sys/bus/pci/devices/0000:3b:00.0/driver",
            "-> ../../../bus/pci/drivers/vfio-pci",
        ),
    ];
    let give_back = "the network adapter 0000:3b:00.0 belongs to vfio-pci, for a guest or a program. If it is the one, give \
                     it back to its own driver, as root: driverctl unset-override 0000:3b:00.0";
    let own = [interface("eno1", "tg3")];
    host(&[], &own, &[MODULES, CM, pci], NO_DEVICE, give_back);
}

#[test]
fn a_small_kernel_of_an_enterprise_system() {
    let kernel: Tree<'_> = &[("lib/modules/6.12.43/modules.dep", "kernel/ib_core.ko.xz:\n")];
    let package = "ens2f0 is an adapter, and this kernel has no irdma: install the kernel package with all modules: \
                   linux-image-amd64 in the place of a cloud kernel, linux-modules-extra-6.12.43 on Ubuntu, \
                   kernel-modules-6.12.43 and kernel-modules-extra-6.12.43 on Fedora and RHEL";
    let own = [interface("ens2f0", "ice")];
    host(&[], &own, &[MODULES, CM, kernel], NO_DEVICE, package);
}

const VERBS: Tree<'_> = &[
    ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx4_0"),
    ("dev/infiniband/uverbs0", ""),
    ("etc/libibverbs.d/mlx4.driver", "driver mlx4"),
    ("proc/net/fib_trie", "|-- 192.0.2.3\n/32 host LOCAL\n"),
];

/// Its other port is of Ethernet, and off.
#[test]
fn a_port_of_infiniband_whose_interface_has_no_address() {
    let at = "sys/class/infiniband/mlx4_0";
    let mut hca = device(
        "mlx4_0",
        &[
            ("node_type", "1: CA"),
            ("device/driver", "-> ../../../bus/pci/drivers/mlx4_core"),
            ("device/net/ib0/", ""),
            ("device/net/eth4/", ""),
        ],
        &[
            ("state", "4: ACTIVE"),
            ("link_layer", "InfiniBand"),
            ("gids/0", "fe80:0000:0000:0000:0002:c903:00aa:bb01"),
        ],
    );
    for (file, text) in [
        ("ports/2/state", "1: DOWN"),
        ("ports/2/link_layer", "Ethernet"),
        ("ports/2/gids/0", "fe80:0000:0000:0000:0202:c9ff:feaa:bb02"),
        ("ports/2/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0203"),
        ("ports/2/gid_attrs/ndevs/0", "eth4"),
        ("../../net/ib0/dev_port", "0"),
        ("../../net/ib0/flags", "0x1003"),
        ("../../net/eth4/dev_port", "1"),
    ] {
        hca.push((format!("{at}/{file}"), text.to_owned()));
    }
    let found = "BAD     address: no address of this host leads to mlx4_0";
    let add = "as root: ip addr add ADDR/24 dev ib0";
    host(&[], &[hca], &[MODULES, CM, VERBS], found, add);
}

/// Two ports as one, and no cable in either.
#[test]
fn a_bond_without_a_carrier() {
    let bond = device(
        "mlx5_bond_0",
        &[("node_type", "1: CA")],
        &[
            ("state", "1: DOWN"),
            ("phys_state", "3: Disabled"),
            ("link_layer", "Ethernet"),
            ("gids/0", "0000:0000:0000:0000:0000:ffff:c000:0202"),
            ("gid_attrs/ndevs/0", "bond0"),
        ],
    );
    let net: Tree<'_> = &[
        ("sys/class/net/bond0/flags", "0x1403"),
        ("sys/class/net/bond0/operstate", "down"),
    ];
    let found = "BAD     RDMA device: mlx5_bond_0: port 1 is DOWN, Ethernet, bond0 down";
    let cable = "bond0 is up and has no carrier: connect its cable, and look at the other end. `rdma link` must show \
                 ACTIVE";
    host(&[], &[bond], &[MODULES, CM, net], found, cable);
}

/// soft-RoCE with an address.
fn soft_roce() -> Vec<(String, String)> {
    device(
        "rxe0",
        &[("node_type", "1: CA"), ("parent", "enp1s0")],
        &[
            ("state", "4: ACTIVE"),
            ("link_layer", "Ethernet"),
            ("gids/0", "0000:0000:0000:0000:0000:ffff:c000:0202"),
            ("gid_attrs/ndevs/0", "enp1s0"),
        ],
    )
}

/// `apt remove ibverbs-providers` leaves the files of its configuration.
#[test]
fn a_host_whose_providers_were_removed() {
    let rest: Tree<'_> = &[
        (
            "proc/self/maps",
            "7f r-xp 0 0 0 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.56.0",
        ),
        ("etc/libibverbs.d/rxe.driver", "driver rxe"),
        ("proc/net/fib_trie", "|-- 192.0.2.2\n/32 host LOCAL\n"),
    ];
    let found = "BAD     address: 192.0.2.2 is an address of this host, and leads to no RDMA device (rdma_bind_addr failed: No \
                 such device (os error 19)): rxe0 cannot be opened: rdma-core has no provider rxe here";
    let install = "install rdma-core's providers: ibverbs-providers on Debian and Ubuntu, libibverbs on Fedora and RHEL. If \
                   the package is there, install it again in the version of libibverbs (`apt list -a ibverbs-providers \
                   libibverbs1` or `rpm -qa | grep ibverbs` shows the versions)";
    host(
        &["192.0.2.2"],
        &[soft_roce()],
        &[MODULES, CM, rest],
        found,
        install,
    );
}

/// A module of memory whose namespace is off after maintenance.
#[test]
fn a_file_system_whose_namespace_is_disabled() {
    let pmem: Tree<'_> = &[
        ("sys/bus/nd/devices/nmem0/security", "frozen"),
        ("sys/bus/nd/devices/region0/available_size", "0"),
        ("sys/bus/nd/drivers/nd_region/region0/", ""),
        ("sys/bus/nd/devices/namespace0.0/mode", "raw"),
        ("sys/bus/nd/devices/namespace0.0/size", "266287972352"),
        ("sys/bus/nd/devices/namespace0.0/holder_class", "pfn"),
    ];
    let enable = "namespace0.0 (fsdax, 266287972352 bytes) is disabled. As root: ndctl enable-namespace namespace0.0, which \
                  keeps its data. Then run `rpma doctor` again";
    let found = "BAD     memory: /nonexistent/pmem0/log does not exist";
    host(
        &["--memory", "/nonexistent/pmem0/log"],
        &[],
        &[pmem],
        found,
        enable,
    );
}

/// Memory that the kernel was told of by `memmap=`, under a database.
#[test]
fn a_database_on_a_volume_of_the_memory() {
    let pmem: Tree<'_> = &[
        ("sys/bus/nd/devices/region0/available_size", "0"),
        ("sys/bus/nd/drivers/nd_region/region0/", ""),
        ("sys/bus/nd/devices/namespace0.0/mode", "raw"),
        ("sys/bus/nd/devices/namespace0.0/size", "17179869184"),
        ("sys/bus/nd/drivers/nd_pmem/namespace0.0/", ""),
        ("sys/bus/nd/devices/namespace0.0/block/pmem0/", ""),
        ("sys/class/block/pmem0/holders/dm-2/", ""),
        ("sys/class/block/dm-2/dm/name", "vg_pm-mysql"),
        (
            "proc/self/mounts",
            "/dev/mapper/vg_pm-mysql /var/lib/mysql xfs rw,noatime 0 0\n",
        ),
    ];
    let used = "all persistent memory is in use. A device-DAX out of namespace0.0 (raw, 17179869184 bytes) needs the end of \
                each use, and loses its data: the device vg_pm-mysql is made of it; /dev/mapper/vg_pm-mysql is mounted on \
                /var/lib/mysql";
    host(&[], &[], &[MODULES, pmem], memory::NOT_GIVEN, used);
}

/// A device plugin has given one of two devices, and nothing else.
#[test]
fn a_pod_without_the_connection_manager() {
    let pod: Tree<'_> = &[
        ("run/secrets/kubernetes.io/serviceaccount/token", "x"),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"),
        ("sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_1"),
        ("dev/infiniband/uverbs1", ""),
    ];
    let port = [("state", "4: ACTIVE"), ("link_layer", "Ethernet")];
    let own = ["mlx5_0", "mlx5_1"].map(|name| device(name, &[("node_type", "1: CA")], &port));
    for (found, path) in [
        (
            "BAD     device file: PATH does not exist",
            "/dev/infiniband/rdma_cm",
        ),
        (
            "note    device file: PATH (mlx5_0) does not exist",
            "/dev/infiniband/uverbs0",
        ),
    ] {
        let give = format!("give {path} to the pod by a device plugin");
        host(
            &[],
            &own,
            &[MODULES, pod],
            &found.replace("PATH", path),
            &give,
        );
    }
}

/// The limit of the host's shell is that of the container.
#[test]
fn a_container_with_a_small_limit() {
    let limits = (
        "proc/self/limits",
        "Max locked memory  65536  65536  bytes\n",
    );
    let found = "BAD     locked memory: the limit is 64 KiB. Not even 1 MiB can be registered";
    for (file, text, remedy) in [
        (
            "run/systemd/container",
            "lxc",
            "give the container lxc.prlimit.memlock = unlimited",
        ),
        (
            "run/.containerenv",
            "",
            "start the container with --ulimit memlock=-1",
        ),
    ] {
        host(&[], &[], &[MODULES, &[limits, (file, text)]], found, remedy);
    }
}

/// RoCE at this interface, with an address of it.
fn roce(interface: &str) -> Vec<(String, String)> {
    let active = [
        ("state", "4: ACTIVE"),
        ("link_layer", "Ethernet"),
        ("gids/0", "0000:0000:0000:0000:0000:ffff:c000:0202"),
        ("gid_attrs/types/0", "RoCE v2"),
        ("gid_attrs/ndevs/0", interface),
    ];
    let own = [
        ("node_type", "1: CA"),
        ("device/driver", "-> ../../../bus/pci/drivers/mlx5_core"),
        ("device/net/ens2/dev_port", "0"),
    ];
    device("mlx5_0", &own, &active)
}

const OWN_ADDRESS: &[(&str, &str)] = &[
    ("etc/libibverbs.d/mlx5.driver", "driver mlx5"),
    ("proc/net/fib_trie", "|-- 192.0.2.2\n/32 host LOCAL\n"),
    (
        "proc/net/route",
        "Iface Destination\nbond0 000200C0 00000000 0001 0 0 0 00FFFFFF\n",
    ),
];
const REFUSED: &str = "BAD     address: 192.0.2.2 is an address of this host, and leads to no RDMA device (rdma_bind_addr failed: \
                       No such device (os error 19)): mlx5_0 cannot be opened by its address 192.0.2.2";

/// The rdma controller, which the kernel's log does not mention.
#[test]
fn a_control_group_that_limits_the_device() {
    let group = "sys/fs/cgroup/system.slice";
    let full = format!("{group}/store.service/rdma.max");
    let rest = [
        ("proc/self/cgroup", "0::/system.slice/store.service\n"),
        (&*full, "mlx5_0 hca_handle=max hca_object=max\n"),
        (
            "sys/fs/cgroup/system.slice/rdma.max",
            "rxe0 hca_handle=0 hca_object=max\nmlx5_0 hca_handle=1 hca_object=max\n",
        ),
    ];
    let remedy = format!(
        "a control group limits its programs to hca_handle=1 hca_object=max of mlx5_0 (rdma.current beside this file counts \
         those in use). As root, until the group is made again: echo 'mlx5_0 hca_handle=max hca_object=max' > \
         /{group}/rdma.max"
    );
    let trees = [MODULES, CM, OWN_ADDRESS, &rest];
    host(&["192.0.2.2"], &[roce("ens2")], &trees, REFUSED, &remedy);
}

/// The kernel gives the addresses of such a bond to the device of the member that is active.
#[test]
fn a_bond_that_sends_through_another_adapter() {
    let bond: Tree<'_> = &[
        ("sys/class/net/bond0/operstate", "up"),
        ("sys/class/net/bond0/bonding/active_slave", "eno2"),
    ];
    let remedy = "bond0 sends through eno2, and ens2 of mlx5_0 is a backup, so no address of bond0 leads to mlx5_0. As root, \
                  until the bond changes its member: ip link set bond0 type bond active_slave ens2. For ever: the option \
                  `primary ens2` in the bond's configuration. RDMA ends when the bond changes to eno2";
    let trees = [MODULES, CM, OWN_ADDRESS, bond];
    let mut backup = roce("bond0");
    backup.retain(|(path, _)| !path.contains("/gids/"));
    let link_local = "sys/class/infiniband/mlx5_0/ports/1/gids/0";
    backup.push((
        link_local.into(),
        "fe80:0000:0000:0000:0000:0000:0000:0001".into(),
    ));
    host(
        &["192.0.2.2"],
        std::slice::from_ref(&backup),
        &trees,
        REFUSED,
        remedy,
    );
    let found = "note    RDMA device: mlx5_0: port 1 is ACTIVE, Ethernet, bond0 up";
    host(&[], &[backup], &trees, found, remedy);
    // Its device has the addresses of a bond that is one of both of its ports.
    let found = "good    RDMA device: mlx5_0: port 1 is ACTIVE, Ethernet, bond0 up";
    let lines = with_devices(&[], &[roce("bond0")], &trees.concat());
    assert!(lines.contains(&found.to_owned()), "{lines:#?}");
}

/// Promise: a module of the kernel is not loaded by a command that cannot work.
#[test]
fn modules_that_modprobe_cannot_load() {
    let missing: Tree<'_> = &[
        ("sys/module/ib_core/", ""),
        ("sys/module/ib_uverbs/", ""),
        ("sys/module/rdma_cm/", ""),
        ("proc/sys/kernel/osrelease", "6.12.43"),
    ];
    let found = "BAD     kernel modules: not loaded: rdma_ucm";
    let load = "as root: modprobe -a rdma_ucm. If it fails, look for the cause in the kernel's log, as root: dmesg";
    host(&[], &[], &[missing], found, load);
    let hardened: Tree<'_> = &[
        (
            "etc/modprobe.d/a.conf",
            "# install rdma_ucm\nblacklist rdma_ucm\n",
        ),
        (
            "etc/modprobe.d/cis.conf",
            "install cramfs /bin/false\ninstall rdma-ucm /bin/false\n",
        ),
    ];
    let forbidden = format!(
        "the line `install rdma_ucm` of /etc/modprobe.d/cis.conf forbids it: take it out, with a line `blacklist \
         rdma_ucm`. Then {load}"
    );
    host(&[], &[], &[missing, hardened], found, &forbidden);
    let upgraded: Tree<'_> = &[(
        "lib/modules/6.12.94/modules.dep",
        "kernel/rdma_ucm.ko.xz:\n",
    )];
    let restart = "the modules of the running kernel are gone, and /lib/modules has those of another: start the host again";
    host(&[], &[], &[missing, upgraded], found, restart);
}

/// Its region keeps its domain, `memory_controller`.
#[test]
fn a_module_whose_energy_source_is_not_ready() {
    let modules: Tree<'_> = &[
        ("sys/bus/nd/devices/nmem0/nfit/flags", "smart_notify \n"),
        (
            "sys/bus/nd/devices/nmem1/nfit/flags",
            "not_armed smart_notify \n",
        ),
    ];
    let found = "note    memory module: nmem1 reports not_armed: it may lose data with the power, or has lost some";
    let mend = "end its programs, and save its data elsewhere (`daxio` reads a device-DAX). Then mend the module or its energy \
                source (battery, capacitor), and start the host again: `ndctl list -DH` and the platform's log name the fault. \
                Until then nothing on it is durable";
    host(&[], &[], &[MODULES, modules], found, mend);
    // It is bad for its own memory alone.
    let device: Tree<'_> = &[
        ("sys/devices/ndbus0/region4/dax4.1/dax4.0/size", "4096"),
        (
            "sys/bus/dax/devices/dax4.0",
            "-> ../../../devices/ndbus0/region4/dax4.1/dax4.0",
        ),
        ("sys/bus/nd/devices/region4/mappings", "1"),
        ("sys/bus/nd/devices/region4/mapping0", "nmem1,0,4096,0"),
    ];
    let bad = found.replace("note   ", "BAD    ");
    host(
        &["--memory", "/dev/dax4.0"],
        &[],
        &[MODULES, modules, device],
        &bad,
        mend,
    );
    host(
        &["--memory", "/dev/dax5.0"],
        &[],
        &[MODULES, modules, device],
        found,
        mend,
    );
}

/// The limits of users do not count there.
#[test]
fn a_service_of_the_system_has_a_limit_of_its_own() {
    let limits = "Max locked memory         65536                65536                bytes\n";
    let service: Tree<'_> = &[
        ("proc/self/limits", limits),
        ("proc/self/cgroup", "0::/system.slice/store.service/own\n"),
    ];
    let found = "BAD     locked memory: the limit is 64 KiB. Not even 1 MiB can be registered";
    let raise = "raise the limit of the unit: systemctl edit store.service, with LimitMEMLOCK=infinity under [Service], and \
                 systemctl restart store.service";
    host(&[], &[], &[MODULES, service], found, raise);
}

/// The device is at the interface of another network.
#[test]
fn soft_roce_at_another_interface() {
    let rest: Tree<'_> = &[
        ("etc/libibverbs.d/rxe.driver", "driver rxe"),
        ("proc/net/fib_trie", "|-- 198.51.100.9\n/32 host LOCAL\n"),
        (
            "proc/net/route",
            "Iface Destination\nens4 006433C6 00000000 0001 0 0 0 00FFFFFF\n",
        ),
    ];
    let found = "BAD     address: 198.51.100.9 is an address of this host, and leads to no RDMA device (rdma_bind_addr failed: \
                 No such device (os error 19))";
    let add = "as root, until the next boot: rdma link add rxe_ens4 type rxe netdev ens4";
    let own = [soft_roce(), interface("ens4", "virtio_net")];
    host(&["198.51.100.9"], &own, &[MODULES, CM, rest], found, add);
}
