//! The persistent memory of this host: the devices of the dax bus, and the regions and namespaces of
//! libnvdimm that can become device-DAX. Drivers, sizes and modes decide, not names in `/dev`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::Files;
use super::blocks::{self, Mount};

const ND: &str = "sys/bus/nd/devices";
const ND_DRIVERS: &str = "sys/bus/nd/drivers";
const DAX: &str = "sys/bus/dax/devices";
const DAX_DRIVERS: &str = "sys/bus/dax/drivers";
/// Words of `flags` (`drivers/acpi/nfit/core.c`, and `papr_scm.c` of POWER), for which the library
/// calls no memory of the module durable.
const FAULTS: [&str; 5] = [
    "not_armed",
    "save_fail",
    "flush_fail",
    "restore_fail",
    "map_fail",
];
/// `ndctl` makes no smaller namespace.
const SMALLEST: u64 = 16 << 20;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Pmem {
    pub(crate) dax: Vec<Dax>,
    pub(crate) regions: Vec<Region>,
    pub(crate) dimms: Vec<Dimm>,
    /// Without those that are empty.
    pub(crate) namespaces: Vec<Namespace>,
}

/// A device of the dax bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Dax {
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) state: DaxState,
    /// Whether libnvdimm made it. Others, such as memory of CXL or of high bandwidth, are volatile.
    pub(crate) is_persistent: bool,
    #[serde(skip)]
    pub(crate) region: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DaxState {
    /// A program can map it.
    Usable,
    /// `/dev` of this process has no file of it.
    NoFile,
    /// The driver `kmem` made it ordinary memory of the kernel.
    SystemRam,
    /// The driver `device_dax` is not loaded.
    NotLoaded,
    /// No driver has it.
    Disabled,
    /// The seed of a region: its size is 0.
    Empty,
    /// A file of `/dev` without a device.
    Gone,
}

/// A module of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Dimm {
    #[serde(skip)]
    pub(crate) name: String,
    /// Its passphrase is set and was not given, so nothing can use its memory.
    pub(crate) is_locked: bool,
    /// The words of its faults: it may lose data with the power, or has lost some.
    pub(crate) faults: Vec<&'static str>,
    /// The regions that have its memory.
    #[serde(skip)]
    pub(crate) regions: Vec<String>,
}

/// A region of libnvdimm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Region {
    #[serde(skip)]
    pub(crate) name: String,
    /// For another namespace, in bytes.
    pub(crate) space: u64,
    pub(crate) is_enabled: bool,
    pub(crate) is_read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Namespace {
    #[serde(skip)]
    pub(crate) name: String,
    /// As `ndctl` calls it: `raw`, `sector`, `fsdax` or `devdax`.
    pub(crate) mode: &'static str,
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) is_enabled: bool,
    pub(crate) is_read_only: bool,
    /// Its block device, such as `pmem0`.
    #[serde(skip)]
    pub(crate) block: Option<String>,
    /// In words.
    #[serde(skip)]
    pub(crate) uses: Vec<String>,
    #[serde(skip)]
    pub(crate) mounts: Vec<Mount>,
}

impl Dax {
    pub(crate) fn path(&self) -> String {
        format!("/dev/{}", self.name)
    }
}

impl Pmem {
    /// The device of a path.
    pub(crate) fn device(&self, path: &Path) -> Option<&Dax> {
        self.dax.iter().find(|dax| Path::new(&dax.path()) == path)
    }

    /// The persistent devices in a state.
    pub(crate) fn in_state(&self, state: DaxState) -> impl Iterator<Item = &Dax> {
        let devices = self.dax.iter();
        devices.filter(move |dax| dax.is_persistent && dax.state == state)
    }
}

impl Region {
    pub(crate) fn has_space(&self) -> bool {
        self.space >= SMALLEST && self.is_enabled && !self.is_read_only
    }
}

pub(super) fn read(files: &Files) -> Pmem {
    let names = files.names(ND);
    let with = |prefix: &'static str| names.iter().filter(move |name| name.starts_with(prefix));
    Pmem {
        dax: dax(files),
        dimms: with("nmem").map(|name| dimm(files, name)).collect(),
        regions: with("region").map(|name| region(files, name)).collect(),
        namespaces: with("namespace")
            .filter_map(|name| namespace(files, name))
            .collect(),
    }
}

