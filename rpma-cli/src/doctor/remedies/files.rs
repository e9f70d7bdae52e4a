//! Files on persistent memory, which a device with on-demand paging can register. They need a file
//! system that maps without a page cache (DAX), and no command for them destroys data.

use std::path::Path;

use super::memory::Wanted;
use crate::facts::{Facts, Mount, Namespace};

fn namespaces(facts: &Facts) -> impl Iterator<Item = &Namespace> {
    let namespaces = facts.pmem.namespaces.iter();
    namespaces.filter(|of| of.mode == "fsdax" && of.is_enabled && !of.is_read_only)
}

/// A file system with DAX.
fn on_dax(facts: &Facts) -> Option<&Mount> {
    let mut mounts = namespaces(facts).flat_map(|of| &of.mounts);
    mounts.find(|mount| mount.is_dax)
}

/// The best file system for a file: with DAX, mounted without it, or not mounted.
pub(super) fn remedy(facts: &Facts, wanted: &Wanted<'_>) -> Option<String> {
    if wanted.takes_files == Some(false) || facts.container.is_some() {
        return None;
    }
    let doctor = &wanted.doctor;
    if let Some(Mount { place, .. }) = on_dax(facts) {
        return Some(format!(
            "name a file on {place}: {doctor} {}",
            quoted(&format!("{place}/FILE"))
        ));
    }
    let with_dax = namespaces(facts).find_map(mount_with_dax);
    with_dax.or_else(|| namespaces(facts).find_map(|of| mount(of, doctor)))
}

/// The option needs a mount of its own: `remount` is refused. Each place counts.
fn mount_with_dax(namespace: &Namespace) -> Option<String> {
    let Mount { source, place, .. } = namespace
        .mounts
        .iter()
        .find(|mount| mount.can_be_dax && mount.place != "/")?;
    let places = namespace
        .mounts
        .iter()
        .filter(|mount| mount.source == *source);
    let unmount: Vec<_> = places
        .map(|mount| format!("umount {}; ", quoted(&mount.place)))
        .collect();
    Some(format!(
        "{place} is mounted without DAX. As root, when no program uses it: {}mount -o dax {source} {}. Its files stay. \
         Then name one of them with --memory, and add dax to the options in /etc/fstab",
        unmount.concat(),
        quoted(place)
    ))
}

fn mount(namespace: &Namespace, doctor: &str) -> Option<String> {
    let block = namespace
        .block
        .as_ref()
        .filter(|_| namespace.uses.is_empty())?;
    Some(format!(
        "as root: blkid /dev/{block}. If it shows neither ext4 nor xfs: mkfs.xfs /dev/{block}, which DESTROYS other data \
         there. Then mount -o dax /dev/{block} /mnt, and {doctor} /mnt/FILE, where FILE has a size (fallocate)"
    ))
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/._-+@%:=,".contains(char);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// For a directory or an empty file on a file system with DAX.
pub(in crate::doctor) fn file_with_size(
    facts: &Facts,
    wanted: &Wanted<'_>,
    path: &Path,
) -> Option<String> {
    let mut mounts = namespaces(facts).flat_map(|of| &of.mounts);
    mounts
        .find(|mount| mount.is_dax && path.starts_with(&mount.place))
        .filter(|_| wanted.takes_files != Some(false))?;
    let (name, file) = match path.is_dir() {
        true => ("name a file in it, which has a size", path.join("FILE")),
        false => ("give it a size", path.to_owned()),
    };
    let file = quoted(&file.display().to_string());
    Some(format!(
        "{name}: fallocate -l SIZE {file}; {} {file}",
        wanted.doctor
    ))
}
