//! Who uses the block device of a namespace: file systems, LVM and other devices made of it, swap. A
//! command that changes a device in use fails, or takes the data away.

use super::Files;

const BLOCK: &str = "sys/class/block";

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

/// The uses of a block device, of its partitions, and of the devices that are made of them, in words;
/// and the mounts among them.
pub(super) fn uses(files: &Files, block: &str) -> (Vec<String>, Vec<Mount>) {
    let (mut names, mut uses) = (vec![block.to_owned()], Vec::new());
    // The name that device-mapper shows, such as `vg0-log` for `dm-0`.
    let mapped = |name: &String| files.word(format!("{BLOCK}/{name}/dm/name"));
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        next += 1;
        let mut holders = files.names(format!("{BLOCK}/{name}/holders"));
        holders.retain(|holder| !names.contains(holder));
        let used = |holder| mapped(holder).unwrap_or(holder.clone());
        let used = holders
            .iter()
            .map(|holder| format!("the device {} is made of it", used(holder)));
        uses.extend(used);
        let mut parts = files.names(format!("{BLOCK}/{name}"));
        parts.retain(|part| files.exists(format!("{BLOCK}/{name}/{part}/partition")));
        names.extend(holders.into_iter().chain(parts));
    }
    let of_mapper = names
        .iter()
        .filter_map(|name| Some(format!("mapper/{}", mapped(name)?)));
    let paths: Vec<String> = names.iter().cloned().chain(of_mapper).collect();
    let is_used = |path: &str| {
        paths
            .iter()
            .any(|name| path.strip_prefix("/dev/") == Some(name))
    };
    let swaps = files.lines("proc/swaps").into_iter().flatten();
    // A line of the table is `/dev/pmem0p2 partition 1048572 0 -2`, after a head.
    let swaps = swaps.filter_map(|line| Some(unescaped(line.split_whitespace().next()?)));
    uses.extend(
        swaps
            .filter(|path| is_used(path))
            .map(|path| format!("{path} is swap")),
    );
    let mut mounts = mounts(files);
    mounts.retain(|mount| is_used(&mount.source));
    uses.extend(
        mounts
            .iter()
            .map(|mount| format!("{} is mounted on {}", mount.source, mount.place)),
    );
    (uses, mounts)
}

/// A line of the table is `/dev/pmem0 /mnt ext4 rw,dax=always 0 0`.
fn mounts(files: &Files) -> Vec<Mount> {
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

/// A text of these tables, which have octal numbers for blanks and backslashes.
fn unescaped(text: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let text = text.to_owned();
    escapes
        .iter()
        .fold(text, |text, (escape, char)| text.replace(escape, char))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

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
        let of = |block: &str| uses(&Files::new(tree.path()), block).0;
        assert_eq!(
            of("pmem0"),
            [
                "the device vg0-log is made of it",
                "the device md0 is made of it",
                "/dev/pmem0p2 is swap",
                "/dev/mapper/vg0-log is mounted on /srv/my log",
                "/dev/mapper/vg0-log is mounted on /second",
            ]
        );
        assert!(of("pmem1").is_empty());
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
    fn escapes_are_characters() {
        for (text, plain) in [
            ("/a\\040b\\011c", "/a b\tc"),
            ("\\134", "\\"),
            ("/a\\04", "/a\\04"),
            ("/\\134040ü", "/\\040ü"),
            ("/\\999x", "/\\999x"),
        ] {
            assert_eq!(unescaped(text), plain);
        }
    }
}
