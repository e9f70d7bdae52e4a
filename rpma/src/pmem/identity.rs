//! The identity of a mapped device or file: it stays over a reboot, and is no path.

#![expect(unsafe_code, reason = "an ioctl")]

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::fstatfs;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

use super::PmemMap;
use crate::site::{Site, of_kernel, uuid};

impl Site {
    /// Reads the identities of this memory and of its host. A part of a map has the identity of the
    /// whole device or file.
    #[must_use]
    pub fn of(memory: &PmemMap) -> Self {
        Self {
            memory: memory.identity(),
            host: memory.host(),
            ..Self::default()
        }
    }
}

/// The places of the namespace's UUID, relative to the device's directory in sysfs: of the bus
/// `dax`, and of the class `dax`.
const UUID: [&str; 2] = ["../uuid", "device/uuid"];

/// The links of udev from the UUID of a file system to its block device.
const BY_UUID: &str = "/dev/disk/by-uuid";

/// `struct fsuuid2` of the kernel's `linux/fs.h`: a length and up to 16 bytes.
type FsUuid = [u8; 17];

/// `FS_IOC_GETFSUUID` of the kernel's `linux/fs.h`, since Linux 6.9.
const FS_IOC_GETFSUUID: Opcode = opcode::read::<FsUuid>(0x15, 0);

/// The identity of the device-DAX device with this place in `/sys/dev`: the UUID of its namespace.
pub(super) fn of_device(sysfs: &Path, device: &str) -> Option<u64> {
    let directory = sysfs.join("dev").join(device);
    let read = |place: &&str| uuid(&fs::read_to_string(directory.join(place)).ok()?);
    let found = UUID.iter().find_map(read)?;
    Some(of_kernel(&found))
}

/// `BTRFS_SUPER_MAGIC` of the kernel's `linux/magic.h`, and bcachefs' number: files of two
/// subvolumes may have the same inode there.
const WITH_SUBVOLUMES: [i64; 2] = [0x9123_683E, 0xCA45_1A4E];

/// The identity of a file: the UUID of its file system, and its inode.
pub(super) fn of_file(file: &File, found: &Metadata) -> Option<u64> {
    let kind = fstatfs(file).ok()?.f_type as i64;
    if WITH_SUBVOLUMES.contains(&kind) {
        return None;
    }
    let system = uuid_of_system(file).or_else(|| uuid_by_link(Path::new(BY_UUID), found.dev()))?;
    let inode = found.ino().to_le_bytes();
    Some(of_kernel(&[&system[..], &inode].concat()))
}

fn uuid_of_system(file: &File) -> Option<[u8; 16]> {
    // SAFETY: the kernel writes a `struct fsuuid2` for this number, whose size is in the number, or
    // fails. It reads nothing.
    let getter = unsafe { Getter::<FS_IOC_GETFSUUID, FsUuid>::new() };
    // SAFETY: as above.
    let found = unsafe { ioctl(file, getter) }.ok()?;
    // Some file systems have a shorter number, which is no UUID.
    let is_uuid = found[0] == 16 && found[1..] != [0; 16];
    is_uuid.then(|| std::array::from_fn(|at| found[at + 1]))
}

/// The UUID that leads to this block device.
fn uuid_by_link(links: &Path, device: u64) -> Option<[u8; 16]> {
    let mut links = fs::read_dir(links).ok()?.flatten();
    let found = links.find(|link| {
        let target = fs::metadata(link.path());
        target.is_ok_and(|target| target.rdev() == device)
    })?;
    uuid(found.file_name().to_str()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const DEVICE: &str = "devices/ndbus0/region0/dax0.0";

    /// A sysfs with the device 252:0, and this file.
    fn sysfs(name: &str, uuid: &str) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let device = sysfs.path().join(DEVICE).join("dax0.0");
        for made in [&device, &sysfs.path().join("dev/char")] {
            fs::create_dir_all(made).unwrap();
        }
        let target = Path::new("../..").join(DEVICE).join("dax0.0");
        symlink(target, sysfs.path().join("dev/char/252:0")).unwrap();
        symlink("..", device.join("device")).unwrap();
        fs::write(device.join(name), uuid).unwrap();
        sysfs
    }

    /// Promise: a namespace has the identity of its UUID. A namespace without a UUID has no
    /// identity, instead of a constant.
    #[test]
    fn a_device_has_the_uuid_of_its_namespace() {
        const UUID: &str = "2fbb4ae6-2ee0-4a9c-9ae5-0e8a3d2b6ac1\n";
        let of = |name, uuid| of_device(sysfs(name, uuid).path(), "char/252:0");
        let bus = of("../uuid", UUID);
        let bytes = uuid(UUID).unwrap();
        assert_eq!(bus, Some(of_kernel(&bytes)));
        assert_ne!(bus, of("../uuid", "2fbb4ae6-2ee0-4a9c-9ae5-0e8a3d2b6ac2\n"));
        for uuid in ["\n", "", "00000000-0000-0000-0000-000000000000\n"] {
            assert_eq!(of("../uuid", uuid), None, "{uuid}");
        }
        assert_eq!(of("size", UUID), None);
    }

    /// Promise: the links of udev are followed to the block device.
    #[test]
    fn a_file_system_is_found_by_its_link() {
        let links = tempfile::tempdir().unwrap();
        const UUID: &str = "2fbb4ae6-2ee0-4a9c-9ae5-0e8a3d2b6ac1";
        symlink("/dev/null", links.path().join(UUID)).unwrap();
        symlink("/dev/zero", links.path().join("1234-ABCD")).unwrap();
        let number = |path| fs::metadata(path).unwrap().rdev();
        let null = number("/dev/null");
        assert_eq!(uuid_by_link(links.path(), null), uuid(UUID));
        // The number of a FAT is no UUID.
        assert_eq!(uuid_by_link(links.path(), number("/dev/zero")), None);
        assert_eq!(uuid_by_link(links.path(), u64::MAX), None);
        assert_eq!(uuid_by_link(&links.path().join("none"), null), None);
    }

    /// Promise: two files have two identities, and a file that is opened by another name has its
    /// own.
    #[test]
    fn a_file_has_an_identity_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("one"), "1").unwrap();
        fs::write(path("other"), "2").unwrap();
        fs::hard_link(path("one"), path("same")).unwrap();
        let of = |name: &str| {
            let file = File::open(path(name)).unwrap();
            of_file(&file, &file.metadata().unwrap())
        };
        assert_eq!(of("one"), of("same"));
        // A file system without a UUID gives none.
        assert!(of("one") != of("other") || of("one").is_none());
    }
}
