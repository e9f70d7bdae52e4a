//! The remedies for memory, by the drivers and the modes that this host has. None loses data if another
//! one can help.

use super::{LOG, PAGE, files, give_path, or_other_kernel};
use crate::facts::{Dax, DaxState, Dimm, Facts, Namespace, Pmem, Region};

/// The command that a remedy about memory begins with.
pub(in crate::doctor) struct Wanted<'a> {
    /// It, up to the path of the memory.
    pub(in crate::doctor) doctor: String,
    /// A path that was tried.
    pub(in crate::doctor) failed: Option<&'a str>,
    /// Whether an RDMA device can register a file on a DAX file system, if one was opened.
    pub(in crate::doctor) takes_files: Option<bool>,
}

/// For memory that is not persistent or not there: the best that this host has.
pub(in crate::doctor) fn other_memory(facts: &Facts, wanted: &Wanted<'_>) -> String {
    let Wanted { doctor, failed, .. } = wanted;
    let pmem = &facts.pmem;
    let usable = pmem.in_state(DaxState::Usable).map(Dax::path);
    let usable: Vec<String> = usable.filter(|path| *failed != Some(path)).collect();
    if let [path, others @ ..] = &usable[..] {
        return match others {
            [] => format!("{doctor} {path}"),
            others => format!("{doctor} {path} (or {})", others.join(", ")),
        };
    }
    let of_device = DEVICE_STATES.iter().find_map(|state| {
        let device = pmem.in_state(*state).next()?;
        device_remedy(device, facts)
    });
    if let Some(remedy) = of_device {
        return remedy;
    }
    if facts.container.is_some() {
        return format!(
            "look for persistent memory on the host of the container, and give it to the container. {PAGE} has a guest \
             machine for tests"
        );
    }
    of_regions(facts, wanted).unwrap_or_else(|| {
        let is_failed = |dax: &Dax| *failed == Some(&*dax.path());
        if pmem.in_state(DaxState::Usable).any(is_failed) {
            return LOG.into();
        }
        format!(
            "this host has no persistent memory: use a host that has some. {PAGE} has a guest machine for tests"
        )
    })
}

/// The remedy that the regions and namespaces have. One that loses no data comes first.
fn of_regions(facts: &Facts, wanted: &Wanted<'_>) -> Option<String> {
    let Pmem {
        regions,
        namespaces,
        dimms,
        ..
    } = &facts.pmem;
    let is_off = |namespace: &&Namespace| namespace.mode == "devdax" && !namespace.is_enabled;
    if let Some(namespace) = namespaces.iter().find(is_off) {
        return Some(enable(namespace));
    }
    if let Some(Region { name, .. }) = regions.iter().find(|region| region.has_space()) {
        return Some(format!(
            "as root: ndctl create-namespace --mode=devdax --region={name}. It makes a device-DAX"
        ));
    }
    if let Some(remedy) = unlock(dimms) {
        return Some(remedy);
    }
    if let Some(Region { name, .. }) = regions.iter().find(|region| !region.is_enabled) {
        return Some(format!("as root: ndctl enable-region {name}"));
    }
    let file = files::remedy(facts, wanted);
    let device = of_used(facts);
    match (file, device) {
        // A device may refuse a file, if none was asked.
        (Some(file), Some(device)) if wanted.takes_files.is_none() => Some(format!(
            "{file}. If the RDMA device has no on-demand paging: {device}"
        )),
        (Some(file), _) => Some(file),
        (None, device) => device.or_else(|| no_region(dimms, regions)),
    }
}

/// For all locked modules: a region needs each of its modules.
fn unlock(dimms: &[Dimm]) -> Option<String> {
    let locked = dimms.iter().filter(|dimm| dimm.is_locked);
    let names: Vec<&str> = locked.map(|dimm| &*dimm.name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "a passphrase locks {}. As root, with the key of each: ndctl load-keys; ndctl enable-dimm {}; ndctl \
             enable-region all",
            names.join(", "),
            names.join(" ")
        )
    })
}

