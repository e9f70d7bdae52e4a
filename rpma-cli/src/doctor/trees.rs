//! Hosts that are made of files, as bug reports show them, and the verdict and remedy for each.

use std::io;

use clap::Parser;

use super::tests::Text;
use super::{Host, examine};
use crate::cli::{Cli, Command};
use crate::facts::tests::tree;
use crate::facts::{Facts, Files};
use crate::interrupt::Interrupt;
use crate::report::{HEAD, Output};

type Tree<'a> = &'a [(&'a str, &'a str)];

/// The output of `rpma doctor` on a host with these files.
fn diagnose(args: &[&str], trees: &[Tree<'_>]) -> io::Result<Vec<String>> {
    let dir = tree(&trees.concat())?;
    let host = Host {
        files: Files::new(dir.path()),
        facts: Facts::read(dir.path()),
        addresses: Vec::new(),
    };
    let args = [&["rpma", "doctor"], args].concat();
    let Command::Doctor(args) = Cli::parse_from(args).command else {
        panic!("another command");
    };
    let text = Text::default();
    let mut out = Output::to(text.clone());
    examine(&args, &host, &Interrupt::default(), &mut out).map_err(io::Error::other)?;
    let text = text.read();
    Ok(text
        .lines()
        .skip(HEAD.lines().count())
        .map(str::to_owned)
        .collect())
}

/// The finding of this check, and its remedy.
#[track_caller]
fn finds(lines: &[String], found: &str, remedy: &str) {
    let at = lines.iter().position(|line| line == found);
    let at = at.unwrap_or_else(|| panic!("{found}\nin {lines:#?}"));
    let next = lines[at + 1].trim_start().strip_prefix("-> ");
    assert_eq!(next.unwrap_or_default(), remedy, "{lines:#?}");
}

/// The verdict and the remedy about memory.
#[track_caller]
fn of_memory(args: &[&str], trees: &[Tree<'_>], found: &str, remedy: &str) {
    let lines = diagnose(args, trees).expect("a tree");
    finds(&lines, found, remedy);
}

const NOT_GIVEN: &str = "note    memory: not looked at: ordinary memory loses its data with the power. This host shows \
                         no device-DAX that a program can map";
const MEMORY: &[&str] = &["--memory", "/dev/dax0.0"];

/// A device-DAX that a program can map.
const DEVDAX: Tree<'_> = &[
    ("dev/dax0.0", ""),
    ("sys/bus/dax/devices/dax0.0/size", "270532608"),
    ("sys/bus/dax/drivers/device_dax/dax0.0/", ""),
];
/// The same memory with the driver that gives it to the kernel.
const SYSTEM_RAM: Tree<'_> = &[
    ("dev/dax0.0", ""),
    ("sys/bus/dax/devices/dax0.0/size", "270532608"),
    ("sys/bus/dax/drivers/device_dax/", ""),
    ("sys/bus/dax/drivers/kmem/dax0.0/", ""),
];
/// The seed of a region.
const SEED: Tree<'_> = &[
    ("sys/bus/dax/devices/dax0.0/size", "0"),
    ("sys/bus/dax/drivers/device_dax/", ""),
];
const SPACE: Tree<'_> = &[
    ("sys/bus/nd/devices/region3/available_size", "270532608"),
    ("sys/bus/nd/drivers/nd_region/region3/", ""),
];

#[test]
fn system_ram_is_no_memory_for_programs() {
    let reconfigure = "as root, if the kernel can do without this part of its memory: daxctl reconfigure-device --force \
                       --mode=devdax dax0.0";
    let found = "BAD     memory: /dev/dax0.0 is ordinary memory of the kernel (mode system-ram, driver kmem), and no \
                 program can map it";
    of_memory(MEMORY, &[SYSTEM_RAM], found, reconfigure);
    of_memory(&[], &[SYSTEM_RAM], NOT_GIVEN, reconfigure);
    // Another device needs no change.
    let other: Tree<'_> = &[
        ("dev/dax1.0", ""),
        ("sys/bus/dax/devices/dax1.0/size", "270532608"),
        ("sys/bus/dax/drivers/device_dax/dax1.0/", ""),
    ];
    of_memory(
        MEMORY,
        &[SYSTEM_RAM, other],
        found,
        "rpma doctor --memory /dev/dax1.0",
    );
}

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

