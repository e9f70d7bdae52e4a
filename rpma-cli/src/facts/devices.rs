//! RDMA devices in sysfs: `/sys/class/infiniband/DEVICE`.

use std::net::{IpAddr, Ipv6Addr};

use serde::Serialize;

use super::{Files, drivers, network, published};

const CLASS: &str = "sys/class/infiniband";

const NODE_TYPES: &str = "CA|switch|router|RNIC|usNIC|usNIC UDP|unspecified";
const STATES: &str = "NOP|DOWN|INIT|ARMED|ACTIVE|ACTIVE_DEFER";
const PHYSICAL: &str =
    "Sleep|Polling|Disabled|PortConfigurationTraining|LinkUp|LinkErrorRecovery|Phy Test";
const GID_KINDS: &str = "IB/RoCE v1|RoCE v2";
const INTERFACE_STATES: &str = "up|down|unknown|dormant|lowerlayerdown|testing";

/// Numbers and words of closed lists, beside what is left out of reports.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RdmaDevice {
    /// The name, as `rdma link` prints it.
    #[serde(serialize_with = "published::name")]
    pub(crate) name: String,
    /// `CA` for InfiniBand and RoCE, `RNIC` for iWARP. The others have no reliable connections.
    pub(crate) node_type: Option<&'static str>,
    pub(crate) driver: Option<&'static str>,
    /// Its vendor and its device in the numbers of PCI: `15b3:101d`.
    pub(crate) pci: Option<String>,
    /// The description: `rxe`, `siw`, or the adapter's own text.
    #[serde(skip)]
    pub(crate) description: Option<String>,
    /// Software devices have none.
    pub(crate) firmware: Option<String>,
    pub(crate) board: Option<String>,
    pub(crate) ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Port {
    pub(crate) number: u32,
    /// `ACTIVE`, `DOWN`, `INIT` or `ARMED`.
    pub(crate) state: Option<&'static str>,
    /// `LinkUp`, `Polling`, or `Disabled`.
    pub(crate) physical: Option<&'static str>,
    /// `Ethernet` or `InfiniBand`.
    pub(crate) link_layer: Option<&'static str>,
    pub(crate) rate: Option<String>,
    pub(crate) gids: Vec<Gid>,
    /// The network interfaces of the port.
    pub(crate) interfaces: Vec<Interface>,
}

/// A gid that is in use.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gid {
    #[serde(skip)]
    pub(crate) gid: Ipv6Addr,
    /// `RoCE v2`, or `IB/RoCE v1`.
    pub(crate) kind: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Interface {
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) mtu: Option<u32>,
    /// `up`, `down`, or `unknown` for interfaces without a carrier.
    pub(crate) state: Option<&'static str>,
    /// Whether the operator has set it up, with a cable or without.
    pub(crate) is_set_up: Option<bool>,
    /// It is in another network namespace than this process.
    pub(crate) is_elsewhere: bool,
    #[serde(skip)]
    pub(crate) addresses: Vec<IpAddr>,
    /// The active member of a bond, and the member that is the device's.
    #[serde(skip)]
    pub(crate) members: Option<(String, String)>,
}

impl RdmaDevice {
    /// Whether it can carry connections now.
    pub(crate) fn is_ready(&self) -> bool {
        self.can_serve() && self.ports.iter().any(Port::is_active)
    }

    /// Whether it has reliable connections and a connection manager, which the kernel gives to
    /// InfiniBand, RoCE and iWARP. usNIC and EFA, for example, have none.
    pub(crate) fn can_serve(&self) -> bool {
        let known = |port: &Port| matches!(port.link_layer, None | Some("Ethernet" | "InfiniBand"));
        match self.node_type {
            None | Some("CA") => self.ports.is_empty() || self.ports.iter().any(known),
            Some("RNIC") => true,
            Some(_) => false,
        }
    }

