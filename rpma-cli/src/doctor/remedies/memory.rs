//! The remedies for memory, by the drivers and the modes that this host has. None loses data if another
//! one can help.

use super::{LOG, PAGE, give_path};
use crate::facts::{Container, Dax, DaxState, Facts, Mode, Namespace};

/// For memory that is not persistent or not there: the best that this host has. `doctor` is the
/// command, up to the path of the memory. `failed` is a path that was tried.
pub(in crate::doctor) fn other_memory(facts: &Facts, doctor: &str, failed: Option<&str>) -> String {
    let pmem = &facts.pmem;
    let usable = pmem.in_state(DaxState::Usable).map(Dax::path);
    let usable: Vec<String> = usable.filter(|path| failed != Some(path)).collect();
    if let [path, others @ ..] = &usable[..] {
        return match others {
            [] => format!("{doctor} {path}"),
            others => format!("{doctor} {path} (or {})", others.join(", ")),
        };
    }
    let of_device = DEVICE_STATES.iter().find_map(|state| {
        let device = pmem.in_state(*state).next()?;
        device_remedy(device, facts.container)
    });
    let space = || pmem.regions.iter().find(|region| region.has_space());
    let system_ram = || pmem.in_state(DaxState::SystemRam).next();
    let off = || {
        pmem.namespaces
            .iter()
            .find(|namespace| namespace.mode == Mode::DevDax && !namespace.is_enabled)
    };
    if let Some(remedy) = of_device {
        remedy
    } else if facts.container.is_some() {
        format!(
            "look for persistent memory on the host of the container, and give it to the container. {PAGE} has a \
                 guest machine for tests"
        )
    } else if let Some(namespace) = off() {
        format!(
            "as root: ndctl enable-namespace {}. It makes a device-DAX",
            namespace.name
        )
    } else if let Some(region) = space() {
        format!(
            "as root: ndctl create-namespace --mode=devdax --region={}. It makes a device-DAX",
            region.name
        )
    } else if let Some(namespace) = convertible(&pmem.namespaces) {
        convert(namespace)
    } else if let Some(dax) = system_ram() {
        from_system_ram(dax)
    } else if let Some(region) = pmem.regions.iter().find(|region| !region.is_enabled) {
        format!("as root: ndctl enable-region {}", region.name)
    } else if let Some(region) = pmem.regions.iter().find(|region| region.is_read_only) {
        format!(
            "{} is read-only, and no program can write to it: use another host, or make it writable in the \
                 settings of its platform",
            region.name
        )
    } else if failed.is_some_and(|path| {
        pmem.in_state(DaxState::Usable)
            .any(|dax| dax.path() == path)
    }) {
        LOG.into()
    } else {
        format!(
            "this host has no persistent memory: use a host that has some. {PAGE} has a guest machine for tests"
        )
    }
}

/// The states of devices that one command makes usable, and nothing is lost.
const DEVICE_STATES: [DaxState; 3] = [DaxState::NoFile, DaxState::NotLoaded, DaxState::Disabled];

/// For a device that no program can map now. `None` if no command helps.
pub(in crate::doctor) fn device_remedy(dax: &Dax, container: Option<Container>) -> Option<String> {
    let path = dax.path();
    match (dax.state, container) {
        (DaxState::NoFile, Some(container)) => Some(give_path(container, &path)),
        (DaxState::NoFile, None) => Some(format!(
            "the kernel has {path}, and /dev has not: look for udev or for a /dev of your own"
        )),
        // Its commands are for the root of the host.
        (_, Some(_)) => None,
        (DaxState::NotLoaded, None) => Some(format!(
            "as root: modprobe device_dax. It makes {path} usable"
        )),
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

/// The namespace that loses the least: without a file system before one that can have files.
fn convertible(namespaces: &[Namespace]) -> Option<&Namespace> {
    let can_be = namespaces
        .iter()
        .filter(|namespace| !namespace.is_read_only && namespace.mode != Mode::DevDax);
    can_be.min_by_key(|namespace| match namespace.mode {
        Mode::Raw | Mode::DevDax => 0,
        Mode::Sector => 1,
        Mode::FsDax => 2,
    })
}

fn convert(namespace: &Namespace) -> String {
    let Namespace {
        name, mode, size, ..
    } = namespace;
    format!(
        "make a device-DAX out of {name} ({}, {size} bytes), if its contents may be lost. As root: ndctl \
         create-namespace --force --reconfig={name} --mode=devdax",
        mode.name()
    )
}
