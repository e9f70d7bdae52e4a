//! Posting to a queue pair.
//!
//! Posting takes `&self`: the providers lock a queue while they write to it.
//!
//! Nothing here can make a device touch memory that is not registered. An address and a key that do
//! not belong to a region of the queue pair's domain are refused by the device, and the operation
//! completes with an error. Registered memory is written by devices at any time, and its owners count
//! on that. So posting is safe, whatever becomes of the region before the operation is done.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use rpma_sys as sys;

use super::wr::{MAX_SGE, Opcode, PostError, RemoteAddress, SendFlags, check_posted, recv_wr};
use super::{LocalBuffer, QueuePair};
use crate::error::Result;

/// The longest stretch that one native flush names: its length has 32 bits on the wire, and a
/// responder refuses more than 2³¹ bytes.
#[cfg(native_flush)]
const MAX_FLUSH: u64 = 1 << 31;

impl QueuePair {
    /// Posts a work request with up to [`MAX_SGE`] local buffers, whose lengths have 32 bits. Without
    /// the flag `INLINE` the buffers are read when the request is executed.
    #[inline]
    pub(crate) fn post_send(
        &self,
        opcode: Opcode,
        remote: RemoteAddress,
        local: &[LocalBuffer<'_>],
        flags: SendFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let mut sges = [const { MaybeUninit::uninit() }; MAX_SGE];
        let mut count = 0;
        for buffer in local.iter().filter(|buffer| buffer.len() > 0) {
            sges[count].write(buffer.to_sge());
            count += 1;
        }
        self.post_sges(
            opcode,
            remote,
            (sges.as_mut_ptr().cast(), count),
            flags,
            wr_id,
        )
    }

    /// Posts a write of 8 bytes, which travel inside the work request.
    pub(crate) fn post_inline_write(
        &self,
        remote: RemoteAddress,
        bytes: &[u8; 8],
        flags: SendFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let address = bytes.as_ptr().expose_provenance() as u64;
        let mut sge = sys::ibv_sge {
            addr: address,
            length: 8,
            lkey: 0,
        };
        let flags = flags | SendFlags::INLINE;
        self.post_sges(Opcode::Write, remote, (&raw mut sge, 1), flags, wr_id)
    }

    /// The entries are initialised and describe registered memory, or with `INLINE` memory that lives
    /// now.
    #[inline]
    fn post_sges(
        &self,
        opcode: Opcode,
        remote: RemoteAddress,
        (sges, count): (*mut sys::ibv_sge, usize),
        flags: SendFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let (opcode, imm) = opcode.to_raw();
        let mut wr = sys::ibv_send_wr {
            wr_id,
            sg_list: sges,
            num_sge: count as i32,
            opcode,
            send_flags: flags.bits(),
            __bindgen_anon_1: sys::ibv_send_wr__bindgen_ty_1 {
                imm_data: imm.to_be(),
            },
            ..Default::default()
        };
        wr.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: remote.address,
            rkey: remote.rkey,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the call copies the request and its entries. Inline data is
        // read now: every `LocalBuffer` borrows its region, whose memory lives and may be read. For
        // what the device reads and writes later see the head of this module.
        let ret = unsafe { sys::ibv_post_send(self.as_ptr(), &raw mut wr, &raw mut bad) };
        check_posted("ibv_post_send", ret, bad.is_null())
    }

    /// Posts a receive.
    #[inline]
    pub(crate) fn post_recv(&self, local: LocalBuffer<'_>, wr_id: u64) -> Result<(), PostError> {
        let mut sge = local.to_sge();
        let mut wr = recv_wr(&mut sge, wr_id);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the call copies the request and its entry. The device checks
        // the key.
        let ret = unsafe { sys::ibv_post_recv(self.as_ptr(), &raw mut wr, &raw mut bad) };
        check_posted("ibv_post_recv", ret, bad.is_null())
    }

    /// Posts a native atomic write.
    #[cfg(native_atomic_write)]
    pub(crate) fn post_atomic_write(
        &self,
        remote: RemoteAddress,
        bytes: &[u8; 8],
        flags: SendFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        debug_assert!(
            self.native_ops().atomic_write,
            "the caller asked native_ops"
        );
        let batch = Batch::start(self);
        batch.set(wr_id, flags);
        let (address, rkey) = (remote.address, remote.rkey);
        // SAFETY: the queue pair was created with the operation, and the batch is open; the bytes are
        // copied into the request.
        unsafe {
            sys::ibv_wr_atomic_write(batch.qp.as_ptr(), rkey, address, bytes.as_ptr().cast());
        };
        batch.complete()
    }

    /// How many send-queue slots a native flush of `len` bytes takes.
    #[cfg(native_flush)]
    pub(crate) fn flush_slots(len: u64) -> u32 {
        u32::try_from(len.div_ceil(MAX_FLUSH)).unwrap_or(u32::MAX)
    }

    /// Posts a native flush of `len` bytes, in as many requests as [`flush_slots`](Self::flush_slots)
    /// says; the last one carries `flags`. `wr_id` numbers them, from 0 on.
    #[cfg(native_flush)]
    pub(crate) fn post_flush(
        &self,
        remote: RemoteAddress,
        len: u64,
        persistent: bool,
        flags: SendFlags,
        wr_id: impl Fn(u32) -> u64,
    ) -> Result<(), PostError> {
        debug_assert!(self.native_ops().flush, "the caller asked native_ops");
        let kind = match persistent {
            true => sys::ibv_placement_type::IBV_FLUSH_PERSISTENT,
            false => sys::ibv_placement_type::IBV_FLUSH_GLOBAL,
        };
        let batch = Batch::start(self);
        let mut done = 0;
        for number in 0..Self::flush_slots(len) {
            let chunk = (len - done).min(MAX_FLUSH);
            let last = done + chunk == len;
            batch.set(wr_id(number), if last { flags } else { SendFlags::empty() });
            let level = sys::ibv_selectivity_level::IBV_FLUSH_RANGE;
            // SAFETY: the queue pair was created with the flush operation, and the batch is open.
            unsafe {
                sys::ibv_wr_flush(
                    batch.qp.as_ptr(),
                    remote.rkey,
                    remote.address + done,
                    chunk as usize,
                    kind.0 as u8,
                    level.0 as u8,
                );
            };
            done += chunk;
        }
        batch.complete()
    }
}

/// Requests between `ibv_wr_start` and `ibv_wr_complete`. rxe holds the send queue's lock in between,
/// so every way out must end the batch: dropping it aborts it.
#[cfg(any(native_flush, native_atomic_write))]
struct Batch {
    qp: NonNull<sys::ibv_qp_ex>,
}

#[cfg(any(native_flush, native_atomic_write))]
impl Batch {
    fn start(qp: &QueuePair) -> Self {
        // SAFETY: the queue pair is alive.
        let qp = unsafe { sys::ibv_qp_to_qp_ex(qp.as_ptr()) };
        // SAFETY: not NULL: the queue pair was created with `send_ops_flags`, so it is extended.
        let qp = unsafe { NonNull::new_unchecked(qp) };
        // SAFETY: as above; the batch ends in `complete` or in `drop`.
        unsafe { sys::ibv_wr_start(qp.as_ptr()) };
        Self { qp }
    }

    /// What the next request carries.
    fn set(&self, wr_id: u64, flags: SendFlags) {
        let qp = self.qp.as_ptr();
        // SAFETY: the queue pair is alive; between start and complete these two fields are the
        // caller's to write, one batch at a time: the provider's lock or, in one without, its
        // promise that posting is thread-safe.
        unsafe { (*qp).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = flags.bits() };
    }

    fn complete(self) -> Result<(), PostError> {
        let batch = std::mem::ManuallyDrop::new(self);
        // SAFETY: the batch is open, and `drop` does not run.
        let ret = unsafe { sys::ibv_wr_complete(batch.qp.as_ptr()) };
        // Whatever it reports: rxe publishes the requests first, and then the kernel may be out of memory.
        check_posted("ibv_wr_complete", ret, true)
    }
}

#[cfg(any(native_flush, native_atomic_write))]
impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: the batch is open.
        unsafe { sys::ibv_wr_abort(self.qp.as_ptr()) };
    }
}
