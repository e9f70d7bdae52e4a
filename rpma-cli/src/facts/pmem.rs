//! The persistent memory of this host: device-DAX devices, and the namespaces of libnvdimm that can
//! become some.

use serde::Serialize;

use super::Files;

const ND: &str = "sys/bus/nd/devices";
const DAX: &str = "sys/bus/dax";
/// `ndctl` makes no smaller namespace.
const SMALLEST: u64 = 16 << 20;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Pmem {
    /// The paths of the device-DAX devices.
    pub(crate) devices: Vec<String>,
    /// The paths of those that the kernel has, and `/dev` has not.
    pub(crate) hidden: Vec<String>,
    /// The namespaces that are no device-DAX.
    pub(crate) namespaces: Vec<Namespace>,
    /// Whether a region has space for another namespace.
    pub(crate) has_space: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Namespace {
    pub(crate) name: String,
    /// As `ndctl` calls it: `fsdax`, `sector` or `raw`.
    pub(crate) mode: String,
    /// In bytes.
    pub(crate) size: u64,
}

pub(super) fn read(files: &Files) -> Pmem {
    let devices = paths(files.names("dev"));
    let mut hidden = paths(files.names(format!("{DAX}/devices")));
    hidden.retain(|path| {
        let name = path.trim_start_matches("/dev/");
        // Ordinary memory of the kernel has no device file.
        !devices.contains(path) && !files.exists(format!("{DAX}/drivers/kmem/{name}"))
    });
    let names = files.names(ND);
    Pmem {
        devices,
        hidden,
        namespaces: names
            .iter()
            .filter(|name| name.starts_with("namespace"))
            .filter_map(|name| namespace(files, name))
            .collect(),
        has_space: names.iter().any(|name| {
            let space = number(files, name, "available_size");
            name.starts_with("region") && space.is_some_and(|space| space >= SMALLEST)
        }),
    }
}

/// The device-DAX devices have two numbers in their names: `dax0.0`.
fn paths(names: Vec<String>) -> Vec<String> {
    let is_dax = |name: &String| {
        let numbers = name
            .strip_prefix("dax")
            .and_then(|rest| rest.split_once('.'));
        numbers.is_some_and(|(region, number)| {
            region.parse::<u32>().is_ok() && number.parse::<u32>().is_ok()
        })
    };
    let names = names.into_iter().filter(is_dax);
    names.map(|name| format!("/dev/{name}")).collect()
}

/// `None` for a device-DAX, and for a place that has no namespace: its size is 0.
fn namespace(files: &Files, name: &str) -> Option<Namespace> {
    let mode = match &*files.word(format!("{ND}/{name}/mode"))? {
        "dax" => return None,
        "memory" => "fsdax".to_owned(),
        "safe" => "sector".to_owned(),
        other => other.to_owned(),
    };
    let size = number(files, name, "size").filter(|size| *size > 0)?;
    Some(Namespace {
        name: name.to_owned(),
        mode,
        size,
    })
}

fn number(files: &Files, device: &str, attribute: &str) -> Option<u64> {
    files
        .word(format!("{ND}/{device}/{attribute}"))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    #[test]
    fn a_namespace_in_another_mode_can_become_a_device_dax() -> io::Result<()> {
        let tree = tree(&[
            ("sys/bus/nd/devices/namespace0.0/mode", "dax\n"),
            ("sys/bus/nd/devices/namespace0.0/size", "268435456\n"),
            ("sys/bus/nd/devices/namespace0.1/mode", "raw\n"),
            ("sys/bus/nd/devices/namespace0.1/size", "0\n"),
            ("sys/bus/nd/devices/namespace1.0/mode", "memory\n"),
            ("sys/bus/nd/devices/namespace1.0/size", "134217728\n"),
            ("sys/bus/nd/devices/namespace2.0/mode", "safe\n"),
            ("sys/bus/nd/devices/namespace2.0/size", "spoilt\n"),
            ("sys/bus/nd/devices/region0/available_size", "0\n"),
            ("sys/bus/nd/devices/ndbus0/", ""),
        ])?;
        let pmem = read(&Files::new(tree.path()));
        let fsdax = Namespace {
            name: "namespace1.0".into(),
            mode: "fsdax".into(),
            size: 134_217_728,
        };
        assert_eq!(pmem.namespaces, [fsdax]);
        assert!(!pmem.has_space);
        Ok(())
    }

    #[test]
    fn a_region_can_have_space() -> io::Result<()> {
        for (space, has_space) in [("16777216\n", true), ("4096\n", false)] {
            let tree = tree(&[("sys/bus/nd/devices/region1/available_size", space)])?;
            assert_eq!(read(&Files::new(tree.path())).has_space, has_space);
        }
        Ok(())
    }

    #[test]
    fn a_device_dax_has_a_device_file_or_is_hidden() -> io::Result<()> {
        let tree = tree(&[
            ("dev/dax0.0", ""),
            ("dev/dax", ""),
            ("dev/daxes.0", ""),
            ("sys/bus/dax/devices/dax0.0/", ""),
            ("sys/bus/dax/devices/dax1.0/", ""),
            ("sys/bus/dax/devices/dax2.0/", ""),
            ("sys/bus/dax/drivers/kmem/dax2.0/", ""),
        ])?;
        let pmem = read(&Files::new(tree.path()));
        assert_eq!(pmem.devices, ["/dev/dax0.0"]);
        assert_eq!(pmem.hidden, ["/dev/dax1.0"], "dax2.0 is ordinary memory");
        Ok(())
    }
}
