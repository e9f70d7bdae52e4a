//! [`Mr`]: registered memory of this host (`struct rpma_mr_local`).
//!
//! It owns the memory, so that no order of drops, no panic and no [`std::mem::forget`] can free
//! memory that a device may still touch. Torn down in this order: the registration ends
//! (`ibv_dereg_mr`), and the device touches the memory no more, even for operations in flight. Then
//! the memory is freed or given back.

mod remote;
mod usage;

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;

pub(crate) use self::remote::DESCRIPTOR_SIZE;
pub use self::remote::{MrRemote, RemoteSlice};
pub use self::usage::MrUsage;
pub(crate) use self::usage::{Tag, require};
use rustix::io::Errno;

use crate::error::{Error, GivenBack, Result};
use crate::hints;
use crate::peer::{Peer, PeerKey};
use crate::pmem::PmemMap;
use crate::range;
use crate::verbs::{AccessFlags, LocalBuffer, RawMemory, RegisterableMemory, Registered};

/// A registered memory region, and the memory itself.
///
/// The device can change the memory at any time. So can remote hosts, if the region's usage
/// permits it. So no safe method returns a reference into it: [`read_at`](Self::read_at) and
/// [`write_at`](Self::write_at) copy. If another writer writes at the same time, the bytes read
/// may mix old and new ones.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpma::{Device, Mr, MrRemote, MrUsage, Peer, Side};
///
/// let peer = Peer::at("192.0.2.1")?;
/// let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
/// let memory = Mr::reg(&peer, vec![0; 4096], usage)?;
/// memory.write_at(0, b"empty")?;
///
/// // These 21 bytes go to the other host, which makes the remote region out of them.
/// let remote = MrRemote::from_descriptor(&memory.get_descriptor())?;
/// let first = remote.slice(..64)?;
/// # let _ = first;
///
/// let mut bytes = [0; 5];
/// memory.read_at(0, &mut bytes)?;
/// let vec: Vec<u8> = memory.dereg()?;
/// # let _ = vec;
/// # Ok(())
/// # }
/// ```
///
/// Dropping a region is safe while operations on it are in flight. The operations complete with an
/// error, and their connections end.
///
/// # Threads
///
/// Threads may read, write and post the same bytes at the same time. Each access copies the bytes,
/// with routines that are made for memory that others change.
pub struct Mr<M> {
    registered: Registered<M>,
    /// The usage, and the key of the `Peer`.
    tag: Tag,
    writable: bool,
    peer: Peer,
}

impl<M: RegisterableMemory> Mr<M> {
    /// Registers `memory` for `usage`.
    ///
    /// Registered memory is locked in RAM (it counts against `RLIMIT_MEMLOCK` without
    /// `CAP_IPC_LOCK`). A file of a DAX file system is registered for on-demand paging instead, if
    /// the device can do that.
    ///
    /// # Errors
    ///
    /// The error gives the memory back. [`Error::InvalidArgument`] if the memory has no bytes or
    /// more than the device takes, if `usage` is empty, or if it needs writing and the memory is
    /// read-only. [`Error::InvalidArgument`] also if it is for persistent flushes and the memory is
    /// known to be volatile ([`RegisterableMemory::is_volatile`]). [`Error::Provider`] if
    /// `ibv_reg_mr` fails, with a remedy for each errno: `ENOMEM` (the limit of locked memory),
    /// `EOPNOTSUPP` (a DAX file without on-demand paging), `EFAULT` (a mapping that the kernel does
    /// not pin for writing), `EINVAL` (persistent flush on memory that is not persistent).
    #[doc(alias = "rpma_mr_reg")]
    pub fn reg(peer: &Peer, memory: M, usage: MrUsage) -> Result<Self, GivenBack<M>> {
        if let Err(error) = check(peer, &memory, usage) {
            return Err(GivenBack {
                error,
                object: memory,
            });
        }
        let writable = memory.is_writable();
        let context = peer.pd().context();
        let access = usage::access(usage, peer.is_native_flush_capable(), context.is_iwarp());
        let registered = match Registered::new(peer.pd(), memory, access) {
            Err((error, memory)) if needs_paging(&error) && peer.is_odp_capable() => {
                log::debug!("{error}: trying again with on-demand paging");
                Registered::new(peer.pd(), memory, access | AccessFlags::ON_DEMAND)
            }
            result => result,
        };
        match registered {
            Ok(registered) => Ok(Self {
                registered,
                tag: Tag::new(peer.key(), usage),
                writable,
                peer: peer.clone(),
            }),
            Err((error, memory)) => {
                let persistent = usage.contains(MrUsage::FLUSH_TYPE_PERSISTENT);
                let error = match persistent && error.is_errno(Errno::INVAL) {
                    true => error.with_hint(hints::PERSISTENT),
                    false => error,
                };
                Err(GivenBack {
                    error,
                    object: memory,
                })
            }
        }
    }

