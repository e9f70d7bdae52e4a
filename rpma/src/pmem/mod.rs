//! Persistent memory, mapped and made durable.
//!
//! A program needs this module to offer persistent memory to a remote host, and to make data that
//! was stored in this memory durable. [`PmemMap`] maps a device-DAX device, a file on a DAX file
//! system or any other file, and reports its kind ([`PmemKind`]). Its
//! [`persist`](PmemMap::persist) uses the method of that kind:
//!
//! | kind | `persist` | effect on the data |
//! |---|---|---|
//! | [`DeviceDax`](PmemKind::DeviceDax) | cache-line write-back, fence | survives a loss of power |
//! | [`FsDax`](PmemKind::FsDax) | cache-line write-back, fence | survives a loss of power |
//! | [`File`](PmemKind::File) | `msync(MS_SYNC)` | as safe as after the file system's `fsync` |
//!
//! To survive a loss of power, data in `DeviceDax` and `FsDax` memory needs a platform with
//! [ADR](crate::guide::persistence#which-method-makes-data-durable), as machines with persistent
//! memory have it.
//!
//! The kernel presents some volatile memory as persistent: memory of the kernel's parameter
//! `memmap=`, and device-DAX devices of the drivers `dax_hmem` and `cxl`, which may be of DRAM.
//! Such memory loses its data, although its kind is `DeviceDax` or `FsDax`. To check the device
//! `dax0.0`, run `readlink -f /sys/bus/dax/devices/dax0.0`. The output has an `ndbus` in it for a
//! namespace of `ndctl`, and `hmem` or `cxl` for the others. `cxl list -R` shows whether a CXL
//! region is `pmem`. A `File` on tmpfs is not durable at all.
//!
//! A file counts as `FsDax` only if the kernel grants `MAP_SYNC`. Without `MAP_SYNC`, data can be
//! safe while the file system's metadata for it is not on the disk yet. So a DAX file without
//! `MAP_SYNC` is a `File`, and `msync` makes both the data and the metadata durable.
//!
//! # What can be registered
//!
//! * `DeviceDax`: yes, on every adapter, for every use.
//! * `FsDax`: only on an adapter with on-demand paging. The kernel does not pin such a file for
//!   long, because the file system may want to move its blocks: `EOPNOTSUPP`.
//! * `File`: since Linux 6.5 not for writing, except on tmpfs and hugetlbfs: `EFAULT`. The kernel
//!   does not notice which pages a device has written, and so could not write them to the disk.
//!
//! # What a mapping does not protect from
//!
//! Some pages cannot be accessed: a page that was truncated from the file, a page without room on a
//! full file system (a sparse file: use `fallocate`), or a page that is broken in hardware. Such an
//! access ends the process with `SIGBUS`, as in every mapping.
//!
//! # Teardown
//!
//! A map, with its parts, owns its mapping and the descriptor, which carries the
//! lock ([`PmemMap::lock`]). Dropping the last of them clears the mark of a server
//! ([`PmemMap::claim`]), unmaps the memory, and closes the descriptor. Dropping makes no data
//! durable.
//!
//! # Sources
//!
//! [mmap(2)] on `MAP_SYNC`; the kernel's documentation of [DAX] and of a device-DAX device's
//! [attributes].
//!
//! [mmap(2)]: https://man7.org/linux/man-pages/man2/mmap.2.html
//! [DAX]: https://docs.kernel.org/filesystems/dax.html
//! [attributes]: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-dax

mod cache;
mod claim;
mod domain;
mod identity;
mod mapping;
mod open;
mod platform;
mod registered;
mod sysfs;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::path::Path;
use std::sync::Arc;

pub(crate) use self::claim::MARK_LEN;
pub use self::domain::Ddio;
pub(crate) use self::domain::{DevicePath, Domain};
use self::mapping::Mapping;
#[cfg(test)]
pub(crate) use self::mapping::failing;
use self::open::Opened;
pub(crate) use self::platform::Platform;
use crate::error::{Error, Result};
use crate::range::resolve_local;
use crate::site;

