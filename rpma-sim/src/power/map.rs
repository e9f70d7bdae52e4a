//! [`Map`]: own bytes, from the begin of a page on; and [`File`]: a file in memory with which they
//! can begin.
//!
//! Large ones are mappings: pages that nobody touches take no memory. Small ones are allocations,
//! which cost less. Under Miri, which has no mappings, all are.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::slice;

use rustix::io::{Errno, Result};

#[cfg(not(miri))]
pub(super) use self::mapped::File;
use super::store::PAGE;

/// Memory of up to this size is compared and copied faster than the kernel lists and maps its
/// pages.
pub(super) const SMALL: usize = 4 * PAGE;

/// Bytes of this process.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<u8>,
    len: usize,
    /// Of an allocation. `None`: it is a mapping.
    layout: Option<Layout>,
}

// SAFETY: no thread owns the bytes: any may free them. They are accessed by atomics, or by code
// that has the address.
unsafe impl Send for Map {}

// SAFETY: `&self` reads fields that never change. Threads that share it reach its bytes by atomics,
// or by the address, with their own guarantees.
unsafe impl Sync for Map {}

impl Map {
    /// Makes a mapping of `len` zeros, at least one page and a whole number of pages.
    pub(super) fn zeros(len: usize) -> Result<Self> {
        #[cfg(not(miri))]
        if len > SMALL {
            return mapped::zeros(len);
        }
        Self::allocated(len)
    }

    fn allocated(len: usize) -> Result<Self> {
        assert!(len > 0, "some bytes");
        let layout = Layout::from_size_align(len, PAGE).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the layout has bytes, by the assertion.
        let start = unsafe { alloc_zeroed(layout) };
        Ok(Self {
            start: NonNull::new(start).ok_or(Errno::NOMEM)?,
            len,
            layout: Some(layout),
        })
    }

    /// The bytes of a file. What is written to the map does not change the file.
    #[cfg(not(miri))]
    pub(super) fn of_file(file: &File) -> Result<Self> {
        mapped::of_file(file)
    }

    /// Its first byte. It stays there until the map is dropped.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Replaces bytes of a map whose address no other code has.
    ///
    /// # Panics
    ///
    /// If they are not inside.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len), "inside");
        // SAFETY: the place is inside the map, by the assertion.
        let place = unsafe { self.as_ptr().add(at) };
        // SAFETY: all bytes are inside, by the assertion, and maps are writable. `bytes` is no part
        // of it, because `&mut self` is the only way to it: the two do not overlap.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// The bytes of a map whose address no other code has.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the map has so many bytes, and only `write` changes them, which needs `&mut self`.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        match self.layout {
            // SAFETY: `allocated` made it with this layout, and the last reference to it is being
            // dropped.
            Some(layout) => unsafe { dealloc(self.as_ptr(), layout) },
            #[cfg(not(miri))]
            None => mapped::unmap(self),
            #[cfg(miri)]
            None => {}
        }
    }
}

#[cfg(not(miri))]
mod mapped {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::ptr::{self, NonNull};

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::{Errno, Result};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

    use super::super::store::{PAGE, Store};
    use super::Map;

    const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
    /// It may have more bytes than the machine.
    const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

    pub(super) fn zeros(len: usize) -> Result<Map> {
        // SAFETY: the kernel chooses the place, where nothing else is.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, READ_WRITE, PRIVATE) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        let map = Map {
            start,
            len,
            layout: None,
        };
        // A touched page takes a page, and not a huge one.
        // SAFETY: it is the mapping that was just made. The advice changes none of its bytes.
        let advised = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
        match advised {
            // A kernel without huge pages knows no such advice.
            Ok(()) | Err(Errno::INVAL) => Ok(map),
            Err(error) => Err(error),
        }
    }

    pub(super) fn of_file(File { file, len }: &File) -> Result<Map> {
        // SAFETY: the kernel chooses the place, where nothing else is. The file never changes and
        // keeps its length, so that reading the mapping is sound.
        let start = unsafe { mmap(ptr::null_mut(), *len, READ_WRITE, PRIVATE, file.as_fd(), 0) };
        Ok(Map {
            start: NonNull::new(start?.cast()).ok_or(Errno::FAULT)?,
            len: *len,
            layout: None,
        })
    }

    pub(super) fn unmap(map: &Map) {
        // SAFETY: it is an own mapping of this length, and the last reference to it is being
        // dropped.
        let unmapped = unsafe { munmap(map.as_ptr().cast(), map.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }

    /// A file without a name, which never changes.
    #[derive(Debug)]
    pub(in super::super) struct File {
        file: std::fs::File,
        len: usize,
    }

    impl File {
        /// A file with the bytes of a store. Its other pages are holes.
        pub(in super::super) fn new(store: &Store) -> std::io::Result<Self> {
            let file = std::fs::File::from(memfd_create("rpma-sim", MemfdFlags::CLOEXEC)?);
            file.set_len(store.len() as u64)?;
            for (number, page) in store.pages() {
                file.write_all_at(page, (number * PAGE) as u64)?;
            }
            Ok(Self {
                file,
                len: store.len(),
            })
        }
    }
}
