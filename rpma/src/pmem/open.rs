//! From a path to a mapping: its kind, its length, and its errors.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::ops::{Bound, Range};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{fstatfs, major, minor};
use rustix::io::Errno;
use rustix::param::page_size;

use super::claim::Node;
use super::mapping::Mapping;
use super::{identity, sysfs};
use crate::error::{Error, Result};
use crate::hints::Hint;
use crate::range;

pub(super) struct Opened {
    pub(super) mapping: Mapping,
    /// The device's place in `/sys/dev`. `None` for memory of a simulated host.
    pub(super) device: Option<String>,
    pub(super) identity: Option<u64>,
}

impl Opened {
    #[cfg(feature = "sim")]
    fn simulated(memory: std::sync::Arc<rpma_sys::Memory>, range: Range<usize>) -> Self {
        let identity = memory.identity().map(|name| crate::site::of_kernel(&name));
        Self {
            mapping: Mapping::simulated(memory, range),
            device: None,
            identity,
        }
    }
}

/// Maps all of the device or file at `path`.
pub(super) fn open(path: &Path, min_len: usize) -> Result<Opened> {
    #[cfg(feature = "sim")]
    if let Some((memory, target)) = simulated(path)? {
        target.check_len(path, min_len)?;
        return Ok(Opened::simulated(memory, 0..target.len()));
    }
    let looked = look(path)?;
    looked.target.check_len(path, min_len)?;
    let len = looked.target.len();
    looked.map(path, 0..len)
}

pub(super) fn open_range(path: &Path, (start, end): (Bound<u64>, Bound<u64>)) -> Result<Opened> {
    #[cfg(feature = "sim")]
    if let Some((memory, target)) = simulated(path)? {
        let range = target.resolve(path, start, end)?;
        return Ok(Opened::simulated(memory, range));
    }
    let looked = look(path)?;
    let range = looked.target.resolve(path, start, end)?;
    looked.map(path, range)
}

/// Memory of a simulated host: a device-DAX device of it.
#[cfg(feature = "sim")]
fn simulated(path: &Path) -> Result<Option<(std::sync::Arc<rpma_sys::Memory>, Target)>> {
    let Some(found) = rpma_sys::memory_at(path) else {
        return Ok(None);
    };
    let memory = found.map_err(|error| path_error("open", path, error))?;
    let target = Target::DeviceDax {
        len: memory.len(),
        align: memory.align(),
    };
    Ok(Some((memory, target)))
}

/// A device or file that was opened.
struct PathLook {
    file: File,
    target: Target,
    device: String,
    identity: Option<u64>,
    node: Node,
}

impl PathLook {
    fn map(self, path: &Path, range: Range<usize>) -> Result<Opened> {
        let mapped = match self.target {
            Target::DeviceDax { .. } => Mapping::device_dax(self.file, self.node, range),
            Target::File { .. } => Mapping::file(self.file, self.node, range),
        };
        Ok(Opened {
            mapping: mapped.map_err(|errno| path_error("mmap", path, errno.into()))?,
            device: Some(self.device),
            identity: self.identity,
        })
    }
}

/// Opens it, and looks at its kind and its device.
fn look(path: &Path) -> Result<PathLook> {
    // Merely opening some devices does something (a watchdog, a tape), so look first.
    let found = fs::metadata(path).map_err(|error| path_error("stat", path, error))?;
    Target::new(path, &found)?;

    let file = open_file(path)?;
    let opened = file
        .metadata()
        .map_err(|error| path_error("fstat", path, error))?;
    let mut target = Target::new(path, &opened)?;
    if let Target::File { huge, .. } = &mut target {
        let system = fstatfs(&file).map_err(|errno| path_error("fstatfs", path, errno.into()))?;
        // Pages of up to a gigabyte, from the file system's own numbers.
        if system.f_type as i64 == HUGETLBFS {
            *huge = usize::try_from(system.f_bsize).ok();
        }
    }
    let device = match target {
        Target::DeviceDax { .. } => ("char", opened.rdev()),
        Target::File { .. } => ("block", opened.dev()),
    };
    let (kind, number) = device;
    let device = format!("{kind}/{}:{}", major(number), minor(number));
    let identity = match target {
        Target::DeviceDax { .. } => identity::of_device(Path::new("/sys"), &device),
        Target::File { .. } => identity::of_file(&file, &opened),
    };
    let node = Node {
        device: opened.dev(),
        inode: opened.ino(),
    };
    Ok(PathLook {
        file,
        target,
        device,
        identity,
        node,
    })
}

