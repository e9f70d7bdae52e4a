//! [`Map`]: an own mapping of bytes; and [`File`]: a file in memory with which a mapping can begin.
//!
//! Pages of a mapping that nobody touches take no memory. Under Miri, which has no mappings, a map
//! is an allocation.

#[cfg(miri)]
use self::allocated::Bytes;
#[cfg(not(miri))]
use self::mapped::Bytes;
#[cfg(not(miri))]
pub(super) use self::mapped::File;

use std::slice;

use rustix::io::Result;

/// Bytes of this process, from the begin of a page on.
#[derive(Debug)]
pub(super) struct Map(Bytes);

// SAFETY: no thread owns the bytes: any may free them. They are accessed by atomics, or by code
// that has the address.
unsafe impl Send for Map {}

// SAFETY: `&self` reads fields that never change. Threads that share it reach its bytes by atomics,
// or by the address, with their own guarantees.
unsafe impl Sync for Map {}

impl Map {
    /// So many zeros, a whole number of pages and not none.
    pub(super) fn zeros(len: usize) -> Result<Self> {
        Bytes::zeros(len).map(Self)
    }

    /// The bytes of a file. What is written to the map does not change the file.
    #[cfg(not(miri))]
    pub(super) fn of_file(file: &File) -> Result<Self> {
        Bytes::of_file(file).map(Self)
    }

    /// Its first byte. It stays there until the map is dropped.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    /// Replaces bytes of a map whose address no other code has.
    ///
    /// # Panics
    ///
    /// If they are not inside.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len()), "inside");
        // SAFETY: the range is inside the map, by the assertion, and maps are writable. `bytes` is
        // no part of it, because `&mut self` is the only way to it. The two do not overlap.
        unsafe {
            self.as_ptr()
                .add(at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// The bytes of a map whose address no other code has.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the map has so many bytes, and only `write` changes them, which needs `&mut self`.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len()) }
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

    /// A private mapping.
    #[derive(Debug)]
    pub(super) struct Bytes {
        pub(super) start: NonNull<u8>,
        pub(super) len: usize,
    }

    const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
    /// It may have more bytes than the machine.
    const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

    impl Bytes {
        pub(super) fn zeros(len: usize) -> Result<Self> {
            // SAFETY: the kernel chooses the place, where nothing else is.
            let start = unsafe { mmap_anonymous(ptr::null_mut(), len, READ_WRITE, PRIVATE) }?;
            let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
            let bytes = Self { start, len };
            // SAFETY: it is the mapping that was just made. The advice changes none of its bytes.
            let advised = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
            // A kernel without huge pages knows no such advice.
            match advised {
                Ok(()) | Err(Errno::INVAL) => Ok(bytes),
                Err(error) => Err(error),
            }
        }

        pub(super) fn of_file(File { file, len }: &File) -> Result<Self> {
            // SAFETY: the kernel chooses the place, where nothing else is. The file never changes
            // and keeps its length, so that reading the mapping is sound.
            let start =
                unsafe { mmap(ptr::null_mut(), *len, READ_WRITE, PRIVATE, file.as_fd(), 0) };
            let start = NonNull::new(start?.cast()).ok_or(Errno::FAULT)?;
            Ok(Self { start, len: *len })
        }
    }

    impl Drop for Bytes {
        fn drop(&mut self) {
            // SAFETY: it is an own mapping of this length, and the last reference to it is being
            // dropped.
            let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
            debug_assert_eq!(unmapped, Ok(()));
        }
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

#[cfg(miri)]
mod allocated {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use rustix::io::{Errno, Result};

    use super::super::store::PAGE;

    /// An allocation.
    #[derive(Debug)]
    pub(super) struct Bytes {
        pub(super) start: NonNull<u8>,
        pub(super) len: usize,
    }

    fn layout(len: usize) -> Result<Layout> {
        Layout::from_size_align(len, PAGE).map_err(|_| Errno::NOMEM)
    }

    impl Bytes {
        pub(super) fn zeros(len: usize) -> Result<Self> {
            assert!(len > 0, "some bytes");
            let layout = layout(len)?;
            // SAFETY: the layout has bytes, by the assertion.
            let start = unsafe { alloc_zeroed(layout) };
            let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
            Ok(Self { start, len })
        }
    }

    impl Drop for Bytes {
        fn drop(&mut self) {
            if let Ok(layout) = layout(self.len) {
                // SAFETY: `zeros` allocated it with this layout, and the last reference to it is
                // being dropped.
                unsafe { dealloc(self.start.as_ptr(), layout) };
            }
        }
    }
}