/// A device-DAX device or a file, mapped shared for reading and writing.
///
/// Other mappings of the same memory, and a remote host to which it was offered, can change it at
/// any time. So no method returns a reference into it: [`read_at`](Self::read_at) and
/// [`write_at`](Self::write_at) copy.
///
/// ```no_run
/// # fn main() -> rpma::Result<()> {
/// use rpma::pmem::PmemMap;
///
/// let map = PmemMap::open("/dev/dax0.0", 4096)?;
/// map.write_at(0, b"hello")?;
/// map.persist(0..5)?;
/// println!("stored on {}", map.kind());
/// # Ok(())
/// # }
/// ```
pub struct PmemMap {
    path: Arc<Path>,
    /// The device's place in `/sys/dev`. `None` for memory of a simulated host.
    device: Option<Arc<str>>,
    identity: Option<u64>,
    part: MapPart,
}

/// A part of a mapping, which it keeps. It lies inside.
#[derive(Clone, Debug)]
struct MapPart {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
}

impl MapPart {
    /// The place in the mapping of a range of this part.
    fn resolve(&self, range: &impl RangeBounds<usize>) -> Result<Range<usize>> {
        let range = resolve_local(range, self.len, "persistent memory")?;
        Ok(self.start + range.start..self.start + range.end)
    }

    /// The place in the mapping of `len` bytes at `offset`.
    fn at(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.start + offset),
            _ => Err(Error::invalid(format!(
                "{len} bytes at offset {offset} reach past the end of the persistent memory, which \
                 has {} bytes",
                self.len
            ))),
        }
    }
}

/// The kind of a [`PmemMap`], which decides how stores to it are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PmemKind {
    /// A device-DAX character device: persistent memory without a file system.
    DeviceDax,
    /// A file on a file system mounted with DAX: persistent memory, mapped with `MAP_SYNC`.
    FsDax,
    /// Any other file: a mapping of the page cache.
    File,
}

impl PmemMap {
    /// Maps all of the device or file at `path`, which must offer at least `min_len` bytes.
    ///
    /// It does not create, resize or write the file. The end of a device-DAX device beyond the last
    /// multiple of its alignment cannot be mapped.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `stat`, `open` or `mmap` fails (no such path, no permission to read
    /// and write, a file system without shared mappings). [`Error::InvalidArgument`] if `path` is a
    /// directory, a block device or another device that is not device-DAX, or is empty or smaller
    /// than `min_len`.
    ///
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    /// [`Error::Provider`]: crate::Error::Provider
    pub fn open(path: impl AsRef<Path>, min_len: usize) -> Result<Self> {
        let path = path.as_ref();
        Ok(Self::of(path, open::open(path, min_len)?))
    }

    /// Maps a part of the device or file at `path`. `range` has byte offsets in the device or file.
    /// `..` is all of the device or file.
    ///
    /// A mapping begins at a multiple of its alignment. For a file the alignment is the page size.
    /// For a device-DAX device it is `align` in its directory in sysfs, 2 MiB as a rule. The length
    /// of a mapping of such a device must be a multiple of `align` as well. For a file on hugetlbfs
    /// the size of a huge page counts in the same way. To give several programs or clients a part
    /// each, of any length, map once and use [`part`](Self::part).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open). [`Error::InvalidArgument`] also if the range is empty or not inside
    /// the device or file, or not aligned. The text has the alignment and the nearest aligned
    /// ranges.
    ///
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    pub fn open_range(path: impl AsRef<Path>, range: impl RangeBounds<u64>) -> Result<Self> {
        let path = path.as_ref();
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        Ok(Self::of(path, open::open_range(path, (start, end))?))
    }

    fn of(path: &Path, opened: Opened) -> Self {
        let Opened {
            mapping,
            device,
            identity,
        } = opened;
        let len = mapping.len();
        Self {
            path: path.into(),
            device: device.map(Arc::from),
            identity,
            part: MapPart {
                mapping: Arc::new(mapping),
                start: 0,
                len,
            },
        }
    }

    /// Returns a part of the map as a map of its own, with offsets from 0. The part keeps the
    /// memory mapped.
    ///
    /// Each part can be registered as a region, so that each client has an access key (rkey) of
    /// its own, which reaches no bytes outside its part. But access keys of one
    /// [`Peer`](crate::Peer) can be guessed: clients that must not trust each other need a `Peer`
    /// each. Any range will do, even ranges that overlap.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `range` is empty or not inside the map.
    ///
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    pub fn part(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = self.part.resolve(&range)?;
        if range.is_empty() {
            return Err(Error::invalid("a part of 0 bytes of persistent memory"));
        }
        Ok(Self {
            path: Arc::clone(&self.path),
            device: self.device.clone(),
            identity: self.identity,
            part: MapPart {
                mapping: Arc::clone(&self.part.mapping),
                start: range.start,
                len: range.len(),
            },
        })
    }