/// Memory of high bandwidth, which loses its data with the power.
#[test]
fn volatile_memory_is_not_recommended() {
    let volatile: Tree<'_> = &[
        ("dev/dax0.0", ""),
        ("sys/devices/platform/hmem.0/dax0.0/size", "270532608"),
        (
            "sys/bus/dax/devices/dax0.0",
            "-> ../../../devices/platform/hmem.0/dax0.0",
        ),
    ];
    let none = "this host has no persistent memory: use a host that has some. docs/getting-started.md has a guest \
                machine for tests";
    for driver in [
        "sys/bus/dax/drivers/device_dax/dax0.0/",
        "sys/bus/dax/drivers/kmem/dax0.0/",
    ] {
        of_memory(&[], &[volatile, &[(driver, "")]], NOT_GIVEN, none);
    }
}

#[test]
fn the_seed_of_a_region_is_no_memory() {
    let none = "this host has no persistent memory: use a host that has some. docs/getting-started.md has a guest \
                machine for tests";
    of_memory(&[], &[SEED], NOT_GIVEN, none);
    let found = "BAD     memory: /dev/dax0.0 is the empty seed of a region, and has no memory";
    of_memory(MEMORY, &[SEED], found, none);
    let create =
        "as root: ndctl create-namespace --mode=devdax --region=region3. It makes a device-DAX";
    of_memory(MEMORY, &[SEED, SPACE], found, create);
}

/// Promise: the remedy is never the command that has failed.
#[test]
fn memory_that_fails_is_not_its_own_remedy() {
    let found = "BAD     memory: /dev/dax0.0 does not exist";
    let log = "look for the cause in the kernel's log, as root: dmesg";
    of_memory(MEMORY, &[DEVDAX], found, log);
    let gone: Tree<'_> = &[("dev/dax0.0", ""), ("sys/bus/dax/devices/dax1.0/size", "0")];
    let found = "BAD     memory: /dev/dax0.0 is a file without a device";
    of_memory(
        MEMORY,
        &[gone, SPACE],
        found,
        "as root: ndctl create-namespace --mode=devdax --region=region3. It makes a device-DAX",
    );
}

#[test]
fn drivers_that_are_missing_have_their_commands() {
    let size: Tree<'_> = &[("sys/bus/dax/devices/dax0.0/size", "270532608")];
    of_memory(
        &[],
        &[size],
        NOT_GIVEN,
        "as root: modprobe device_dax. It makes /dev/dax0.0 usable",
    );
    let loaded: Tree<'_> = &[("sys/bus/dax/drivers/device_dax/", "")];
    of_memory(
        &[],
        &[size, loaded],
        NOT_GIVEN,
        "as root: daxctl enable-device dax0.0",
    );
    let found = "BAD     memory: /dev/dax0.0 is disabled: no driver has it";
    of_memory(
        MEMORY,
        &[size, loaded],
        found,
        "as root: daxctl enable-device dax0.0",
    );
    let no_file: Tree<'_> = &[("sys/bus/dax/drivers/device_dax/dax0.0/", "")];
    let udev =
        "the kernel has /dev/dax0.0, and /dev has not: look for udev or for a /dev of your own";
    of_memory(&[], &[size, no_file], NOT_GIVEN, udev);
    let container: Tree<'_> = &[(".dockerenv", "")];
    let give = "give it to the container: --device /dev/dax0.0";
    of_memory(&[], &[size, no_file, container], NOT_GIVEN, give);
}

