//! Memory regions (`struct ibv_mr`) and the memory that they own.

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use rpma_sys as sys;

use super::copy::{copy_from_shared, copy_to_shared, load_u64, store_u64};
use super::{Pd, RegisterableMemory, check_errno, check_non_null, log_leak};
use crate::error::Result;

bitflags::bitflags! {
    /// `enum ibv_access_flags`. The two flush rights have the kernel's values: rdma-core 44 lacks
    /// them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct AccessFlags: u32 {
        const LOCAL_WRITE = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        const REMOTE_WRITE = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        const REMOTE_READ = sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        const ON_DEMAND = sys::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        const FLUSH_GLOBAL = 1 << 8;
        const FLUSH_PERSISTENT = 1 << 9;
    }
}

/// A part of a region that exists for as long as `'mr`, for work requests. Only a region makes one.
///
/// Two words, so that it travels in registers.
#[derive(Clone, Copy)]
pub(crate) struct LocalBuffer<'mr> {
    address: u64,
    /// The length in the lower half, the lkey in the upper one.
    len_and_lkey: u64,
    region: PhantomData<&'mr ()>,
}

impl LocalBuffer<'_> {
    pub(crate) const EMPTY: Self = Self {
        address: 0,
        len_and_lkey: 0,
        region: PhantomData,
    };

    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        self.len_and_lkey as u32
    }

    #[inline(always)]
    pub(crate) fn first(self, len: u64) -> Self {
        let len = len.min(self.len().into());
        Self {
            len_and_lkey: self.len_and_lkey >> 32 << 32 | len,
            ..self
        }
    }

    #[inline(always)]
    pub(super) fn to_sge(self) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: self.address,
            length: self.len(),
            lkey: (self.len_and_lkey >> 32) as u32,
        }
    }
}

/// The target of reads with bytes that are never used. It does not keep its region alive: the
/// device checks the key, and only the device writes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTarget(pub(super) LocalBuffer<'static>);

impl ReadTarget {
    pub(crate) const EMPTY: Self = Self(LocalBuffer::EMPTY);

    #[inline(always)]
    pub(crate) fn first(self, len: u64) -> Self {
        Self(self.0.first(len))
    }
}

impl From<LocalBuffer<'_>> for ReadTarget {
    fn from(buffer: LocalBuffer<'_>) -> Self {
        Self(LocalBuffer {
            region: PhantomData,
            ..buffer
        })
    }
}

impl fmt::Debug for LocalBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_sge().fmt(f)
    }
}

/// Registered memory: a region and the owner of its bytes.
///
/// Deregistering comes before freeing, always: after `ibv_dereg_mr` no device touches the memory,
/// even for operations in flight. If it fails, the owner is leaked.
///
/// The owner is kept as [`MaybeUninit`], and no reference to it is made while it is registered,
/// except by [`owner`](Self::owner): a `Box` in a moved struct claims to be the only way to its
/// bytes, which a device's writes would contradict.
pub(crate) struct Registered<M> {
    region: NonNull<sys::ibv_mr>,
    address: NonNull<u8>,
    len: usize,
    lkey: u32,
    memory: MaybeUninit<M>,
    /// Set while `region` and `memory` are this value's to release.
    live: bool,
    pd: Arc<Pd>,
}

// SAFETY: `M` is `Send` (a supertrait of `RegisterableMemory`), so the owner may be dropped on
// another thread. libibverbs lets any thread deregister, and `pd` is `Send`.
unsafe impl<M: RegisterableMemory> Send for Registered<M> {}
// SAFETY: `&self` gives out a `&M` only by `owner`, whose caller guarantees that `M` is `Sync`. The
// bytes are read and written only through routines that expect others to do the same at any time,
// or by slices of unsafe functions.
unsafe impl<M: RegisterableMemory> Sync for Registered<M> {}

impl<M: RegisterableMemory> Registered<M> {
    /// Registers `memory`, or gives it back. Its length must not be 0.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        memory: M,
        access: AccessFlags,
    ) -> Result<Self, (crate::Error, M)> {
        let mut memory = MaybeUninit::new(memory);
        // SAFETY: initialised in the line above.
        let owner = unsafe { memory.assume_init_mut() };
        let (address, len) = (owner.as_mut_ptr(), owner.len());
        // SAFETY: `pd` is borrowed. `RegisterableMemory` promises that `address` and `len` describe
        // memory that stays where it is until the owner is dropped, which happens after the region
        // is gone.
        let region =
            unsafe { sys::rpma_sys_reg_mr(pd.as_ptr(), address.cast(), len, access.bits()) };
        let found = check_non_null("ibv_reg_mr", region)
            .and_then(|region| Ok((region, check_non_null("ibv_reg_mr", address)?)));
        match found {
            Ok((region, address)) => Ok(Self {
                region,
                address,
                len,
                // SAFETY: `ibv_reg_mr` has just returned the region, and only `deregister` frees
                // it.
                lkey: unsafe { (*region.as_ptr()).lkey },
                memory,
                live: true,
                pd: Arc::clone(pd),
            }),
            // SAFETY: initialised at the top, and read only here: no `Registered` has it.
            Err(error) => Err((error, unsafe { memory.assume_init_read() })),
        }
    }

    /// Deregisters the memory and gives it back. On failure it stays registered and allocated, for
    /// ever.
    pub(crate) fn release(mut self) -> Result<M> {
        self.deregister()?;
        // SAFETY: `deregister` cleared `live`, so `Drop` does not touch the owner, which was
        // initialised in `new` and is read only here.
        Ok(unsafe { self.memory.assume_init_read() })
    }
}