    /// Ends the registration and gives the memory back. Dropping does the same and frees the
    /// memory.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_dereg_mr` fails. The memory then stays allocated for ever: the
    /// device may still use it.
    #[doc(alias = "rpma_mr_dereg")]
    pub fn dereg(self) -> Result<M> {
        self.registered.release()
    }
}

/// The region's name in errors.
const REGION: &str = "local memory region";

/// The usages that let a device write to the memory.
const WRITTEN: MrUsage = MrUsage::READ_DST
    .union(MrUsage::WRITE_DST)
    .union(MrUsage::RECV);

fn check<M: RegisterableMemory>(peer: &Peer, memory: &M, usage: MrUsage) -> Result<()> {
    let (len, max) = (memory.len(), peer.attributes().max_mr_size);
    if len == 0 {
        return Err(Error::invalid("memory of 0 bytes cannot be registered"));
    }
    if len as u64 > max {
        return Err(Error::invalid(format!(
            "{len} bytes of memory are more than the device registers as one region ({max})"
        )));
    }
    if usage.is_empty() {
        return Err(Error::invalid(
            "a memory region without any usage: name its uses (MrUsage)",
        ));
    }
    if usage.intersects(WRITTEN) && !memory.is_writable() {
        return Err(Error::invalid(format!(
            "the usage {} writes to the memory, which is read-only",
            usage & WRITTEN
        )));
    }
    if usage.contains(MrUsage::FLUSH_TYPE_PERSISTENT) && memory.is_volatile() {
        return Err(Error::invalid(
            "MrUsage::FLUSH_TYPE_PERSISTENT promises the peer that flushed data survives a loss of power, and \
             this memory does not keep data. Register a PmemMap of persistent memory (DeviceDax or FsDax), or \
             register this memory for MrUsage::FLUSH_TYPE_VISIBILITY only. Mr::reg_raw registers memory that \
             you vouch for",
        ));
    }
    Ok(())
}

fn needs_paging(error: &Error) -> bool {
    error.is_errno(Errno::OPNOTSUPP)
}

impl Mr<RawMemory> {
    /// Registers memory that this crate does not own. Whether it is persistent is not known here:
    /// with [`MrUsage::FLUSH_TYPE_PERSISTENT`] the caller vouches for it.
    ///
    /// [`write_at`](Self::write_at) and [`store_u64`](Self::store_u64) are possible only if
    /// `usage` lets a device write.
    ///
    /// # Errors
    ///
    /// As [`reg`](Self::reg).
    ///
    /// # Safety
    ///
    /// The caller keeps these promises until the [`RawMemory`] is dropped. The drop of the returned
    /// [`Mr`] drops it. After [`dereg`](Self::dereg) has returned the `RawMemory`, the caller drops
    /// it. If the [`Mr`] is forgotten, or `dereg` fails, the promises hold for ever. The `len`
    /// bytes at `address`
    ///
    /// * are mapped and initialised, and may be read from any thread, and written if `usage` lets
    ///   a device write ([`READ_DST`](MrUsage::READ_DST), [`WRITE_DST`](MrUsage::WRITE_DST),
    ///   [`RECV`](MrUsage::RECV));
    /// * are neither freed nor unmapped nor moved;
    /// * have no live Rust reference while the device or a peer may write to them, or while
    ///   `write_at` or `store_u64` is called, and no mutable one while they are read.
    #[expect(unsafe_code, reason = "a declaration: the contract is the caller's")]
    pub unsafe fn reg_raw(
        peer: &Peer,
        address: NonNull<u8>,
        len: usize,
        usage: MrUsage,
    ) -> Result<Self> {
        // SAFETY: `# Safety` of this function has all promises that `RawMemory::new` requires.
        let memory = unsafe { RawMemory::new(address, len, usage.intersects(WRITTEN)) };
        Ok(Self::reg(peer, memory, usage)?)
    }
}

impl Mr<PmemMap> {
    /// Makes the bytes in `range` of the map persistent, as [`PmemMap::persist`] does. This covers
    /// the stores of this host's processors. It also covers the peer's writes, after the peer has
    /// reported their completions to this host. librpma's general-purpose server method, here
    /// [`Method::Server`](crate::commit::Method::Server), works in this way
    /// ([persistence](crate::guide::persistence)).
    ///
    /// # Errors
    ///
    /// As [`PmemMap::persist`].
    pub fn persist(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.registered.persist(range)
    }
}