    pub(crate) fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.ports.iter().flat_map(|port| &port.interfaces)
    }

    /// Whether an address of this host is one of an active port. A link-local one has its scope.
    pub(crate) fn has(&self, address: &str) -> bool {
        let ports = self.ports.iter().filter(|port| port.is_active());
        let mut own = ports.flat_map(|port| {
            let of_interfaces = port.interfaces.iter().flat_map(|of| &of.addresses).copied();
            of_interfaces.chain(self.addresses_of(port))
        });
        let is_own = |address| own.any(|own| own == address);
        match network::parse(address) {
            Some(IpAddr::V6(ip)) if ip.is_unicast_link_local() && !address.contains('%') => false,
            parsed => parsed.is_some_and(is_own),
        }
    }

    /// A bond that sends through another adapter: the kernel gives its addresses to no device. A bond
    /// of the ports of one adapter has a device with its addresses.
    pub(crate) fn passive_bond(&self) -> Option<&Interface> {
        let is_known = |ip: &IpAddr| {
            let mut own = self.ports.iter().flat_map(|port| self.addresses_of(port));
            matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) || own.any(|own| own == *ip)
        };
        self.interfaces().find(|of| {
            let is_passive = of
                .members
                .as_ref()
                .is_some_and(|(active, own)| active != own);
            is_passive && !of.addresses.iter().all(is_known)
        })
    }

    /// The gids that are addresses of a network: those of RoCE.
    fn addresses_of<'a>(&self, port: &'a Port) -> impl Iterator<Item = IpAddr> + use<'a> {
        let is_roce = port.link_layer == Some("Ethernet") && self.node_type == Some("CA");
        let gids = port.gids.iter().filter(move |_| is_roce);
        gids.map(|gid| gid.gid.to_canonical())
    }
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == Some("ACTIVE")
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer == Some("InfiniBand")
    }
}

pub(super) fn read(files: &Files) -> Vec<RdmaDevice> {
    let names = files.names(CLASS);
    names.into_iter().map(|name| device(files, name)).collect()
}

