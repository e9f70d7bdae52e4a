//! Who uses the block device of a namespace: file systems, LVM and other devices made of it, swap. A
//! command that changes a device in use fails, or takes the data away.

use super::Files;

const BLOCK: &str = "sys/class/block";

/// A use of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Mount(Mount),
    /// A block device that is made of it, such as a volume of LVM: its name.
    Holder(String),
    /// Its path.
    Swap(String),
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The path of the block device.
    pub(crate) source: String,
    pub(crate) place: String,
    /// Whether its files are mapped without a page cache. Without the option, a file may still be.
    pub(crate) is_dax: bool,
    /// Whether file systems of its kind can be mounted so.
    pub(crate) can_be_dax: bool,
}

/// The uses of a block device, of its partitions, and of the devices that are made of them.
pub(super) fn uses(files: &Files, block: &str) -> Vec<Use> {
    let (mut names, mut uses) = (vec![block.to_owned()], Vec::new());
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        next += 1;
        for holder in files.names(format!("{BLOCK}/{name}/holders")) {
            if !names.contains(&holder) {
                uses.push(Use::Holder(
                    of_mapper(files, &holder).unwrap_or(holder.clone()),
                ));
                names.push(holder);
            }
        }
        let mut parts = files.names(format!("{BLOCK}/{name}"));
        parts.retain(|part| files.exists(format!("{BLOCK}/{name}/{part}/partition")));
        names.extend(parts);
    }
    let of_mapper = names
        .iter()
        .filter_map(|name| Some(format!("mapper/{}", of_mapper(files, name)?)));
    let paths: Vec<String> = names
        .iter()
        .cloned()
        .chain(of_mapper)
        .map(|name| format!("/dev/{name}"))
        .collect();
    uses.extend(swaps(files, &paths));
    uses.extend(
        mounts(files)
            .into_iter()
            .filter(|mount| paths.contains(&mount.source))
            .map(Use::Mount),
    );
    uses
}

/// The name that device-mapper shows, such as `vg0-log` for `dm-0`.
fn of_mapper(files: &Files, name: &str) -> Option<String> {
    files.word(format!("{BLOCK}/{name}/dm/name"))
}

/// A line of the table is `/dev/pmem0p2 partition 1048572 0 -2`, after a head.
fn swaps(files: &Files, paths: &[String]) -> Vec<Use> {
    let lines = files.lines("proc/swaps").into_iter().flatten();
    let path = |line: String| Some(unescaped(line.split_whitespace().next()?));
    lines
        .filter_map(path)
        .filter(|path| paths.contains(path))
        .map(Use::Swap)
        .collect()
}

/// A line of the table is `/dev/pmem0 /mnt ext4 rw,dax=always 0 0`.
pub(super) fn mounts(files: &Files) -> Vec<Mount> {
    let lines = files.lines("proc/self/mounts").into_iter().flatten();
    let mount = |line: String| {
        let mut fields = line.split(' ');
        let (source, place) = (fields.next()?, fields.next()?);
        let (kind, mut options) = (fields.next()?, fields.next()?.split(','));
        Some(Mount {
            source: unescaped(source),
            place: unescaped(place),
            is_dax: options.any(|option| matches!(option, "dax" | "dax=always")),
            can_be_dax: matches!(kind, "ext2" | "ext4" | "xfs"),
        })
    };
    lines.filter_map(mount).collect()
}

/// A text of these tables: a blank is `\040`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let number = match rest {
            [b'\\', digits @ ..] => digits.get(..3).and_then(octal),
            _ => None,
        };
        bytes.push(number.unwrap_or(*first));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into()
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    fn mount(source: &str, place: &str) -> Use {
        Use::Mount(Mount {
            source: source.into(),
            place: place.into(),
            is_dax: false,
            can_be_dax: true,
        })
    }

    /// Promise: no use is overlooked, at whichever level.
    #[test]
    fn uses_are_those_of_all_levels() -> io::Result<()> {
        let tree = tree(&[
            ("sys/class/block/pmem0/pmem0p1/partition", "1"),
            ("sys/class/block/pmem0/pmem0p2/partition", "2"),
            ("sys/class/block/pmem0/queue/", ""),
            ("sys/class/block/pmem0p1/holders/dm-0/", ""),
            ("sys/class/block/dm-0/dm/name", "vg0-log"),
            ("sys/class/block/dm-0/holders/md0/", ""),
            (
                "proc/swaps",
                "Filename Type Size Used Priority\n/dev/pmem0p2 partition 4 0 -2\n/dev/sda2 partition 4 0 -2\n",
            ),
            (
                "proc/self/mounts",
                "/dev/sda1 / ext4 rw 0 0\n\
                 /dev/mapper/vg0-log /srv/my\\040log xfs rw 0 0\n\
                 /dev/mapper/vg0-log /second xfs rw 0 0\n\
                 /dev/pmem0p10 /other ext4 rw 0 0\n\
                 /dev/md0\n",
            ),
        ])?;
        let of = |block: &str| uses(&Files::new(tree.path()), block);
        assert_eq!(
            of("pmem0"),
            [
                Use::Holder("vg0-log".into()),
                Use::Holder("md0".into()),
                Use::Swap("/dev/pmem0p2".into()),
                mount("/dev/mapper/vg0-log", "/srv/my log"),
                mount("/dev/mapper/vg0-log", "/second"),
            ]
        );
        assert_eq!(of("pmem1"), []);
        Ok(())
    }

    #[test]
    fn dax_is_an_option_of_a_mount() -> io::Result<()> {
        for (line, found) in [
            ("xfs rw,dax=always", (true, true)),
            ("ext4 rw,dax", (true, true)),
            ("ext4 rw,dax=never", (false, true)),
            ("ext4 rw,x-dax", (false, true)),
            ("btrfs rw", (false, false)),
        ] {
            let line = format!("/dev/pmem0 /mnt {line} 0 0\n");
            let tree = tree(&[("proc/self/mounts", &line)])?;
            let mounts = mounts(&Files::new(tree.path()));
            assert_eq!((mounts[0].is_dax, mounts[0].can_be_dax), found, "{line}");
        }
        Ok(())
    }

    #[test]
    fn escapes_are_bytes() {
        for (text, plain) in [
            ("/a\\040b\\011c", "/a b\tc"),
            ("\\134", "\\"),
            ("/a\\04", "/a\\04"),
            ("/\\303\\274", "/ü"),
            ("/\\999x", "/\\999x"),
        ] {
            assert_eq!(unescaped(text), plain);
        }
    }
}