/// The devices of the bus, and the files of `/dev` that look like them.
fn dax(files: &Files) -> Vec<Dax> {
    let on_bus = files.names(DAX);
    let has_bus = !on_bus.is_empty();
    let names: BTreeSet<String> = on_bus.into_iter().chain(files.names("dev")).collect();
    let device = |name: String| Dax {
        state: state(files, &name, has_bus),
        is_persistent: is_persistent(files, &name),
        region: region_of(files, &name),
        name,
    };
    let names = names.into_iter().filter(|name| is_dax(name));
    names.map(device).collect()
}

/// Device-DAX have two numbers in their names: `dax0.0`.
fn is_dax(name: &str) -> bool {
    let numbers = name
        .strip_prefix("dax")
        .and_then(|rest| rest.split_once('.'));
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    numbers.is_some_and(|(region, number)| is_number(region) && is_number(number))
}

/// Its parents are in the path of the device, which the link has. Without it, nothing is known.
fn is_persistent(files: &Files, name: &str) -> bool {
    let device = files.link(format!("{DAX}/{name}"));
    device.is_none_or(|path| path.split('/').any(|parent| parent.starts_with("ndbus")))
}

/// A parent as well.
fn region_of(files: &Files, name: &str) -> Option<String> {
    let path = files.link(format!("{DAX}/{name}"))?;
    let region = path
        .split('/')
        .find(|parent| parent.starts_with("region"))?;
    Some(region.to_owned())
}

/// Without the bus, as in some containers, only the file is seen.
fn state(files: &Files, name: &str, has_bus: bool) -> DaxState {
    let has_file = files.exists(format!("dev/{name}"));
    if !has_bus {
        return DaxState::Usable;
    }
    if !files.exists(format!("{DAX}/{name}")) {
        return DaxState::Gone;
    }
    if files.word(format!("{DAX}/{name}/size")).as_deref() == Some("0") {
        return DaxState::Empty;
    }
    let driver = |driver: &str| files.exists(format!("{DAX_DRIVERS}/{driver}/{name}"));
    if driver("kmem") {
        DaxState::SystemRam
    } else if !files.exists(format!("{DAX_DRIVERS}/device_dax")) {
        DaxState::NotLoaded
    } else if !driver("device_dax") {
        DaxState::Disabled
    } else if has_file {
        DaxState::Usable
    } else {
        DaxState::NoFile
    }
}

fn dimm(files: &Files, name: &str) -> Dimm {
    let security = files.word(format!("{ND}/{name}/security"));
    let drivers = ["nfit", "papr", "cxl"];
    let flags = drivers.map(|driver| files.word(format!("{ND}/{name}/{driver}/flags")));
    let flags = flags.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let has = |fault: &&str| flags.split_whitespace().any(|word| word == *fault);
    let has_it = |region: &String| {
        let mut files_of = files.names(format!("{ND}/{region}")).into_iter();
        files_of.any(|file| {
            let mapping = files.word(format!("{ND}/{region}/{file}"));
            file.starts_with("mapping")
                && mapping.is_some_and(|of| of.split(',').next() == Some(name))
        })
    };
    let regions = files.names(ND).into_iter();
    let regions = regions.filter(|name| name.starts_with("region"));
    Dimm {
        faults: FAULTS.into_iter().filter(has).collect(),
        regions: regions.filter(has_it).collect(),
        name: name.to_owned(),
        is_locked: security.as_deref() == Some("locked"),
    }
}

fn region(files: &Files, name: &str) -> Region {
    let number = |attribute| number(files, name, attribute);
    let space = number("max_available_extent").or_else(|| number("available_size"));
    Region {
        name: name.to_owned(),
        space: space.unwrap_or(0),
        is_enabled: has_driver(files, &[name]),
        is_read_only: number("read_only") == Some(1),
    }
}

