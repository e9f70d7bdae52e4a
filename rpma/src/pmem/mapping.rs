//! The mapping of a map: the system calls, and all access to the memory. If the feature `sim` is
//! on, it may be memory of a simulated host instead. Then the fabric is notified of the ranges that
//! are written back.

#![expect(unsafe_code, reason = "maps memory and works on its addresses")]

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
#[cfg(feature = "sim")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::param::page_size;

use super::PmemKind;
use super::cache::CacheLines;
use super::claim::{Claims, Node};
use crate::error::{Error, Result};
use crate::verbs::{copy_from_shared, copy_to_shared, load_u64, store_u64, stored};

/// `len` bytes mapped shared, readable and writable, at a page-aligned address, until it is
/// dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    addr: NonNull<u8>,
    len: usize,
    kind: PmemKind,
    /// The instruction that writes cache lines back; `None` on processors where user space cannot.
    lines: Option<CacheLines>,
    claims: Claims,
    /// The memory that it has instead of a mapping.
    #[cfg(feature = "sim")]
    simulated: Option<Arc<rpma_sys::Memory>>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and whichever thread drops it may
// unmap it.
unsafe impl Send for Mapping {}

// SAFETY: through a shared reference the memory is only copied by the routines of `verbs::copy`,
// marked dirty by an atomic, written back and passed to msync, all of which may run at the same
// time as any other access to it; the fields never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a range of a device-DAX device. Both ends are multiples of its alignment.
    pub(super) fn device_dax(
        device: File,
        node: Node,
        range: Range<usize>,
    ) -> rustix::io::Result<Self> {
        let addr = map(&device, range.clone(), MapFlags::SHARED)?;
        Ok(Self::new(
            device,
            node,
            (addr, range.len()),
            PmemKind::DeviceDax,
        ))
    }

    /// Maps a range of a regular file, which begins at a multiple of the page size.
    ///
    /// Only the kernel can decide whether it is on a DAX file system. It grants `MAP_SYNC` there
    /// and refuses it with `EOPNOTSUPP` elsewhere, provided that `MAP_SHARED_VALIDATE` asks. Plain
    /// `MAP_SHARED` ignores unknown flags. Before 4.15 it knew neither: `EINVAL`.
    pub(super) fn file(file: File, node: Node, range: Range<usize>) -> rustix::io::Result<Self> {
        let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        let (addr, kind) = match map(&file, range.clone(), synchronous) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                let addr = map(&file, range.clone(), MapFlags::SHARED)?;
                (addr, PmemKind::File)
            }
            addr => (addr?, PmemKind::FsDax),
        };
        Ok(Self::new(file, node, (addr, range.len()), kind))
    }

    /// Memory of a simulated host, as a device-DAX device of it.
    #[cfg(feature = "sim")]
    pub(super) fn simulated(memory: Arc<rpma_sys::Memory>, range: Range<usize>) -> Self {
        assert!(range.end <= memory.len(), "the caller checked the range");
        let addr = memory.as_ptr().wrapping_add(range.start);
        let (device, inode) = memory.node();
        Self {
            addr: NonNull::new(addr).expect("memory has an address"),
            len: range.len(),
            kind: PmemKind::DeviceDax,
            lines: None,
            claims: Claims::new(None, Node { device, inode }),
            simulated: Some(memory),
        }
    }

    pub(super) fn kind(&self) -> PmemKind {
        self.kind
    }

    /// The kernel's word for the persistence domain of a simulated host.
    pub(super) fn simulated_domain(&self) -> Option<&'static str> {
        #[cfg(feature = "sim")]
        return self.simulated.as_ref()?.persistence_domain();
        #[cfg(not(feature = "sim"))]
        None
    }

    /// The identity of the boot of a simulated host.
    pub(super) fn simulated_boot(&self) -> Option<[u8; 24]> {
        #[cfg(feature = "sim")]
        return self.simulated.as_ref().map(|memory| memory.boot());
        #[cfg(not(feature = "sim"))]
        None
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    pub(super) fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        let src = self.at(offset, dst.len())?;
        // SAFETY: `at` checked that the bytes lie inside the mapping, which `self` keeps; `dst` is
        // not in it, because no Rust reference is.
        unsafe { copy_from_shared(src, dst) };
        Ok(())
    }

    pub(super) fn write_at(&self, offset: usize, src: &[u8]) -> Result<()> {
        let dst = self.at(offset, src.len())?;
        // SAFETY: `at` checked that the bytes lie inside the mapping, which `self` keeps and which
        // is writable; no Rust reference points into it, so neither does `src`.
        unsafe { copy_to_shared(src, dst) };
        Ok(())
    }

    /// Loads 8 bytes at once.
    pub(super) fn load_u64(&self, offset: usize) -> Result<u64> {
        let src = self.aligned_at(offset)?;
        // SAFETY: `aligned_at` checked that the bytes lie inside the mapping, which `self` keeps,
        // and that their address is a multiple of 8.
        Ok(unsafe { load_u64(src) })
    }

    /// Stores 8 bytes at once.
    pub(super) fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        let dst = self.aligned_at(offset)?;
        // SAFETY: `aligned_at` checked that the bytes lie inside the mapping, which `self` keeps
        // and which is writable, and that their address is a multiple of 8.
        unsafe { store_u64(dst, value) };
        Ok(())
    }

    /// Stores 8 bytes at once if they are `old`. Returns whether they were.
    pub(super) fn replace_u64(&self, offset: usize, old: u64, new: u64) -> Result<bool> {
        let place = self.aligned_at(offset)?;
        // SAFETY: `aligned_at` checked that the bytes lie inside the mapping, which `self` keeps
        // and which is writable, and that their address is a multiple of 8. No Rust reference
        // points to them.
        let word = unsafe { AtomicU64::from_ptr(place) };
        let replaced = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        if replaced.is_ok() {
            stored(place.cast(), size_of::<u64>());
        }
        Ok(replaced.is_ok())
    }

    /// The address of 8 bytes that can be loaded and stored at once.
    fn aligned_at(&self, offset: usize) -> Result<*mut u64> {
        let address = self.at(offset, size_of::<u64>())?;
        match address.addr() % size_of::<u64>() {
            0 => Ok(address.cast()),
            _ => Err(Error::invalid(format!(
                "the address of 8 bytes that are loaded or stored at once is {:#x}: make it a \
                 multiple of 8",
                address.addr()
            ))),
        }
    }

    /// Makes `range`, which lies inside, durable in the way of this kind.
    pub(super) fn persist(&self, range: Range<usize>) -> Result<()> {
        #[cfg(test)]
        if let Err(error) = failing::persist(&range) {
            return Err(Error::provider("msync", error));
        }
        #[cfg(feature = "sim")]
        if let Some(memory) = &self.simulated {
            let start = self.as_ptr().addr() - memory.as_ptr().addr();
            let persisted = memory.persisted(start + range.start..start + range.end);
            return persisted.map_err(|error| Error::provider("a write-back of caches", error));
        }
        match (self.kind, self.lines) {
            (PmemKind::DeviceDax | PmemKind::FsDax, Some(lines)) => {
                debug_assert!(range.end <= self.len);
                let start = self.as_ptr().wrapping_add(range.start);
                // SAFETY: `Part::resolve`, which made the range, checked that it lies inside a part
                // of the mapping, which `self` keeps.
                unsafe { lines.write_back(start, range.len()) };
                Ok(())
            }
            (PmemKind::FsDax | PmemKind::File, _) => self.sync_pages(range),
            (PmemKind::DeviceDax, None) => Err(Error::not_supported(
                "this processor lets no program write cache lines back to persistent memory, and a \
                 device-DAX device has no msync: use a file on a DAX file system",
            )),
        }
    }

    /// Makes the kernel believe that each page of `range`, which lies inside, was written to. Only
    /// an ordinary file needs it.
    pub(super) fn mark_dirty(&self, range: Range<usize>) {
        if self.kind != PmemKind::File || range.is_empty() {
            return;
        }
        let (first, page) = (range.start, page_size());
        let later = (first / page + 1) * page;
        for offset in std::iter::once(first).chain((later..range.end).step_by(page)) {
            let address = self.as_ptr().wrapping_add(offset);
            // SAFETY: `Part::resolve`, which made the range, checked that it lies inside the
            // mapping, and `offset` lies inside the range. A byte is always aligned, and no Rust
            // reference points to it.
            let byte = unsafe { AtomicU8::from_ptr(address) };
            // Writes the value that is there, even if others change it meanwhile. The compiler
            // would make a plain load of it if it knew the 0.
            byte.fetch_or(black_box(0), Ordering::Relaxed);
        }
    }

    fn new(file: File, node: Node, (addr, len): (NonNull<u8>, usize), kind: PmemKind) -> Self {
        Self {
            addr,
            len,
            kind,
            lines: CacheLines::detect(),
            claims: Claims::new(Some(file), node),
            #[cfg(feature = "sim")]
            simulated: None,
        }
    }

    pub(super) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Takes the lock of simulated memory, if it is free.
    pub(super) fn lock_simulated(&self) -> bool {
        #[cfg(feature = "sim")]
        return self.simulated.as_ref().is_some_and(|memory| memory.lock());
        #[cfg(not(feature = "sim"))]
        false
    }

    pub(super) fn unlock_simulated(&self) {
        #[cfg(feature = "sim")]
        if let Some(memory) = &self.simulated {
            memory.unlock();
        }
    }

    /// The address of `len` bytes at `offset`, if they lie inside.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.as_ptr().wrapping_add(offset)),
            _ => Err(Error::invalid(format!(
                "{len} bytes at offset {offset} reach past the end of the persistent memory, which \
                 has {} bytes",
                self.len
            ))),
        }
    }

    fn sync_pages(&self, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let start = range.start - range.start % page_size();
        let address = self.as_ptr().wrapping_add(start);
        // SAFETY: `start` is the beginning of a page of the mapping, which `self` keeps, and
        // `Part::resolve` checked that the range ends inside. msync does not change memory.
        unsafe { msync(address.cast(), range.end - start, MsyncFlags::SYNC) }.map_err(|errno| {
            Error::provider("msync", io::Error::from(errno)).with_hint(&[
                "Whether the range is durable is unknown",
                "treat it as lost",
            ])
        })
    }
}

