//! Posting through the calls of an extended queue pair (`struct ibv_qp_ex`), which native flushes
//! and atomic writes need: `ibv_wr_start`, a call for each request, `ibv_wr_complete`.
//!
//! The rules of `post.rs` hold here. The calls, which `verbs.h` has as `static inline` look-ups,
//! are looked up once.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use rpma_sys as sys;
use rustix::io::Errno;

#[cfg(all(native_flush, native_atomic_write))]
use super::LocalBuffer;
#[cfg(native_flush)]
use super::wr::Placement;
#[cfg(native_flush)]
use super::wr::RemoteAddress;
use super::wr::{Call, PostError, SendFlags, SendWr, check_posted, not_posted};
use super::{NativeOps, QueuePair};

/// The longest stretch that one native flush names: its length has 32 bits on the wire, and a
/// responder refuses more than 2³¹ bytes.
pub(crate) const MAX_FLUSH: u64 = 1 << 31;

#[derive(Clone, Copy)]
pub(super) struct StreamCalls {
    qp: NonNull<sys::ibv_qp_ex>,
    start: unsafe extern "C" fn(*mut sys::ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut sys::ibv_qp_ex) -> c_int,
    abort: unsafe extern "C" fn(*mut sys::ibv_qp_ex),
    read: RdmaCall,
    write: RdmaCall,
    write_imm: unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32),
    send: unsafe extern "C" fn(*mut sys::ibv_qp_ex),
    send_imm: unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32),
    set_sge: unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32),
    set_inline_data: unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut c_void, usize),
    #[cfg(native_flush)]
    flush: FlushCall,
    #[cfg(native_atomic_write)]
    atomic_write: AtomicWriteCall,
}

type RdmaCall = unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64);
#[cfg(native_flush)]
type FlushCall = unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, usize, u8, u8);
#[cfg(native_atomic_write)]
type AtomicWriteCall = unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, *const c_void);

impl StreamCalls {
    /// The calls of a queue pair that was created with `native`; `None` if a call is missing.
    ///
    /// # Safety
    ///
    /// The queue pair is alive, and is as long as the value is used.
    pub(super) unsafe fn of(qp: NonNull<sys::ibv_qp>, native: NativeOps) -> Option<Self> {
        if native == NativeOps::default() {
            return None;
        }
        // SAFETY: by `# Safety` the queue pair is alive.
        let qp = NonNull::new(unsafe { sys::ibv_qp_to_qp_ex(qp.as_ptr()) })?;
        // SAFETY: it is the same queue pair, which by `# Safety` is alive. There is no post yet
        // that would change it.
        let calls = unsafe { qp.as_ref() };
        Some(Self {
            qp,
            start: calls.wr_start?,
            complete: calls.wr_complete?,
            abort: calls.wr_abort?,
            read: calls.wr_rdma_read?,
            write: calls.wr_rdma_write?,
            write_imm: calls.wr_rdma_write_imm?,
            send: calls.wr_send?,
            send_imm: calls.wr_send_imm?,
            set_sge: calls.wr_set_sge?,
            set_inline_data: calls.wr_set_inline_data?,
            #[cfg(native_flush)]
            flush: if native.flush {
                calls.wr_flush?
            } else {
                no_flush
            },
            #[cfg(native_atomic_write)]
            atomic_write: if native.atomic_write {
                calls.wr_atomic_write?
            } else {
                no_atomic_write
            },
        })
    }
}

impl StreamCalls {
    /// The fields that the next request carries.
    #[inline(always)]
    pub(super) fn request(&self, wr_id: u64, flags: SendFlags) {
        let qp = self.qp.as_ptr();
        // SAFETY: by `# Safety` of `of` the queue pair is alive. These two fields are the caller's
        // to write, and the next call that adds a request reads them. One thread at a time: a
        // posting thread holds the lock of the send queue's slots (`Ring::posting`).
        unsafe { (*qp).wr_id = wr_id };
        // SAFETY: by `# Safety` of `of` the queue pair is alive, and this thread holds the lock of
        // the send queue's slots, as for `wr_id`.
        unsafe { (*qp).wr_flags = flags.bits() };
    }
}