/// `None` for a place that has no namespace: its size is 0.
fn namespace(files: &Files, name: &str) -> Option<Namespace> {
    let mode = files.word(format!("{ND}/{name}/mode"))?;
    // While it is disabled, the kernel calls it raw, and its label has the class of its holder.
    let class = files.word(format!("{ND}/{name}/holder_class"));
    let mode = match (&*mode, class.as_deref()) {
        ("dax", _) | ("raw", Some("dax")) => "devdax",
        ("memory", _) | ("raw", Some("pfn")) => "fsdax",
        ("safe", _) | ("raw", Some("btt")) => "sector",
        _ => "raw",
    };
    let size = number(files, name, "size").filter(|size| *size > 0)?;
    // Of `namespace1.0`, it is `region1`.
    let (region, _) = name.strip_prefix("namespace")?.split_once('.')?;
    let is_read_only = number(files, &format!("region{region}"), "read_only") == Some(1);
    // The personality that has claimed it, if it is not raw.
    let holder = files.word(format!("{ND}/{name}/holder"));
    let devices = [name, holder.as_deref().unwrap_or(name)];
    let blocks = |device| files.names(format!("{ND}/{device}/block"));
    let block = devices.into_iter().flat_map(blocks).next();
    let uses = block.as_ref().map(|block| blocks::uses(files, block));
    let (uses, mounts) = uses.unwrap_or_default();
    Some(Namespace {
        name: name.to_owned(),
        mode,
        size,
        is_enabled: has_driver(files, &devices),
        is_read_only,
        block,
        uses,
        mounts,
    })
}

/// Whether a driver of the bus has one of these devices. Without the list of drivers, they count as
/// enabled.
fn has_driver(files: &Files, devices: &[&str]) -> bool {
    let drivers = files.names(ND_DRIVERS);
    let has = |driver: &String| {
        let mut devices = devices.iter();
        devices.any(|device| files.exists(format!("{ND_DRIVERS}/{driver}/{device}")))
    };
    drivers.is_empty() || drivers.iter().any(has)
}