fn map(file: &File, range: Range<usize>, flags: MapFlags) -> rustix::io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let (len, start) = (range.len(), range.start as u64);
    // SAFETY: no address is asked for, so the kernel takes one without another mapping.
    let addr = unsafe { mmap(ptr::null_mut(), len, access, flags, file, start) }?;
    NonNull::new(addr.cast()).ok_or(Errno::NOMEM)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.end_claims();
        #[cfg(feature = "sim")]
        if self.simulated.is_some() {
            return;
        }
        // SAFETY: `new` has mapped these bytes, and nothing else unmaps them. `self` is being
        // dropped, so they are not used any more.
        if let Err(errno) = unsafe { munmap(self.as_ptr().cast(), self.len) } {
            log::error!(
                "munmap of {} bytes at {:p} failed: {errno}; the mapping is leaked",
                self.len,
                self.as_ptr()
            );
        }
    }
}

/// Write-backs that fail, for tests of this crate.
#[cfg(test)]
pub(crate) mod failing {
    use std::cell::RefCell;
    use std::io;
    use std::ops::Range;

    type Hook = Box<dyn FnMut(&Range<usize>) -> io::Result<()>>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Calls `hook` before each write-back of this thread, until the result is dropped. Its error
    /// is that of the write-back, which does not take place.
    pub(crate) fn hook(hook: impl FnMut(&Range<usize>) -> io::Result<()> + 'static) -> Hooked {
        HOOK.set(Some(Box::new(hook)));
        Hooked
    }

    pub(crate) struct Hooked;

    impl Drop for Hooked {
        fn drop(&mut self) {
            HOOK.set(None);
        }
    }

    pub(super) fn persist(range: &Range<usize>) -> io::Result<()> {
        HOOK.with_borrow_mut(|hook| hook.as_mut().map_or(Ok(()), |hook| hook(range)))
    }
}
