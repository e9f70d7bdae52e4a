//! What this host is, as the files of sysfs and procfs show it. All of them are readable without
//! root, and reading changes nothing.

mod blocks;
mod containers;
mod devices;
pub(crate) mod drivers;
mod files;
mod modules;
mod network;
mod pmem;
pub(crate) mod published;
mod system;

use std::net::IpAddr;
use std::path::Path;

use serde::Serialize;

pub(crate) use self::blocks::Mount;
pub(crate) use self::containers::Container;
pub(crate) use self::devices::{Interface, Port, RdmaDevice};
pub(crate) use self::files::Files;
#[cfg(test)]
pub(crate) use self::files::tests;
pub(crate) use self::modules::{Module, ModuleState};
pub(crate) use self::network::Adapter;
pub(crate) use self::network::parse as parse_address;
pub(crate) use self::pmem::{Dax, DaxState, Dimm, Namespace, Pmem, Region};
pub(crate) use self::system::{Access, LockedMemory, Node, RdmaCore, User, release_number};

use self::modules::Kernel;

/// What this host is. Its names and addresses are left out of reports.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Facts {
    /// The kernel's release, such as `6.12.43+deb13-amd64`.
    #[serde(serialize_with = "published::release")]
    pub(crate) kernel: Option<String>,
    pub(crate) rdma_core: RdmaCore,
    /// The kernel modules of RDMA. None on a simulated host.
    pub(crate) modules: Vec<Module>,
    /// The device files that the libraries open. None on a simulated host.
    #[serde(skip)]
    pub(crate) nodes: Vec<Node>,
    pub(crate) devices: Vec<RdmaDevice>,
    /// The addresses of the network interfaces, without loopback.
    #[serde(skip)]
    pub(crate) addresses: Vec<String>,
    /// The addresses with their interfaces, if one is known.
    #[serde(skip)]
    pub(crate) places: Vec<(IpAddr, Option<String>)>,
    /// The Ethernet interfaces that are up, the best for soft-RoCE first.
    #[serde(skip)]
    pub(crate) ethernet: Vec<String>,
    #[serde(skip)]
    pub(crate) adapter: Option<Adapter>,
    /// A network adapter on the bus, and the driver of a guest or a program that has it.
    #[serde(skip)]
    pub(crate) given_away: Option<(String, String)>,
    /// The running kernel has no folder of modules, and another one has.
    #[serde(skip)]
    pub(crate) is_replaced: bool,
    /// Modules of RDMA that `modprobe` does not load, and the files that forbid it.
    #[serde(skip)]
    pub(crate) forbidden: Vec<(&'static str, String)>,
    /// The systemd unit of this process, if it is a service.
    #[serde(skip)]
    pub(crate) unit: Option<String>,
    /// The modules that remedies load and that this kernel was built without.
    pub(crate) absent: Vec<&'static str>,
    /// The providers of rdma-core that are installed, such as `mlx5`.
    #[serde(skip)]
    pub(crate) providers: Vec<String>,
    #[serde(skip)]
    pub(crate) user: User,
    pub(crate) locked_memory: LockedMemory,
    /// Devices, with a limit and the `rdma.max` of a control group of this process.
    #[serde(skip)]
    pub(crate) rdma_max: Vec<(String, String, String)>,
    /// The persistent memory.
    pub(crate) pmem: Pmem,
    /// The container that this process is in.
    pub(crate) container: Option<Container>,
}

impl Facts {
    /// Reads about the host whose file systems begin at `root`: `/`, except in tests.
    pub(crate) fn read(root: &Path) -> Self {
        let files = Files::new(root);
        let kernel = Kernel::read(&files);
        Self {
            kernel: files.word("proc/sys/kernel/osrelease"),
            rdma_core: system::rdma_core(&files),
            modules: kernel.modules(&files),
            nodes: system::nodes(&files),
            devices: devices::read(&files),
            addresses: network::local_addresses(&files),
            places: network::addresses(&files),
            ethernet: network::ethernet(&files),
            adapter: network::adapter(&files, &kernel),
            given_away: network::given_away(&files),
            is_replaced: modules::is_replaced(&files),
            forbidden: modules::forbidden(&files),
            unit: system::unit(&files),
            absent: kernel.absent(&files),
            providers: drivers::providers(&files),
            user: system::user(&files),
            locked_memory: system::locked_memory(&files),
            rdma_max: system::rdma_max(&files),
            pmem: pmem::read(&files),
            container: containers::container(&files),
        }
    }

    /// The Ethernet interface of an address, on a host that has soft-RoCE at another one.
    pub(crate) fn for_soft_roce(&self, ip: &IpAddr) -> Option<&str> {
        let mut devices = self.devices.iter();
        devices.find(|device| device.driver == Some("rdma_rxe"))?;
        let mut places = self.places.iter();
        let interface = places.find_map(|(own, at)| at.as_deref().filter(|_| own == ip))?;
        let mut used = self.devices.iter().flat_map(RdmaDevice::interfaces);
        let is_used = used.any(|of| of.name == interface);
        let mut ethernet = self.ethernet.iter();
        ethernet
            .find(|name| *name == interface && !is_used)
            .map(|name| &**name)
    }

    /// The provider of rdma-core that a device needs and that is not installed.
    pub(crate) fn missing_provider(&self, device: &RdmaDevice) -> Option<&'static str> {
        let provider = drivers::provider(device.driver?)?;
        let is_installed = self.providers.iter().any(|name| name == provider);
        (!is_installed).then_some(provider)
    }

    /// A device of another network namespace, where devices are not shared: sysfs hides it, and its
    /// file refuses this process.
    pub(crate) fn elsewhere(&self) -> Option<&str> {
        self.nodes.iter().find_map(|node| {
            let name = node.device.as_deref()?;
            let is_refused = matches!(node.access, Access::Refused { by_rule: true, .. });
            (is_refused && self.device(name).is_none()).then_some(name)
        })
    }

    pub(crate) fn device(&self, name: &str) -> Option<&RdmaDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}