/// Stands in the place of a call that the queue pair does not have, and that is never made: see
/// [`QueuePair::native_ops`].
#[cfg(native_flush)]
extern "C" fn no_flush(_: *mut sys::ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {}

#[cfg(native_atomic_write)]
extern "C" fn no_atomic_write(_: *mut sys::ibv_qp_ex, _: u32, _: u64, _: *const c_void) {}

impl QueuePair {
    /// The calls, which a queue pair with native operations has.
    #[inline(always)]
    pub(super) fn stream(&self) -> Result<&StreamCalls, PostError> {
        match &self.stream {
            Some(calls) => Ok(calls),
            None => Err(not_posted(
                Call::WrStart,
                Errno::OPNOTSUPP.raw_os_error(),
                false,
            )),
        }
    }

    /// How many send-queue slots a native flush of `len` bytes takes.
    #[cfg(native_flush)]
    pub(crate) fn flush_slots(len: u64) -> u32 {
        u32::try_from(len.div_ceil(MAX_FLUSH)).unwrap_or(u32::MAX)
    }

    /// Posts a native flush in [`flush_slots`](Self::flush_slots) requests; the last one carries
    /// `flags`. `wr_id` numbers them, from 0 on.
    #[cfg(native_flush)]
    pub(crate) fn post_long_flush(
        &self,
        mut remote: RemoteAddress,
        len: u64,
        persistent: bool,
        flags: SendFlags,
        wr_id: impl Fn(u32) -> u64,
    ) -> Result<(), PostError> {
        let stream = Stream::start(self.stream()?);
        let mut left = len;
        for number in 0..Self::flush_slots(len) {
            let chunk = left.min(MAX_FLUSH);
            left -= chunk;
            let flags = if left == 0 { flags } else { SendFlags::empty() };
            stream.calls.request(wr_id(number), flags);
            stream.flush_range(remote, chunk, Placement::new(persistent));
            remote.address = remote.address.wrapping_add(chunk);
        }
        stream.complete()
    }
}

/// Requests between `ibv_wr_start` and `ibv_wr_complete`. rxe holds the send queue's lock in
/// between, so every way out must end it: dropping it aborts it. So each value is an open stream of
/// the queue pair that `calls` are of, as long as it exists.
pub(crate) struct Stream<'qp> {
    calls: &'qp StreamCalls,
    /// A copy of the pointer in `calls`, which no write through it can change.
    qp: NonNull<sys::ibv_qp_ex>,
}

impl<'qp> Stream<'qp> {
    #[inline(always)]
    pub(super) fn start(calls: &'qp StreamCalls) -> Self {
        // SAFETY: by `# Safety` of `StreamCalls::of` the queue pair is alive as long as `calls` is
        // used. The stream ends in `complete` or in `drop`.
        unsafe { (calls.start)(calls.qp.as_ptr()) };
        let qp = calls.qp;
        Self { calls, qp }
    }

    #[inline(always)]
    fn qp(&self) -> *mut sys::ibv_qp_ex {
        self.qp.as_ptr()
    }

    #[cfg(all(native_flush, native_atomic_write))]
    #[inline(always)]
    pub(super) fn set_number(&self, wr_id: u64) {
        // SAFETY: `self` is an open stream of the queue pair, from `start` until `complete` or
        // `drop`. The field is this side's to write, and the thread holds the lock of the send
        // queue's slots.
        unsafe { (*self.qp()).wr_id = wr_id };
    }

    /// Sets the flags of the next requests: the calls only look at them.
    #[cfg(all(native_flush, native_atomic_write))]
    #[inline(always)]
    pub(super) fn set_flags(&self, flags: SendFlags) {
        // SAFETY: `self` is an open stream of the queue pair, from `start` until `complete` or
        // `drop`. The field is this side's to write, and the thread holds the lock of the send
        // queue's slots.
        unsafe { (*self.qp()).wr_flags = flags.bits() };
    }

    /// Adds a write. Its [local buffer](Self::set_local) comes next.
    #[cfg(all(native_flush, native_atomic_write))]
    #[inline(always)]
    pub(super) fn write(&self, remote: RemoteAddress) {
        // SAFETY: `self` is an open stream of the queue pair that the call is of.
        unsafe { (self.calls.write)(self.qp(), remote.rkey, remote.address) };
    }

    /// The local buffer of the request that was added last, of some bytes.
    #[cfg(all(native_flush, native_atomic_write))]
    #[inline(always)]
    pub(super) fn set_local(&self, local: LocalBuffer<'_>) {
        let sge = local.to_sge();
        // SAFETY: `self` is an open stream of the queue pair that the call is of. For later reads
        // of the device see the head of `post.rs`.
        unsafe { (self.calls.set_sge)(self.qp(), sge.lkey, sge.addr, sge.length) };
    }

    #[cfg(all(native_flush, native_atomic_write))]
    #[inline(always)]
    pub(super) fn atomic_write(&self, remote: RemoteAddress, bytes: &[u8; 8]) {
        let (call, RemoteAddress { address, rkey }) = (self.calls.atomic_write, remote);
        // SAFETY: `self` is an open stream of the queue pair that the call is of. It copies the
        // bytes.
        unsafe { call(self.qp(), rkey, address, bytes.as_ptr().cast()) };
    }

    #[cfg(native_flush)]
    #[inline(always)]
    pub(super) fn flush_range(&self, remote: RemoteAddress, len: u64, placement: Placement) {
        let level = sys::ibv_selectivity_level::IBV_FLUSH_RANGE;
        let (flush, RemoteAddress { address, rkey }) = (self.calls.flush, remote);
        // SAFETY: `self` is an open stream of the queue pair that the call is of.
        unsafe {
            flush(
                self.qp(),
                rkey,
                address,
                len as usize,
                placement.0,
                level.0 as u8,
            )
        };
    }