impl<M> Mr<M> {
    /// Returns the region's descriptor, from which a peer makes its [`MrRemote`]: 21 bytes, as in
    /// librpma.
    ///
    /// A remote host that has the descriptor can use the region as [its
    /// usage](Self::get_usage) permits. It can do so over any connection of the region's [`Peer`].
    #[doc(alias = "rpma_mr_get_descriptor")]
    #[must_use]
    pub fn get_descriptor(&self) -> [u8; 21] {
        self.as_remote().to_descriptor()
    }

    /// Whether its device may execute an operation before earlier ones.
    pub(crate) fn device_reorders(&self) -> bool {
        !self.peer.attributes().soft_roce
    }

    pub(crate) fn is_of(&self, peer: &Peer) -> bool {
        self.peer.key() == peer.key()
    }

    /// The region as the peer will see it.
    pub(crate) fn as_remote(&self) -> MrRemote {
        let address = self.registered.address().as_ptr().addr() as u64;
        let size = self.registered.len() as u64;
        MrRemote::new(address, size, self.registered.rkey(), self.get_usage())
    }

    /// Returns the size of the region's descriptor in bytes: always 21.
    #[doc(alias = "rpma_mr_get_descriptor_size")]
    #[must_use]
    pub fn get_descriptor_size(&self) -> usize {
        DESCRIPTOR_SIZE
    }

    /// Returns the address of the memory. Reading or writing through the pointer races with the
    /// device.
    #[doc(alias = "rpma_mr_get_ptr")]
    #[must_use]
    pub fn get_ptr(&self) -> *mut u8 {
        self.registered.address().as_ptr()
    }

    /// Returns the size of the memory in bytes.
    #[doc(alias = "rpma_mr_get_size")]
    #[must_use]
    pub fn get_size(&self) -> usize {
        self.registered.len()
    }

    /// Returns the permitted uses of the region.
    #[must_use]
    pub fn get_usage(&self) -> MrUsage {
        self.tag.usage()
    }