/// Memory that another use has, or had: each command takes it away from that.
fn of_used(facts: &Facts) -> Option<String> {
    let Pmem {
        regions,
        namespaces,
        ..
    } = &facts.pmem;
    if let Some(dax) = facts.pmem.in_state(DaxState::SystemRam).next() {
        return Some(from_system_ram(dax));
    }
    let is_off = |namespace: &&Namespace| !namespace.is_enabled && !namespace.is_read_only;
    if let Some(namespace) = namespaces.iter().find(is_off) {
        return Some(enable(namespace));
    }
    if let Some(namespace) = convertible(namespaces) {
        return Some(match namespace.uses.is_empty() {
            true => convert(namespace),
            false => in_use(namespace),
        });
    }
    let Region { name, .. } = regions.iter().find(|region| region.is_read_only)?;
    Some(format!(
        "{name} is read-only, and no program can write to it: mend a module with a fault that a line above names, use \
         another host, or make it writable in the settings of its platform"
    ))
}

/// Modules whose memory the platform has put into no region.
fn no_region(dimms: &[Dimm], regions: &[Region]) -> Option<String> {
    let names: Vec<&str> = dimms.iter().map(|dimm| &*dimm.name).collect();
    (regions.is_empty() && !names.is_empty()).then(|| {
        format!(
            "no region has the memory of {}. For Optane, `ipmctl show -memoryresources` shows its use, as root. If the \
             modules had data, look at their slots and the platform's log first. Otherwise make a region in the settings \
             of the platform, which DESTROYS the data on all modules, and takes their memory from the system. For Optane, \
             as root: ipmctl create -goal PersistentMemoryType=AppDirect, and start the host again",
            names.join(", ")
        )
    })
}

/// The states of devices that one command makes usable, and nothing is lost.
const DEVICE_STATES: [DaxState; 3] = [DaxState::NoFile, DaxState::NotLoaded, DaxState::Disabled];

/// For a device that no program can map now. `None` if no command helps.
fn device_remedy(dax: &Dax, facts: &Facts) -> Option<String> {
    let path = dax.path();
    match (dax.state, facts.container) {
        (DaxState::NoFile, Some(container)) => Some(give_path(container, &path)),
        (DaxState::NoFile, None) => Some(format!(
            "the kernel has {path}, and /dev has not: look for udev or for a /dev of your own (PrivateDevices= of a \
             systemd unit)"
        )),
        // Its commands are for the root of the host.
        (_, Some(_)) => None,
        (DaxState::NotLoaded, None) => {
            let load = format!("as root: modprobe device_dax. It makes {path} usable");
            Some(or_other_kernel(facts, "device_dax", load))
        }
        (DaxState::Disabled, None) => Some(format!("as root: daxctl enable-device {}", dax.name)),
        (DaxState::SystemRam, None) => Some(from_system_ram(dax)),
        (DaxState::Usable | DaxState::Empty | DaxState::Gone, None) => None,
    }
}

fn from_system_ram(dax: &Dax) -> String {
    format!(
        "as root, if the kernel can do without this part of its memory: daxctl reconfigure-device --force \
         --mode=devdax {}",
        dax.name
    )
}

/// The namespace that loses the least: not in use, and without a file system before one that can have
/// files.
fn convertible(namespaces: &[Namespace]) -> Option<&Namespace> {
    let can_be = namespaces
        .iter()
        .filter(|namespace| !namespace.is_read_only && namespace.mode != "devdax");
    can_be.min_by_key(|namespace| {
        let files = match namespace.mode {
            "fsdax" => 2,
            "sector" => 1,
            _ => 0,
        };
        (!namespace.uses.is_empty(), files)
    })
}

fn enable(
    Namespace {
        name, mode, size, ..
    }: &Namespace,
) -> String {
    format!(
        "{name} ({mode}, {size} bytes) is disabled. As root: ndctl enable-namespace {name}, which keeps its data. Then \
         run `rpma doctor` again"
    )
}

fn convert(namespace: &Namespace) -> String {
    let Namespace {
        name, mode, size, ..
    } = namespace;
    format!(
        "make a device-DAX out of {name} ({}, {size} bytes). THIS DESTROYS its data. As root: ndctl create-namespace \
         --force --reconfig={name} --mode=devdax",
        mode
    )
}

/// The command would fail with EBUSY, or destroy data that a program uses.
fn in_use(namespace: &Namespace) -> String {
    let Namespace {
        name,
        mode,
        size,
        uses,
        ..
    } = namespace;
    format!(
        "all persistent memory is in use. A device-DAX out of {name} ({}, {size} bytes) needs the end of each use, and \
         loses its data: {}",
        mode,
        uses.join("; ")
    )
}