impl<M> Registered<M> {
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: only `deregister` frees the region, which `release` and `drop` call as the last
        // use of it.
        unsafe { (*self.region.as_ptr()).rkey }
    }

    /// The part of the memory from `start` to before `end`, for work requests. It keeps the lower
    /// 32 bits of its length. `None` if it is not inside.
    #[inline(always)]
    pub(crate) fn buffer(&self, start: usize, end: usize) -> Option<LocalBuffer<'_>> {
        if start > end || end > self.len {
            return None;
        }
        let len = end - start;
        // SAFETY: `start` and `end` are at most `self.len`, by the check above.
        let address = unsafe { self.address.add(start) };
        Some(LocalBuffer {
            address: address.as_ptr().expose_provenance() as u64,
            len_and_lkey: u64::from(self.lkey) << 32 | u64::from(len as u32),
            region: PhantomData,
        })
    }

    /// Advises the device that a part of the memory will be used soon. The caller has checked the
    /// range.
    pub(crate) fn advise(&self, offset: usize, len: u32, advice: u32, wait: bool) -> Result<()> {
        let part = self.buffer(offset, offset + len as usize);
        let mut sge = part.expect("the caller checked the range").to_sge();
        let advice = sys::ib_uverbs_advise_mr_advice(advice);
        // IBV_ADVISE_MR_FLAG_FLUSH, which the headers have as a macro only.
        let flags = u32::from(wait);
        // SAFETY: `self.pd` keeps the domain; the call reads the one entry.
        let ret = unsafe { sys::ibv_advise_mr(self.pd.as_ptr(), advice, flags, &raw mut sge, 1) };
        check_errno("ibv_advise_mr", ret)
    }

    /// The caller has checked the range.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(
            self.contains(offset, bytes.len()),
            "the caller checked the range"
        );
        // SAFETY: inside the memory, by the assertion.
        let from = unsafe { self.address.add(offset) };
        // SAFETY: the memory is initialised and stays mapped while `self.memory` is owned here, and
        // `bytes` is not part of it: a `&mut` into registered memory cannot be had safely.
        unsafe { copy_from_shared(from.as_ptr(), bytes) };
    }

    /// The memory must be writable. The caller has checked the range.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            self.contains(offset, bytes.len()),
            "the caller checked the range"
        );
        // SAFETY: inside the memory, by the assertion.
        let to = unsafe { self.address.add(offset) };
        // SAFETY: the memory stays mapped while `self.memory` is owned here, and `bytes` is not
        // part of it: a reference into registered memory cannot be had safely. The caller has
        // checked that the memory is writable.
        unsafe { copy_to_shared(bytes, to.as_ptr()) };
    }

    /// Loads 8 bytes at once. The caller has checked the range and the alignment.
    pub(crate) fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: `atomic` checks that the 8 bytes are inside and aligned. They are initialised and
        // stay mapped while `self.memory` is owned here.
        unsafe { load_u64(self.atomic(offset)) }
    }

    /// Stores 8 bytes at once. The caller has checked the range, the alignment, and that the
    /// memory is writable.
    pub(crate) fn store_u64(&self, offset: usize, value: u64) {
        // SAFETY: `atomic` checks that the 8 bytes are inside and aligned. They stay mapped while
        // `self.memory` is owned here, and the caller has checked that they are writable.
        unsafe { store_u64(self.atomic(offset), value) };
    }

    /// The address of 8 aligned bytes inside the memory.
    fn atomic(&self, offset: usize) -> *mut u64 {
        assert!(
            self.contains(offset, size_of::<u64>()),
            "the caller checked the range"
        );
        // SAFETY: inside the memory, by the assertion.
        let address = unsafe { self.address.add(offset) }.as_ptr();
        assert!(
            address.addr() % size_of::<u64>() == 0,
            "the caller checked the alignment"
        );
        address.cast()
    }

    /// # Safety
    ///
    /// See `Mr::as_slice`.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `RegisterableMemory` promises `len` initialised bytes at `address` as long as
        // `self.memory` is owned here. By `# Safety` they do not change while the slice lives.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    /// # Safety
    ///
    /// See `Mr::as_mut_slice`.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `RegisterableMemory` promises `len` initialised bytes at `address` as long as
        // `self.memory` is owned here. By `# Safety` they are writable, and there is no other
        // access.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }

    /// The owner of the memory.
    ///
    /// # Safety
    ///
    /// A reference to the owner makes no claim about the memory: the owner has a raw pointer to it.
    /// `M` is `Sync`: other threads may have a reference to it at the same time.
    pub(crate) unsafe fn owner(&self) -> &M {
        // SAFETY: `new` initialises the owner, and only `release` and `drop` take it out, as the
        // last use. By `# Safety` the reference contradicts no write of a device and no access of
        // another thread.
        unsafe { self.memory.assume_init_ref() }
    }

    /// Afterwards the owner is the caller's to free, unless this failed.
    fn deregister(&mut self) -> Result<()> {
        self.live = false;
        // SAFETY: `live` was set, so that the region is there: `release` and `drop` call this once.
        let ret = unsafe { sys::ibv_dereg_mr(self.region.as_ptr()) };
        check_errno("ibv_dereg_mr", ret)
    }

    #[inline]
    fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

impl<M> fmt::Debug for Registered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("address", &self.address)
            .field("len", &self.len)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey())
            .finish()
    }
}

impl<M> Drop for Registered<M> {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        match self.deregister() {
            // SAFETY: the region is gone, and the owner was initialised in `new` and not taken out.
            Ok(()) => unsafe { self.memory.assume_init_drop() },
            Err(error) => log_leak(Err(error)),
        }
    }
}