    /// Returns a part of the region for operations, and checks its bounds once. `..` is all of it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the range is not inside the region.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MrSlice<'_>> {
        let (start, end) = range::local_ends(&range, self.registered.len());
        match self.registered.buffer(start, end) {
            Some(buffer) => Ok(MrSlice {
                buffer,
                tag: self.tag.with_len((end - start) as u64),
            }),
            None => Err(*self.outside(start, end)),
        }
    }

    /// In a box: an error that is written through a pointer would keep the results of all callers
    /// in memory.
    #[cold]
    #[inline(never)]
    fn outside(&self, start: usize, end: usize) -> Box<Error> {
        let (start, end, size) = (start as u64, end as u64, self.registered.len() as u64);
        Box::new(range::outside(start, end, size, REGION))
    }

    /// Advises the device that a part of the memory will be used soon, so that it is paged in. For
    /// regions with on-demand paging. It does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the range is not inside the region or has more than 2³² − 1
    /// bytes, or if the device finds the advice wrong (`EINVAL`, `EFAULT`). [`Error::NotSupported`]
    /// if the device has no such call. [`Error::Provider`] if `ibv_advise_mr` fails otherwise.
    #[doc(alias = "rpma_mr_advise")]
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<()> {
        self.pass_advice(&range, advice, false)
    }

    /// As [`advise`](Self::advise), and returns when the device has followed the advice
    /// (`IBV_ADVISE_MR_FLAG_FLUSH`).
    ///
    /// # Errors
    ///
    /// As [`advise`](Self::advise).
    pub fn advise_and_wait(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<()> {
        self.pass_advice(&range, advice, true)
    }

    fn pass_advice(
        &self,
        range: &impl RangeBounds<usize>,
        advice: Advice,
        wait: bool,
    ) -> Result<()> {
        let range = self.resolve(range)?;
        let len = u32::try_from(range.len()).map_err(|_| {
            Error::invalid(format!(
                "advice on {} bytes: at most {} at a time",
                range.len(),
                u32::MAX
            ))
        })?;
        let result = self
            .registered
            .advise(range.start, len, advice as u32, wait);
        result.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP) => {
                Error::not_supported("this device takes no advice on memory regions (ibv_advise_mr)")
            }
            Some(Errno::INVAL | Errno::FAULT) => Error::invalid(format!(
                "the device refuses the advice (is the region on-demand paged, and does its usage fit \
                 the advice?): {error}"
            )),
            _ => error,
        })
    }

    /// Copies `bytes.len()` bytes at `offset` into `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if they are not inside the region.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.resolve(&(offset..offset.saturating_add(bytes.len())))?;
        self.registered.read(offset, bytes);
        Ok(())
    }

    /// Copies `bytes` to `offset`. No other byte is written.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if they do not fit inside the region, or if the memory is
    /// read-only.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.resolve(&(offset..offset.saturating_add(bytes.len())))?;
        self.check_writable()?;
        self.registered.write(offset, bytes);
        Ok(())
    }

    /// Loads the 8 bytes at `offset` as one unit, in host byte order.
    ///
    /// The load acquires. After it, everything is visible that this host's threads stored earlier
    /// than the value. For the writes of a peer, this holds only if the peer wrote the value with
    /// [`atomic_write`](crate::Conn::atomic_write). Even then it holds only for the bytes in [the
    /// table of `Conn`](crate::Conn#order).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes are not inside the region, or their address is not a
    /// multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.check_atomic(offset)?;
        Ok(self.registered.load_u64(offset))
    }

    /// Stores the 8 bytes at `offset` as one unit, in host byte order. The store releases:
    /// everything that this thread stored earlier is visible before the value.
    ///
    /// # Errors
    ///
    /// As [`load_u64`](Self::load_u64), or if the memory is read-only.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.check_atomic(offset)?;
        self.check_writable()?;
        self.registered.store_u64(offset, value);
        Ok(())
    }

    /// Returns the whole memory as a slice.
    ///
    /// # Safety
    ///
    /// While the slice lives, the memory is not written. No operation that writes to it is in
    /// flight, no peer that has the descriptor with a right to write uses it, and no other thread
    /// or process writes.
    #[expect(unsafe_code, reason = "a declaration: the contract is the caller's")]
    #[must_use]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `# Safety` of this function has the preconditions of `Registered::as_slice`.
        unsafe { self.registered.as_slice() }
    }

    /// Returns the whole memory as a mutable slice.
    ///
    /// # Safety
    ///
    /// The memory is writable. While the slice lives, the memory is not read or written by others.
    /// No operation on it is in flight, no peer that has the descriptor uses it, and no other
    /// thread or process accesses it.
    #[expect(unsafe_code, reason = "a declaration: the contract is the caller's")]
    #[must_use]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `# Safety` of this function has the preconditions of `Registered::as_mut_slice`.
        unsafe { self.registered.as_mut_slice() }
    }

    fn resolve(&self, range: &impl RangeBounds<usize>) -> Result<Range<usize>> {
        range::resolve_local(range, self.registered.len(), REGION)
    }

    fn check_writable(&self) -> Result<()> {
        if self.writable {
            Ok(())
        } else {
            Err(Error::invalid("the memory of this region is read-only"))
        }
    }

    fn check_atomic(&self, offset: usize) -> Result<()> {
        self.resolve(&(offset..offset.saturating_add(size_of::<u64>())))?;
        let address = self.registered.address().as_ptr().addr() + offset;
        if address % size_of::<u64>() == 0 {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "the 8 bytes at offset {offset} begin at {address:#x}, which is not a multiple of 8"
            )))
        }
    }
}

impl<M> fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("registered", &self.registered)
            .field("usage", &self.get_usage())
            .finish_non_exhaustive()
    }
}

/// A part of a local region, as an operation takes it. The part borrows the region. A posted
/// operation does not: the region may be dropped while the operation is in flight.
#[derive(Clone, Copy, Debug)]
pub struct MrSlice<'mr> {
    buffer: LocalBuffer<'mr>,
    tag: Tag,
}

impl<'mr> MrSlice<'mr> {
    /// No memory at all, for operations of 0 bytes: the C library's NULL.
    pub const EMPTY: MrSlice<'static> = MrSlice {
        buffer: LocalBuffer::EMPTY,
        tag: Tag::new(PeerKey::ANY, MrUsage::all()),
    };

    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.tag.len(self.buffer.len())
    }

    /// Returns whether the part has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }

    /// Whether a check of the [tag](Self::tag) gives the same result for both: they have the same
    /// peer, usages, and upper half of the length.
    #[inline(always)]
    pub(crate) fn is_like(&self, other: &MrSlice<'_>) -> bool {
        self.tag == other.tag
    }

    /// Whether it is as long as `remote`, if its own length has 32 bits.
    #[inline(always)]
    pub(crate) fn is_as_long_as(&self, remote: &RemoteSlice) -> bool {
        u64::from(self.buffer.len()) == remote.len()
    }

    #[inline]
    pub(crate) fn buffer(&self) -> LocalBuffer<'mr> {
        self.buffer
    }
}

/// The advice to a device about memory (`enum ibv_advise_mr_advice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Advice {
    /// Page it in for reading.
    Prefetch = 0,
    /// Page it in for writing.
    PrefetchWrite = 1,
    /// Give the device the pages that are already in RAM, without a page fault.
    PrefetchNoFault = 2,
}