    /// The kind of the mapped object.
    #[must_use]
    pub fn kind(&self) -> PmemKind {
        self.part.mapping.kind()
    }

    /// Whether this is persistent memory, rather than a file in the page cache.
    #[must_use]
    pub fn is_pmem(&self) -> bool {
        self.kind().is_pmem()
    }

    /// The identity of the mapped device or file, if the kernel shows one.
    pub(crate) fn identity(&self) -> Option<u64> {
        self.identity
    }

    pub(crate) fn host(&self) -> Option<u64> {
        site::of_boot(self.part.mapping.simulated_boot())
    }

    /// The length in bytes. Never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.part.len
    }

    /// Always false: there is no empty map.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a pointer to the first byte. The pointer of a whole map is page-aligned. The pointer
    /// of a [`part`](Self::part) may have any alignment.
    ///
    /// The memory stays mapped there until the map is dropped, even if the map itself is moved.
    /// Making a reference from this pointer is hardly ever sound: [`PmemMap`] has the reason.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.part.mapping.as_ptr().wrapping_add(self.part.start)
    }

    /// Makes the stores to `range` (byte offsets) durable; the [module](self) lists the failures
    /// that they survive.
    ///
    /// This call covers stores of this thread, and stores of other threads that happened before the
    /// call. It also covers writes of devices that have reached the memory or a cache of this
    /// machine. An empty range is only a fence. While a region owns the map, a
    /// [`part`](Self::part) that was made before does the same.
    ///
    /// The kernel does not see a device's writes to an ordinary file (registered before Linux 6.5):
    /// a page counts as clean after one write-back, although a device has written to it since. So
    /// each page is marked dirty first, or `msync` would skip it. This gives holes of a sparse file
    /// their blocks.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `range` is not inside the map. [`Error::NotSupported`] for
    /// a device-DAX device on a processor without a write-back instruction for user space.
    /// [`Error::Provider`] if `msync` fails: then the durable bytes are unknown.
    ///
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    /// [`Error::NotSupported`]: crate::Error::NotSupported
    /// [`Error::Provider`]: crate::Error::Provider
    #[doc(alias = "pmem_persist")]
    pub fn persist(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let range = self.part.resolve(&range)?;
        self.part.mapping.mark_dirty(range.clone());
        self.part.mapping.persist(range)
    }

    /// Fills `dst` with the bytes from `offset` on.
    ///
    /// If another thread or device writes them meanwhile, `dst` gets any mixture of old and new
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes reach past the end of the map.
    ///
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        let offset = self.part.at(offset, dst.len())?;
        self.part.mapping.read_at(offset, dst)
    }

    /// Writes `src` to the bytes from `offset` on, and to no others. The bytes are durable only
    /// after [`persist`](Self::persist).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes reach past the end of the map.
    ///
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<()> {
        let offset = self.part.at(offset, src.len())?;
        self.part.mapping.write_at(offset, src)
    }

    /// Loads the 8 bytes at `offset` atomically, in host byte order.
    ///
    /// The load acquires, as [`Mr::load_u64`](crate::Mr::load_u64), with the same limits for a
    /// peer's writes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes reach past the end of the map, or if their address
    /// is not a multiple of 8.
    ///
    /// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        let place = self.part.at(offset, size_of::<u64>())?;
        self.part.mapping.load_u64(place)
    }

    /// Stores 8 bytes at `offset` atomically, in host byte order. The store releases: it comes
    /// after all earlier stores of this thread.
    ///
    /// After a loss of power the memory has the old value or the new one, and no mixture. The new
    /// value is durable only after [`persist`](Self::persist). Use this to store a pointer to data
    /// that is already persistent.
    ///
    /// # Errors
    ///
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        let place = self.part.at(offset, size_of::<u64>())?;
        self.part.mapping.store_u64(place, value)
    }
}

impl fmt::Debug for PmemMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmemMap")
            .field("path", &self.path)
            .field("kind", &self.kind())
            .field("ptr", &self.as_ptr())
            .field("len", &self.len())
            .finish()
    }
}

impl PmemKind {
    /// Whether this is persistent memory, rather than a file in the page cache.
    #[must_use]
    pub fn is_pmem(self) -> bool {
        matches!(self, Self::DeviceDax | Self::FsDax)
    }
}

impl fmt::Display for PmemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::DeviceDax => "device-DAX",
            Self::FsDax => "file on a DAX file system",
            Self::File => "ordinary file",
        })
    }
}