/// A target of a mapping, with its length in bytes, and the alignment of its mappings.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    DeviceDax {
        len: usize,
        align: usize,
    },
    /// The alignment is that of hugetlbfs. Its mappings also end at multiples of it; others begin
    /// at pages.
    File {
        len: usize,
        huge: Option<usize>,
    },
}

/// `HUGETLBFS_MAGIC` of the kernel's `linux/magic.h`.
const HUGETLBFS: i64 = 0x9584_58f6;

impl Target {
    fn new(path: &Path, metadata: &Metadata) -> Result<Self> {
        let file_type = metadata.file_type();
        if file_type.is_file() {
            let len = file_len(path, metadata.len())?;
            return Ok(Self::File { len, huge: None });
        }
        if file_type.is_char_device() {
            let (major, minor) = (major(metadata.rdev()), minor(metadata.rdev()));
            let sysfs = Path::new("/sys");
            let (len, align) = sysfs::dax_len_and_align(sysfs, path, major, minor)?;
            return Ok(Self::DeviceDax { len, align });
        }
        Err(wrong_type(path, file_type))
    }

    fn check_len(&self, path: &Path, min_len: usize) -> Result<()> {
        let path = path.display();
        match *self {
            Self::File { len: 0, .. } => Err(Error::invalid(format!(
                "the file {path} is empty: give it a size first (fallocate -l SIZE {path})"
            ))),
            Self::File { len, .. } if len < min_len => Err(Error::invalid(format!(
                "the file {path} has {len} bytes, but {min_len} are needed: make it larger \
                 (fallocate -l {min_len} {path}) or ask for less"
            ))),
            Self::DeviceDax { len, .. } if len < min_len => Err(Error::invalid(format!(
                "the device {path} has {len} bytes that can be mapped, but {min_len} are needed: \
                 make its namespace larger (ndctl create-namespace --size) or ask for less"
            ))),
            _ => Ok(()),
        }
    }

    fn len(&self) -> usize {
        match *self {
            Self::DeviceDax { len, .. } | Self::File { len, .. } => len,
        }
    }

    /// The range, if it can be mapped.
    fn resolve(&self, path: &Path, start: Bound<u64>, end: Bound<u64>) -> Result<Range<usize>> {
        let len = self.len();
        let (start, end) = range::ends(start, end, len as u64);
        if start >= end || end > len as u64 {
            if start > end {
                return Err(Error::invalid(format!(
                    "the range {start}..{end} of {} ends before it begins",
                    path.display()
                )));
            }
            return Err(if start == end && end <= len as u64 {
                Error::invalid(format!("a range of 0 bytes of {}", path.display()))
            } else {
                Error::invalid(format!(
                    "the range {start}..{end} is not inside {}, of which {len} bytes can be mapped",
                    path.display()
                ))
            });
        }
        // Not more than `len`, so that they fit.
        let (start, end) = (start as usize, end as usize);
        let (align, whole) = match *self {
            Self::DeviceDax { align, .. } => (align, true),
            Self::File {
                huge: Some(align), ..
            } => (align, true),
            // A mapping ends where it is asked to.
            Self::File { huge: None, .. } => (page_size(), false),
        };
        if start % align == 0 && (!whole || end % align == 0) {
            return Ok(start..end);
        }
        let (down, up) = (start - start % align, start.next_multiple_of(align));
        let (inner, outer) = if whole {
            (end - end % align, end.next_multiple_of(align))
        } else {
            (end, end)
        };
        let inside = if up < inner {
            format!(", and so can {up}..{inner} inside the range")
        } else {
            String::new()
        };
        Err(Error::invalid(format!(
            "the range {start}..{end} of {} cannot be mapped: its alignment is {align}. \
             {down}..{outer} can be mapped{inside}. PmemMap::part takes any part of a map",
            path.display(),
        )))
    }
}

fn open_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| path_error("open", path, error))
}

fn file_len(path: &Path, len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| {
        Error::invalid(format!(
            "the file {} has {len} bytes, more than this machine can address",
            path.display()
        ))
    })
}

fn wrong_type(path: &Path, file_type: FileType) -> Error {
    let path = path.display();
    let text = if file_type.is_dir() {
        format!("{path} is a directory: name a file in it, or a device such as /dev/dax0.0")
    } else if file_type.is_block_device() {
        format!(
            "{path} is a block device: make a file system on it, mount that with -o dax and name a \
             file there, or turn the namespace into a device-DAX device (ndctl create-namespace \
             --force --mode=devdax --reconfig=NAMESPACE, which erases it)"
        )
    } else {
        format!("{path} is a pipe or a socket: name a file, or a device such as /dev/dax0.0")
    };
    Error::invalid(text)
}