/// The modes and states that `ndctl list` shows.
#[test]
fn namespaces_have_the_remedies_of_their_modes() {
    let convert = |mode: &str| {
        format!(
            "make a device-DAX out of namespace3.0 ({mode}, 270532608 bytes), if its contents may be lost. As root: \
             ndctl create-namespace --force --reconfig=namespace3.0 --mode=devdax"
        )
    };
    let namespace = |mode: &'static str| {
        [
            ("sys/bus/nd/devices/namespace3.0/mode", mode),
            ("sys/bus/nd/devices/namespace3.0/size", "270532608"),
            ("sys/bus/nd/devices/namespace3.0/holder", "holder3.0"),
            ("sys/bus/nd/devices/region3/available_size", "0"),
            ("sys/bus/nd/drivers/nd_region/region3/", ""),
        ]
    };
    for (mode, name) in [("memory", "fsdax"), ("safe", "sector"), ("raw", "raw")] {
        let bound = [("sys/bus/nd/drivers/nd_pmem/holder3.0/", "")];
        for enabled in [&bound[..], &[]] {
            of_memory(&[], &[&namespace(mode), enabled], NOT_GIVEN, &convert(name));
        }
        let read_only = [("sys/bus/nd/devices/region3/read_only", "1")];
        let other = "region3 is read-only, and no program can write to it: use another host, or make it writable in the \
                     settings of its platform";
        of_memory(&[], &[&namespace(mode), &read_only], NOT_GIVEN, other);
    }
    // A namespace with a file system that is mounted comes last.
    let mounted: Tree<'_> = &[
        ("sys/bus/nd/devices/holder3.0/block/pmem3/", ""),
        ("proc/self/mounts", "/dev/pmem3 /srv/log xfs rw,dax 0 0\n"),
    ];
    let unmounts = convert("fsdax").replace("As root: ", "As root: umount /srv/log; ");
    of_memory(&[], &[&namespace("memory"), mounted], NOT_GIVEN, &unmounts);
    let other: Tree<'_> = &[
        ("sys/bus/nd/devices/namespace4.0/mode", "memory"),
        ("sys/bus/nd/devices/namespace4.0/size", "270532608"),
    ];
    let other_remedy = convert("fsdax").replace("namespace3.0", "namespace4.0");
    of_memory(
        &[],
        &[&namespace("memory"), mounted, other],
        NOT_GIVEN,
        &other_remedy,
    );
    // Its driver is not there.
    let enable = "as root: ndctl enable-namespace namespace3.0. It makes a device-DAX";
    of_memory(&[], &[&namespace("dax")], NOT_GIVEN, enable);
    let disabled = [
        ("sys/bus/nd/devices/region3/available_size", "270532608"),
        ("sys/bus/nd/drivers/nd_region/other/", ""),
    ];
    of_memory(
        &[],
        &[&disabled],
        NOT_GIVEN,
        "as root: ndctl enable-region region3",
    );
}

/// A device with these files, whose port has these.
fn device(name: &str, files: &[(&str, &str)], port: &[(&str, &str)]) -> Vec<(String, String)> {
    let dir = format!("sys/class/infiniband/{name}");
    let of = |dir: &str, (file, text): &(&str, &str)| (format!("{dir}/{file}"), (*text).to_owned());
    let own = files.iter().map(|file| of(&dir, file));
    let port_dir = format!("{dir}/ports/1");
    own.chain(port.iter().map(|file| of(&port_dir, file)))
        .collect()
}

/// The output on a host with these devices, and more files.
fn with_devices(args: &[&str], devices: &[Vec<(String, String)>], more: Tree<'_>) -> Vec<String> {
    let files = devices.iter().flatten();
    let files: Vec<_> = files.map(|(path, text)| (&**path, &**text)).collect();
    diagnose(args, &[&files, more]).expect("a tree")
}

const SOFT_ROCE: &str = "an adapter's driver makes its device. soft-RoCE makes one out of any Ethernet card until the \
                         next boot, as root: modprobe -a rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev enp5s0. \
                         docs/getting-started.md has a guest machine and a simulated fabric for tests without RDMA";
const ETHERNET: Tree<'_> = &[
    ("sys/class/net/enp5s0/type", "1"),
    ("sys/class/net/enp5s0/flags", "0x1003"),
    ("sys/class/net/enp5s0/operstate", "up"),
];
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
        let found = format!(
            "RDMA device: {name} (node type {found}): port 1 is ACTIVE, Ethernet, no gid. {NEVER}"
        );
        finds(&lines, &format!("BAD     {found}"), SOFT_ROCE);

        let serves = device("mlx5_0", &[("node_type", "1: CA")], &active);
        let both = [never, serves];
        let lines = with_devices(&[], &both, &[]);
        assert!(lines.contains(&format!("note    {found}")), "{lines:#?}");
        let good = "good    RDMA device: mlx5_0: port 1 is ACTIVE, Ethernet, no gid";
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
    let found = format!("BAD     RDMA device: x0: port 1 is ACTIVE, Unspecified, no gid. {NEVER}");
    finds(&with_devices(&[], &[unknown], ETHERNET), &found, SOFT_ROCE);
}

