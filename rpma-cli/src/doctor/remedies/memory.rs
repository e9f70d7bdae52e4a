//! The remedies for memory, by the drivers and the modes that this host has. None loses data if another
//! one can help.

use super::{LOG, PAGE, give_path};
use crate::facts::{Container, Dax, DaxState, Facts, Mode, Namespace, Pmem, Region};

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
    if let Some(remedy) = of_device {
        return remedy;
    }
    if facts.container.is_some() {
        return format!(
            "look for persistent memory on the host of the container, and give it to the container. {PAGE} has a guest \
             machine for tests"
        );
    }
    of_regions(facts).unwrap_or_else(|| {
        let is_failed = |dax: &Dax| failed == Some(&*dax.path());
        if pmem.in_state(DaxState::Usable).any(is_failed) {
            return LOG.into();
        }
        format!(
            "this host has no persistent memory: use a host that has some. {PAGE} has a guest machine for tests"
        )
    })
}

/// The remedy that the regions and namespaces have. The ones that lose data come last.
fn of_regions(facts: &Facts) -> Option<String> {
    let Pmem {
        regions,
        namespaces,
        ..
    } = &facts.pmem;
    let is_off = |namespace: &&Namespace| namespace.mode == Mode::DevDax && !namespace.is_enabled;
    if let Some(Namespace { name, .. }) = namespaces.iter().find(is_off) {
        return Some(format!(
            "as root: ndctl enable-namespace {name}. It makes a device-DAX"
        ));
    }
    if let Some(Region { name, .. }) = regions.iter().find(|region| region.has_space()) {
        return Some(format!(
            "as root: ndctl create-namespace --mode=devdax --region={name}. It makes a device-DAX"
        ));
    }
    if let Some(Region { name, .. }) = regions.iter().find(|region| !region.is_enabled) {
        return Some(format!("as root: ndctl enable-region {name}"));
    }
    if let Some(dax) = facts.pmem.in_state(DaxState::SystemRam).next() {
        return Some(from_system_ram(dax));
    }
    if let Some(namespace) = convertible(namespaces) {
        return Some(convert(namespace));
    }
    let Region { name, .. } = regions.iter().find(|region| region.is_read_only)?;
    Some(format!(
        "{name} is read-only, and no program can write to it: use another host, or make it writable in the settings of \
         its platform"
    ))
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

/// The namespace that loses the least: not mounted, and without a file system before one that can
/// have files.
fn convertible(namespaces: &[Namespace]) -> Option<&Namespace> {
    let can_be = namespaces
        .iter()
        .filter(|namespace| !namespace.is_read_only && namespace.mode != Mode::DevDax);
    can_be.min_by_key(|namespace| {
        let files = match namespace.mode {
            Mode::Raw | Mode::DevDax => 0,
            Mode::Sector => 1,
            Mode::FsDax => 2,
        };
        (namespace.mounted.is_some(), files)
    })
}

fn convert(namespace: &Namespace) -> String {
    let Namespace {
        name, mode, size, ..
    } = namespace;
    let unmount = namespace.mounted.as_ref();
    let unmount = unmount.map_or_else(String::new, |place| format!("umount {place}; "));
    format!(
        "make a device-DAX out of {name} ({}, {size} bytes), if its contents may be lost. As root: {unmount}ndctl \
         create-namespace --force --reconfig={name} --mode=devdax",
        mode.name()
    )
}