/// A failed system call, with the path, and with a remedy if one is known.
fn path_error(call: &'static str, path: &Path, error: io::Error) -> Error {
    let hint = error
        .raw_os_error()
        .map(Errno::from_raw_os_error)
        .and_then(|errno| hint(call, errno));
    let text = format!("{}: {error}", path.display());
    let error = Error::provider(call, io::Error::new(error.kind(), text));
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn hint(call: &str, errno: Errno) -> Option<Hint> {
    Some(match errno {
        Errno::NOENT => &[
            "Nothing is created here",
            "create the file first (fallocate -l SIZE FILE), or name a device such as /dev/dax0.0 (`ndctl list` shows \
             which there are)",
        ],
        Errno::ACCESS | Errno::PERM => &[
            "It is mapped for reading and writing",
            "this user needs both rights, and the right to enter the directory",
        ],
        Errno::ROFS => &[
            "It is mapped for writing",
            "the file system must be mounted writable",
        ],
        Errno::NXIO => &[
            "No driver lets programs map the device: a device-DAX in the mode system-ram belongs to the kernel",
            "look at its mode (`daxctl list`), which must be devdax",
        ],
        Errno::NODEV | Errno::INVAL if call == "mmap" => &[
            "This file system does not share its files with memory (9p without a cache does not)",
            "use another one",
        ],
        Errno::NOMEM => &[
            "There is no room for it in the address space, or the process has too many mappings",
            "see `ulimit -v` and vm.max_map_count",
        ],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_names_the_path_and_the_remedy() {
        let denied = path_error("open", Path::new("/dev/dax0.0"), Errno::ACCESS.into());
        let text = denied.to_string();
        assert!(
            text.starts_with("open failed: /dev/dax0.0: Permission denied"),
            "{text}"
        );
        assert!(text.contains("needs both rights"), "{text}");
        assert_eq!(
            io::Error::from(denied).kind(),
            io::ErrorKind::PermissionDenied
        );
    }

    #[test]
    fn a_small_device_names_both_sizes_and_the_remedy() {
        let device = Target::DeviceDax {
            len: 4096,
            align: 4096,
        };
        let error = device.check_len(Path::new("/dev/dax0.0"), 8192);
        let text = error.unwrap_err().to_string();
        for part in ["/dev/dax0.0", "4096", "8192", "ndctl"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(device.check_len(Path::new("/dev/dax0.0"), 4096).is_ok());
    }

    #[test]
    fn a_range_that_is_not_aligned_names_the_nearest_ones() {
        const MIB: u64 = 1 << 20;
        let device = Target::DeviceDax {
            len: 64 << 20,
            align: 2 << 20,
        };
        let resolve = |target: &Target, start, end| {
            let path = Path::new("/dev/dax0.0");
            target.resolve(path, Bound::Included(start), Bound::Excluded(end))
        };
        assert_eq!(
            resolve(&device, 4 * MIB, 8 * MIB).unwrap(),
            4 << 20..8 << 20
        );
        for (start, end, nearest) in [
            (
                MIB,
                7 * MIB,
                "is 2097152. 0..8388608 can be mapped, and so can 2097152..6291456 inside",
            ),
            (
                MIB,
                2 * MIB,
                "alignment is 2097152. 0..2097152 can be mapped.",
            ),
            (0, MIB, "alignment is 2097152. 0..2097152 can be mapped."),
            (5, 5, "0 bytes of /dev/dax0.0"),
            (
                0,
                64 * MIB + 1,
                "is not inside /dev/dax0.0, of which 67108864 bytes",
            ),
            (8, 4, "8..4 of /dev/dax0.0 ends before it begins"),
        ] {
            let text = resolve(&device, start, end).unwrap_err().to_string();
            assert!(text.contains(nearest), "{text}");
        }
        let page = page_size() as u64;
        let file = Target::File {
            len: 10 * page as usize,
            huge: None,
        };
        assert!(resolve(&file, page, 3 * page + 5).is_ok());
        let text = resolve(&file, page + 1, 4 * page).unwrap_err().to_string();
        let nearest = format!(
            "{page}..{} can be mapped, and so can {}..",
            4 * page,
            2 * page
        );
        assert!(text.contains(&nearest), "{text}");
        // On hugetlbfs both ends count.
        let huge = Target::File {
            len: 8 << 20,
            huge: Some(2 << 20),
        };
        assert!(resolve(&huge, 2 * MIB, 4 * MIB).is_ok());
        let text = resolve(&huge, 0, 4096).unwrap_err().to_string();
        assert!(
            text.contains("its alignment is 2097152. 0..2097152 can be mapped."),
            "{text}"
        );
    }
}