/// RoCE, iWARP and InfiniBand.
#[test]
fn devices_that_serve_are_good() {
    for (kind, link, found) in [
        (
            "1: CA",
            "Ethernet",
            "good    RDMA device: x0: port 1 is ACTIVE, Ethernet, no gid",
        ),
        (
            "1: CA",
            "InfiniBand",
            "good    RDMA device: x0: port 1 is ACTIVE, InfiniBand, no gid",
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
    let cable = "connect the cable to a switch or host that is on";
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
        let found = format!("BAD     RDMA device: mlx5_3: port 1 is {state}, InfiniBand, no gid");
        finds(&with_devices(&[], &[device], &[]), &found, remedy);
    }
}

/// A port of RoCE or iWARP that is not active: its interface is the reason.
#[test]
fn a_port_of_ethernet_has_the_remedy_of_its_interface() {
    let no_carrier = "ens1 is set up and has no carrier: connect its cable, and look at the other end. `rdma link` must \
                      show ACTIVE";
    let set_up =
        "as root: ip link set ens1 up. If `rdma link` does not show ACTIVE then, connect the cable";
    let is_up =
        "ens1 is up, and the port is not: look for the cause in the kernel's log, as root: dmesg";
    for (kind, gids) in [("1: CA", ", no gid"), ("4: RNIC", "")] {
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
                line.ends_with(&format!("port 1 is DOWN, Ethernet, ens1 {state}{gids}")),
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
    let load =
        "enp5s0 is an adapter, and its module for RDMA is not loaded. As root: modprobe mlx5_ib";
    finds(
        &diagnose(&[], &[ETHERNET, adapter]).expect("a tree"),
        none,
        load,
    );
    let loaded: Tree<'_> = &[("sys/module/mlx5_ib/", "")];
    finds(
        &diagnose(&[], &[ETHERNET, adapter, loaded]).expect("a tree"),
        none,
        SOFT_ROCE,
    );
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
}

/// A device file cannot be given before the kernel makes it.
#[test]
fn a_missing_device_file_waits_for_the_modules() {
    let found = "BAD     device file: /dev/infiniband/rdma_cm does not exist";
    let container: Tree<'_> = &[(".dockerenv", "")];
    let modules = "load the modules first: the kernel makes it then";
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
    let udev = "the kernel makes it with the modules ib_uverbs and rdma_ucm. If they are loaded, look for udev or for a \
                /dev of your own: /dev/infiniband/rdma_cm";
    finds(&diagnose(&[], &[&loaded]).expect("a tree"), found, udev);
}

/// Promise: each program that makes containers gets options of its own, with the files of this host.
#[test]
fn containers_have_the_options_of_their_programs() {
    let host: Tree<'_> = &[("sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_3")];
    let docker = "start the container with --device /dev/infiniband/uverbs3 --device /dev/infiniband/rdma_cm --ulimit \
                  memlock=-1 --network host";
    for (file, text, kind, remedy) in [
        (".dockerenv", "", "docker", docker),
        ("run/.containerenv", "", "podman", docker),
        (
            "run/secrets/kubernetes.io/serviceaccount/",
            "",
            "kubernetes",
            "give the pod the host's network (hostNetwork",
        ),
        (
            "run/systemd/container",
            "lxc",
            "lxc",
            "give the container the devices (lxc.mount.entry = /dev/infiniband",
        ),
        (
            "run/host/container-manager",
            "systemd-nspawn",
            "systemd-nspawn",
            "start the container with --bind=/dev/infin",
        ),
        (
            "proc/self/ns/pid",
            "-> pid:[4026532198]",
            "of an unknown program",
            "let the program that made these namespaces give this one /dev/infiniband/uverbs3 and /dev/infiniband/rdma",
        ),
    ] {
        let lines = diagnose(&[], &[host, &[(file, text)]]).expect("a tree");
        let found = format!(
            "note    container: this is a container ({kind}): it needs the devices, the limit and the network of its host"
        );
        let at = lines.iter().position(|line| *line == found);
        let next = &lines[at.unwrap_or_else(|| panic!("{found} in {lines:#?}")) + 1];
        assert!(
            next.trim_start().starts_with(&format!("-> {remedy}")),
            "{lines:#?}"
        );
    }
}

/// Promise: the report of a host has none of its names, whatever the user has given.
#[test]
fn the_json_has_no_name_of_the_host() -> io::Result<()> {
    let files = device(
        "db7-rxe",
        &[("node_type", "1: CA"), ("node_desc", "db7 rxe0")],
        &[
            ("state", "4: ACTIVE"),
            ("gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe77:7777"),
            ("gid_attrs/ndevs/0", "db7eth"),
        ],
    );
    for args in [
        &[][..],
        &["192.0.2.77"],
        &["db7-rxe"],
        &["db7.invalid"],
        &["--memory", "/home/db7/pmem"],
    ] {
        let lines = with_devices(
            &[args, &["--format", "json"]].concat(),
            std::slice::from_ref(&files),
            ETHERNET,
        );
        let text = lines.concat();
        for secret in ["db7", "7777", "192.0.2.77", "enp5s0", "/"] {
            assert!(
                !text.replace("IB/RoCE", "").contains(secret),
                "{secret} in {text}"
            );
        }
    }
    Ok(())
}