fn number(files: &Files, device: &str, attribute: &str) -> Option<u64> {
    let text = files.word(format!("{ND}/{device}/{attribute}"))?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    fn of(paths: &[(&str, &str)]) -> io::Result<Pmem> {
        Ok(read(&Files::new(tree(paths)?.path())))
    }

    /// Promise: a device is judged by its driver and its size.
    #[test]
    fn a_device_dax_has_the_state_of_its_driver() -> io::Result<()> {
        let pmem = of(&[
            ("dev/dax", ""),
            ("dev/daxes.0", ""),
            ("dev/dax0.0", ""),
            ("dev/dax2.0", ""),
            ("dev/dax9.0", ""),
            ("sys/bus/dax/devices/dax0.0/size", "1073741824\n"),
            ("sys/bus/dax/devices/dax1.0/size", "1073741824\n"),
            ("sys/bus/dax/devices/dax2.0/size", "1073741824\n"),
            ("sys/bus/dax/devices/dax3.0/size", "0\n"),
            ("sys/bus/dax/devices/dax4.0/size", "1073741824\n"),
            ("sys/bus/dax/drivers/device_dax/dax0.0/", ""),
            ("sys/bus/dax/drivers/device_dax/dax1.0/", ""),
            ("sys/bus/dax/drivers/kmem/dax2.0/", ""),
        ])?;
        let states: Vec<_> = pmem.dax.iter().map(|dax| (&*dax.name, dax.state)).collect();
        assert_eq!(
            states,
            [
                ("dax0.0", DaxState::Usable),
                ("dax1.0", DaxState::NoFile),
                ("dax2.0", DaxState::SystemRam),
                ("dax3.0", DaxState::Empty),
                ("dax4.0", DaxState::Disabled),
                ("dax9.0", DaxState::Gone),
            ]
        );
        let pmem = of(&[("sys/bus/dax/devices/dax1.0/size", "4096\n")])?;
        assert_eq!(pmem.dax[0].state, DaxState::NotLoaded);
        let pmem = of(&[("dev/dax1.0", "")])?;
        assert_eq!(pmem.dax[0].state, DaxState::Usable, "sysfs is hidden");
        Ok(())
    }

    /// Promise: memory that no kernel calls persistent is not recommended.
    #[test]
    fn only_devices_of_libnvdimm_are_persistent() -> io::Result<()> {
        for (parent, is_persistent) in [("ndbus0/region0/dax0.1", true), ("platform/hmem.0", false)]
        {
            let size = format!("sys/devices/{parent}/dax0.0/size");
            let link = format!("-> ../../../devices/{parent}/dax0.0");
            let pmem = of(&[
                (&size, "4096"),
                ("sys/bus/dax/devices/dax0.0", &link),
                ("sys/bus/dax/drivers/device_dax/dax0.0/", ""),
                ("dev/dax0.0", ""),
            ])?;
            assert_eq!(pmem.dax[0].is_persistent, is_persistent, "{parent}");
            assert_eq!(
                pmem.in_state(DaxState::Usable).count(),
                usize::from(is_persistent)
            );
        }
        Ok(())
    }

    #[test]
    fn namespaces_have_modes_and_states() -> io::Result<()> {
        let pmem = of(&[
            ("sys/bus/nd/devices/namespace0.0/mode", "dax\n"),
            ("sys/bus/nd/devices/namespace0.0/size", "268435456\n"),
            ("sys/bus/nd/devices/namespace0.0/holder", "dax0.1\n"),
            ("sys/bus/nd/devices/namespace0.1/mode", "raw\n"),
            ("sys/bus/nd/devices/namespace0.1/size", "0\n"),
            ("sys/bus/nd/devices/namespace1.0/mode", "memory\n"),
            ("sys/bus/nd/devices/namespace1.0/size", "134217728\n"),
            ("sys/bus/nd/devices/namespace1.0/holder", "pfn1.0\n"),
            ("sys/bus/nd/devices/namespace2.0/mode", "safe\n"),
            ("sys/bus/nd/devices/namespace2.0/size", "spoilt\n"),
            ("sys/bus/nd/devices/region0/available_size", "0\n"),
            ("sys/bus/nd/devices/region1/read_only", "1\n"),
            ("sys/bus/nd/devices/ndbus0/", ""),
            ("sys/bus/nd/drivers/nd_pmem/pfn1.0/", ""),
            ("sys/bus/nd/devices/pfn1.0/block/pmem1/", ""),
            (
                "proc/self/mounts",
                "/dev/pmem0 /var ext4 rw 0 0\n/dev/pmem1 /mnt ext4 rw,dax 0 0\n",
            ),
        ])?;
        let mount = Mount {
            source: "/dev/pmem1".into(),
            place: "/mnt".into(),
            is_dax: true,
            can_be_dax: true,
        };
        let namespace = |name: &str, mode, size, is_enabled| Namespace {
            name: name.into(),
            mode,
            size,
            is_enabled,
            is_read_only: is_enabled,
            block: is_enabled.then(|| "pmem1".into()),
            uses: match is_enabled {
                true => vec!["/dev/pmem1 is mounted on /mnt".into()],
                false => Vec::new(),
            },
            mounts: match is_enabled {
                true => vec![mount.clone()],
                false => Vec::new(),
            },
        };
        assert_eq!(
            pmem.namespaces,
            [
                namespace("namespace0.0", "devdax", 268_435_456, false),
                namespace("namespace1.0", "fsdax", 134_217_728, true),
            ]
        );
        Ok(())
    }

    /// Promise: no namespace is asked of a region that is disabled, read-only, or full.
    #[test]
    fn a_region_can_have_space() -> io::Result<()> {
        let at = "sys/bus/nd/devices/region1/";
        for (files, has_space) in [
            (&[("available_size", "16777216\n")][..], true),
            (&[("available_size", "4096\n")], false),
            (
                &[
                    ("available_size", "33554432\n"),
                    ("max_available_extent", "4096\n"),
                ],
                false,
            ),
            (
                &[("available_size", "33554432\n"), ("read_only", "1\n")],
                false,
            ),
            (
                &[
                    ("available_size", "33554432\n"),
                    ("../../drivers/nd_region/other/", ""),
                ],
                false,
            ),
        ] {
            let files = files
                .iter()
                .map(|(file, text)| (format!("{at}{file}"), *text));
            let files: Vec<_> = files.collect();
            let files: Vec<_> = [(at, "")]
                .into_iter()
                .chain(files.iter().map(|(path, text)| (&**path, *text)))
                .collect();
            let pmem = of(&files)?;
            assert_eq!(pmem.regions[0].has_space(), has_space, "{files:?}");
        }
        Ok(())
    }
}
