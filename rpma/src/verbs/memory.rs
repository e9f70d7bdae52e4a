//! Registerable memory: owners of memory that stays in its place.

use std::fmt;
use std::ptr::NonNull;

use memmap2::{Mmap, MmapMut};

use crate::error::{Error, Result};

/// An owner of memory that can be registered with [`Mr::reg`](crate::Mr::reg).
///
/// # Safety
///
/// The implementor promises, for as long as the value exists:
///
/// * [`as_mut_ptr`](Self::as_mut_ptr) and [`len`](Self::len) always give the same answer, also
///   after the value has moved: the memory is not inside the value itself;
/// * the memory is `len` initialised bytes that may be read, and written if
///   [`is_writable`](Self::is_writable) returns true;
/// * the value is the memory's only owner: safe code can make a Rust reference to the memory only
///   by a borrow of the value (another mapping of the same memory is no Rust reference);
/// * only the value's own `Drop` frees or unmaps the memory.
///
/// `'static` makes [`std::mem::forget`] harmless: the memory then stays registered and allocated
/// for ever. So borrowed memory is not registerable:
///
/// ```compile_fail,E0277
/// # fn with(peer: &rpma::Peer) {
/// let mut bytes = vec![0u8; 64];
/// let slice: &mut [u8] = &mut bytes;
/// let mr = rpma::Mr::reg(peer, slice, rpma::MrUsage::WRITE_SRC);
/// # }
/// ```
///
/// Shared memory is not registerable either, because others hold references to its bytes:
///
/// ```compile_fail,E0277
/// # fn with(peer: &rpma::Peer) {
/// let shared: std::sync::Arc<[u8]> = vec![0u8; 64].into();
/// let mr = rpma::Mr::reg(peer, shared, rpma::MrUsage::WRITE_SRC);
/// # }
/// ```
pub unsafe trait RegisterableMemory: Send + 'static {
    /// Returns the address of the first byte.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether it has no bytes. Such memory cannot be registered.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the memory may be written. If not, only usages that never write it are
    /// possible.
    fn is_writable(&self) -> bool {
        true
    }

    /// Returns whether it is known that the data does not survive a loss of power, or that a flush
    /// alone is not enough for that. Such memory cannot be registered with
    /// [`MrUsage::FLUSH_TYPE_PERSISTENT`](crate::MrUsage::FLUSH_TYPE_PERSISTENT).
    fn is_volatile(&self) -> bool {
        false
    }
}

// SAFETY: a boxed slice is on the heap: fixed while the box moves, initialised, freed by its Drop
// only.
unsafe impl RegisterableMemory for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn is_volatile(&self) -> bool {
        true
    }
}

// SAFETY: the bytes of a vector are on the heap. They are fixed while it moves, as it cannot grow
// while a region owns it, and only its Drop frees them. `len` is that of the initialised part.
unsafe impl RegisterableMemory for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Self::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn is_volatile(&self) -> bool {
        true
    }
}

// SAFETY: an `MmapMut` is readable and writable, and stays in its place until its Drop unmaps it.
// Only a borrow of it gives a reference.
unsafe impl RegisterableMemory for MmapMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn is_volatile(&self) -> bool {
        // It may be anonymous memory, or a file, which cannot be found out here. A PmemMap has its
        // kind.
        true
    }
}

// SAFETY: an `Mmap` is readable, and stays in its place until its Drop unmaps it. Only a borrow of
// it gives a reference. `is_writable` returns false.
unsafe impl RegisterableMemory for Mmap {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn is_volatile(&self) -> bool {
        // As of `MmapMut`.
        true
    }
}

// SAFETY: each function forwards to the owner in the box, which promises all of this and stays in
// its place. Its memory is not inside it.
unsafe impl RegisterableMemory for Box<dyn RegisterableMemory> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn is_writable(&self) -> bool {
        (**self).is_writable()
    }

    fn is_volatile(&self) -> bool {
        (**self).is_volatile()
    }
}

/// Zeroed memory in pages of its own, for buffers that should not share a page with anything else.
pub struct AlignedBuf(MmapMut);

impl AlignedBuf {
    /// Allocates `len` zero bytes at the beginning of a page.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `len` is 0; [`Error::Provider`] if the system has no memory.
    pub fn zeroed(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid(
                "an AlignedBuf of 0 bytes: ask for at least 1",
            ));
        }
        let map = MmapMut::map_anon(len).map_err(|source| Error::provider("mmap", source))?;
        Ok(Self(map))
    }

    /// Returns the length in bytes. It is never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `false`: there is no empty buffer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Returns its bytes for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.0.len())
            .finish()
    }
}

// SAFETY: the anonymous `MmapMut` inside keeps all of this. Only a borrow of the buffer gives a
// reference.
unsafe impl RegisterableMemory for AlignedBuf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        RegisterableMemory::as_mut_ptr(&mut self.0)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_volatile(&self) -> bool {
        true
    }
}

/// Memory of another owner, for [`Mr::reg_raw`](crate::Mr::reg_raw).
/// [`Mr::dereg`](crate::Mr::dereg) returns this value, and it can be registered again. The
/// caller's promises of `reg_raw` last until the value is dropped.
#[derive(Debug)]
pub struct RawMemory {
    address: NonNull<u8>,
    len: usize,
    writable: bool,
}

impl RawMemory {
    /// # Safety
    ///
    /// See `Mr::reg_raw`; it may be written only if `writable`.
    pub(crate) unsafe fn new(address: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self {
            address,
            len,
            writable,
        }
    }
}

// SAFETY: `Mr::reg_raw` requires memory that any thread may access. The pointer goes to the device,
// to the copy routines, and to slices of unsafe functions only.
unsafe impl Send for RawMemory {}

// SAFETY: `new` requires that its caller keeps the promises of `Mr::reg_raw` as long as the value
// exists.
unsafe impl RegisterableMemory for RawMemory {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.address.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        self.writable
    }
}