    /// Adds a request that is written down as [`SendWr`] has it, with at most one local buffer. Its
    /// [number and flags](StreamCalls::request) are set.
    ///
    /// # Safety
    ///
    /// Its buffer is written, even if it is empty. The source of an inline or atomic write, named
    /// by its buffer, may be read now.
    #[inline(always)]
    pub(super) unsafe fn add<const FORM: u8>(&self, wr: &SendWr) {
        type Code = sys::ibv_wr_opcode;
        let (qp, calls) = (self.qp(), self.calls);
        let (rkey, address) = (wr.rkey, wr.remote_addr);
        // SAFETY: by `# Safety` the buffer is written.
        let sge = unsafe { wr.sge.assume_init_ref() };
        let opcode = match FORM {
            #[cfg(native_flush)]
            super::batch::FLUSH => Code::IBV_WR_FLUSH,
            #[cfg(native_atomic_write)]
            super::batch::ATOMIC => Code::IBV_WR_ATOMIC_WRITE,
            _ => wr.opcode,
        };
        match opcode {
            Code::IBV_WR_RDMA_WRITE if wr.send_flags & SendFlags::INLINE.bits() == 0 => {
                // SAFETY: `self` is an open stream of the queue pair that the call is of.
                unsafe { (calls.write)(qp, rkey, address) };
                // SAFETY: `self` is an open stream of the queue pair that the call is of. The call
                // is for the write that was added last.
                unsafe { (calls.set_sge)(qp, sge.lkey, sge.addr, sge.length) };
            }
            #[cfg(native_flush)]
            Code::IBV_WR_FLUSH => {
                let remote = RemoteAddress { address, rkey };
                let placement = Placement::new(wr.imm_data != 0);
                self.flush_range(remote, sge.length.into(), placement);
            }
            #[cfg(native_atomic_write)]
            Code::IBV_WR_ATOMIC_WRITE => {
                let bytes = ptr::with_exposed_provenance::<c_void>(sge.addr as usize);
                // SAFETY: `self` is an open stream of the queue pair that the call is of. By
                // `# Safety` the 8 bytes may be read.
                unsafe { (calls.atomic_write)(qp, rkey, address, bytes) };
            }
            // SAFETY: by `# Safety` the source of an inline operation may be read now, which is all
            // that `add_any` requires.
            _ => unsafe { self.add_any(wr, *sge) },
        }
    }

    /// As [`add`](Self::add), for a plain operation of any kind, with its number and flags set.
    ///
    /// # Safety
    ///
    /// The source of an inline operation, named by its buffer, may be read now.
    #[inline(never)]
    unsafe fn add_any(&self, wr: &SendWr, sge: sys::ibv_sge) {
        type Code = sys::ibv_wr_opcode;
        let (qp, calls) = (self.qp(), self.calls);
        let (rkey, address, imm) = (wr.rkey, wr.remote_addr, wr.imm_data);
        match wr.opcode {
            // SAFETY: `self` is an open stream of the queue pair that the call is of.
            Code::IBV_WR_RDMA_WRITE => unsafe { (calls.write)(qp, rkey, address) },
            // SAFETY: `self` is an open stream of the queue pair that the call is of. The immediate
            // data is in network byte order.
            Code::IBV_WR_RDMA_WRITE_WITH_IMM => unsafe {
                (calls.write_imm)(qp, rkey, address, imm);
            },
            // SAFETY: `self` is an open stream of the queue pair that the call is of.
            Code::IBV_WR_RDMA_READ => unsafe { (calls.read)(qp, rkey, address) },
            // SAFETY: `self` is an open stream of the queue pair that the call is of.
            Code::IBV_WR_SEND => unsafe { (calls.send)(qp) },
            // SAFETY: `self` is an open stream of the queue pair that the call is of. The immediate
            // data is in network byte order.
            Code::IBV_WR_SEND_WITH_IMM => unsafe { (calls.send_imm)(qp, imm) },
            _ => unreachable!("no request is written down with {:?}", wr.opcode),
        }
        if wr.send_flags & SendFlags::INLINE.bits() != 0 {
            let bytes = ptr::with_exposed_provenance_mut(sge.addr as usize);
            // SAFETY: `self` is an open stream of the queue pair that the call is of. The call is
            // for the request that was added last. By `# Safety` the bytes may be read, and the
            // call only reads them.
            unsafe { (calls.set_inline_data)(qp, bytes, sge.length as usize) };
        } else {
            // SAFETY: `self` is an open stream of the queue pair that the call is of. The call is
            // for the request that was added last.
            unsafe { (calls.set_sge)(qp, sge.lkey, sge.addr, sge.length) };
        }
    }

    #[inline(always)]
    pub(super) fn complete(self) -> Result<(), PostError> {
        let stream = std::mem::ManuallyDrop::new(self);
        // SAFETY: `start` has opened the stream, and `ManuallyDrop` keeps `drop` from ending it
        // again.
        let ret = unsafe { (stream.calls.complete)(stream.qp()) };
        // For any result: rxe publishes the requests first, and then the kernel may be out of
        // memory.
        check_posted(Call::WrComplete, ret, true)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // SAFETY: `start` has opened the stream. `complete` has not ended it: it runs no `drop`.
        unsafe { (self.calls.abort)(self.qp()) };
    }
}