fn device(files: &Files, name: String) -> RdmaDevice {
    let dir = format!("{CLASS}/{name}");
    let attribute = |file: &str| files.word(format!("{dir}/{file}"));
    let number = |file: &str| {
        let text = attribute(&format!("device/{file}"))?;
        u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    let pci = number("vendor").zip(number("device"));
    let node_type = attribute("node_type");
    let node_type = node_type.map(|text| word(NODE_TYPES, &text).unwrap_or("unspecified"));
    // A software device has no hardware, and its transport names its driver.
    let driver = match (files.driver(format!("{dir}/device")), pci, node_type) {
        (Some(driver), ..) => drivers::name(&driver),
        (None, None, Some("CA")) => Some("rdma_rxe"),
        (None, None, Some("RNIC")) => Some("siw"),
        _ => None,
    };
    let board = attribute("board_id").or_else(|| attribute("hca_type"));
    let ports = files.names(format!("{dir}/ports")).into_iter();
    let ports = ports.filter_map(|port| Some(self::port(files, &name, port.parse().ok()?)));
    RdmaDevice {
        node_type,
        driver,
        pci: pci.map(|(vendor, device)| format!("{vendor:04x}:{device:04x}")),
        description: attribute("node_desc"),
        firmware: attribute("fw_ver").and_then(|text| published::version(&text)),
        board: board.and_then(|text| published::board(&text)),
        ports: ports.collect(),
        name,
    }
}

fn port(files: &Files, device: &str, number: u32) -> Port {
    let dir = format!("{CLASS}/{device}/ports/{number}");
    let attribute = |file: &str| files.word(format!("{dir}/{file}"));
    let of_list = |list, file| attribute(file).and_then(|text| word(list, &text));
    let (gids, mut names) = gids(files, &dir);
    let of_device = interfaces_of_device(files, device, number);
    let own = of_device.first().cloned();
    if names.is_empty() {
        names = of_device;
    }
    let link_layer = attribute("link_layer");
    let link = |text: String| published::known(published::LINKS, &text).unwrap_or("Unspecified");
    Port {
        number,
        state: of_list(STATES, "state"),
        physical: of_list(PHYSICAL, "phys_state"),
        link_layer: link_layer.map(link),
        rate: attribute("rate").and_then(|text| published::rate(&text)),
        gids,
        interfaces: names
            .into_iter()
            .map(|name| interface(files, name, own.as_ref()))
            .collect(),
    }
}

/// The gids that are in use, and the network interfaces that they belong to.
fn gids(files: &Files, port: &str) -> (Vec<Gid>, Vec<String>) {
    let (mut gids, mut names) = (Vec::new(), Vec::new());
    for index in files.names(format!("{port}/gids")) {
        let gid = files.word(format!("{port}/gids/{index}"));
        let gid = gid.and_then(|gid| gid.parse::<Ipv6Addr>().ok());
        let Some(gid) = gid.filter(|gid| !gid.is_unspecified()) else {
            continue;
        };
        let kind = files.word(format!("{port}/gid_attrs/types/{index}"));
        gids.push(Gid {
            gid,
            kind: kind.and_then(|kind| word(GID_KINDS, &kind)),
        });
        let name = files.word(format!("{port}/gid_attrs/ndevs/{index}"));
        names.extend(name.filter(|name| is_name(name)));
    }
    names.sort();
    names.dedup();
    (gids, names)
}

/// InfiniBand and iWARP: the interfaces of the same adapter. `dev_port` counts from 0.
fn interfaces_of_device(files: &Files, device: &str, port: u32) -> Vec<String> {
    let mut names = files.names(format!("{CLASS}/{device}/device/net"));
    let software = files.word(format!("{CLASS}/{device}/parent"));
    names.extend(software.filter(|name| is_name(name)));
    names.retain(|name| {
        let dev_port = files.word(format!("sys/class/net/{name}/dev_port"));
        dev_port.is_none_or(|dev_port| dev_port.parse() == Ok(port.saturating_sub(1)))
    });
    names
}

fn interface(files: &Files, name: String, member: Option<&String>) -> Interface {
    let attribute = |file: &str| files.word(format!("sys/class/net/{name}/{file}"));
    let addresses = network::addresses(files).into_iter();
    let own = addresses.filter_map(|(ip, of)| (of.as_ref() == Some(&name)).then_some(ip));
    let members = attribute("bonding/active_slave").zip(member.cloned());
    Interface {
        mtu: attribute("mtu").and_then(|mtu| mtu.parse().ok()),
        state: attribute("operstate").and_then(|text| word(INTERFACE_STATES, &text)),
        is_set_up: network::is_set_up(files, &name),
        is_elsewhere: !files.exists(format!("sys/class/net/{name}")),
        addresses: own.collect(),
        members,
        name,
    }
}

/// The word of a closed list. `4: ACTIVE` is ACTIVE.
fn word(list: &'static str, text: &str) -> Option<&'static str> {
    let word = text.split_once(": ").map_or(text, |(_, word)| word);
    published::known(list, word)
}

/// Whether a text can be an interface's name, which is part of a path.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains('/')
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    /// soft-RoCE, as Linux 6.12 shows it.
    const RXE: &[(&str, &str)] = &[
        ("sys/class/infiniband/rxe0/node_type", "1: CA\n"),
        ("sys/class/infiniband/rxe0/node_desc", "rxe\n"),
        ("sys/class/infiniband/rxe0/parent", "eth0\n"),
        ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
        ("sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n"),
        (
            "sys/class/infiniband/rxe0/ports/1/rate",
            "2.5 Gb/sec (1X SDR)\n",
        ),
        (
            "sys/class/infiniband/rxe0/ports/1/gids/0",
            "fe80:0000:0000:0000:5054:00ff:fe77:0101\n",
        ),
        (
            "sys/class/infiniband/rxe0/ports/1/gids/1",
            "0000:0000:0000:0000:0000:ffff:0a4d:0001\n",
        ),
        (
            "sys/class/infiniband/rxe0/ports/1/gids/2",
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        ),
        ("sys/class/infiniband/rxe0/ports/1/gids/3", "spoilt\n"),
        (
            "sys/class/infiniband/rxe0/ports/1/gid_attrs/types/1",
            "RoCE v2\n",
        ),
        (
            "sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0",
            "eth0\n",
        ),
        (
            "sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/1",
            "eth0\n",
        ),
        ("sys/class/net/eth0/mtu", "1500\n"),
        ("sys/class/net/eth0/operstate", "up\n"),
    ];

    #[test]
    fn soft_roce_has_the_addresses_of_its_gids() -> io::Result<()> {
        let tree = tree(RXE)?;
        let devices = read(&Files::new(tree.path()));
        let [device] = &devices[..] else {
            panic!("{devices:?}");
        };
        assert_eq!(device.node_type, Some("CA"));
        assert_eq!(device.firmware, None);
        assert!(device.is_ready());
        let [port] = &device.ports[..] else {
            panic!("{device:?}");
        };
        let addresses: Vec<String> = device.addresses_of(port).map(|ip| ip.to_string()).collect();
        assert_eq!(addresses, ["fe80::5054:ff:fe77:101", "10.77.0.1"]);
        assert!(device.has("10.77.0.1") && device.has("fe80::5054:ff:fe77:101%eth0"));
        assert!(!device.has("10.77.0.2") && !device.has("fe80::5054:ff:fe77:101"));
        assert_eq!(port.gids[1].kind, Some("RoCE v2"));
        let eth0 = Interface {
            name: "eth0".into(),
            mtu: Some(1500),
            state: Some("up"),
            ..Interface::default()
        };
        assert_eq!(port.interfaces, [eth0]);
        Ok(())
    }

    #[test]
    fn an_adapter_of_infiniband_has_the_interface_of_its_port() -> io::Result<()> {
        let tree = tree(&[
            ("sys/class/infiniband/mlx5_0/node_type", "1: CA"),
            ("sys/class/infiniband/mlx5_0/fw_ver", "20.31.1014\n"),
            ("sys/class/infiniband/mlx5_0/board_id", "MT_0000000223\n"),
            ("sys/class/infiniband/mlx5_0/hca_type", "MT4123\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN"),
            ("sys/class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE"),
            (
                "sys/class/infiniband/mlx5_0/ports/2/link_layer",
                "InfiniBand",
            ),
            ("sys/class/infiniband/mlx5_0/ports/2/gids/0", "fe80::1"),
            ("sys/class/infiniband/mlx5_0/device/net/ib0/", ""),
            ("sys/class/infiniband/mlx5_0/device/net/ib1/", ""),
            ("sys/class/net/ib0/dev_port", "0"),
            ("sys/class/net/ib1/dev_port", "1"),
        ])?;
        let devices = read(&Files::new(tree.path()));
        let device = &devices[0];
        assert_eq!(device.firmware.as_deref(), Some("20.31.1014"));
        assert_eq!(device.board.as_deref(), Some("MT_0000000223"));
        assert!(device.is_ready() && !device.ports[0].is_active());
        let names: Vec<_> = device.interfaces().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["ib0", "ib1"]);
        assert_eq!(device.ports[1].interfaces[0].name, "ib1");
        let mut ports = device.ports.iter();
        let has_none = ports.all(|port| device.addresses_of(port).next().is_none());
        assert!(has_none, "no address of a network");
        Ok(())
    }

    #[test]
    fn a_host_without_rdma_has_no_devices() -> io::Result<()> {
        for files in [&[][..], &[("sys/class/infiniband/", "")]] {
            assert!(read(&Files::new(tree(files)?.path())).is_empty());
        }
        Ok(())
    }

    #[test]
    fn a_device_without_attributes_is_a_device() -> io::Result<()> {
        let tree = tree(&[("sys/class/infiniband/new0/ports/x/", "")])?;
        let devices = read(&Files::new(tree.path()));
        assert_eq!(devices[0].name, "new0");
        assert!(!devices[0].is_ready());
        Ok(())
    }
}
