//! The queue pair of a connection, with the id that connects it (`struct ibv_qp`, `struct ibv_qp_ex`).
//!
//! Posting takes `&self`: the providers lock a queue while they write to it.
//!
//! Nothing here can make a device touch memory that is not registered. An address and a key that do
//! not belong to a region of the queue pair's domain are refused by the device, and the operation
//! completes with an error. Registered memory is written by devices at any time, and its owners count
//! on that. So posting is safe, whatever becomes of the region before the operation is done.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rpma_sys as sys;
use rustix::io::Errno;

use super::srq::recv_wr;
use super::{
    CmEvent, CmId, CompletionQueue, Deadline, LocalBuffer, Pd, SharedReceiveQueue, check_errno,
    check_minus_one, check_non_null, log_leak,
};
use crate::error::{Error, Result};

/// How many local buffers a work request can have: more would not fit the stack frame of a post.
pub(crate) const MAX_SGE: usize = 16;

/// The longest stretch that one native flush names: its length has 32 bits on the wire, and a
/// responder refuses more than 2³¹ bytes.
#[cfg(native_flush)]
const MAX_FLUSH: u64 = 1 << 31;

/// A queue pair and its id. Dropping it destroys the queue pair, then the id (which tells the peer),
/// then lets go of the queues and the domain.
pub(crate) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    native: NativeOps,
    id: CmId,
    released: bool,
    _send_cq: Arc<CompletionQueue>,
    _recv_cq: Arc<CompletionQueue>,
    _srq: Option<Arc<SharedReceiveQueue>>,
    _pd: Arc<Pd>,
}

// SAFETY: verbs on a queue pair may be called from any thread; the connection-manager calls, which
// change it, are serialised by the lock of the id's channel.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// What a queue pair is made with.
#[derive(Debug)]
pub(crate) struct QpAttr<'cq> {
    pub(crate) send_cq: &'cq Arc<CompletionQueue>,
    pub(crate) recv_cq: &'cq Arc<CompletionQueue>,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) srq: Option<&'cq Arc<SharedReceiveQueue>>,
    pub(crate) native: NativeOps,
}

/// The operations beyond plain verbs that a queue pair has, or should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NativeOps {
    pub(crate) flush: bool,
    pub(crate) atomic_write: bool,
}

impl NativeOps {
    fn send_ops_flags(self) -> u64 {
        let mut flags = 0;
        if self.flush {
            #[cfg(native_flush)]
            {
                flags |= u64::from(sys::ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_FLUSH.0);
            }
        }
        if self.atomic_write {
            #[cfg(native_atomic_write)]
            {
                flags |=
                    u64::from(sys::ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_WRITE.0);
            }
        }
        flags
    }
}

/// What both sides tell each other when they connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnParam<'data> {
    pub(crate) private_data: &'data [u8],
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
}

impl ConnParam<'_> {
    /// The caller has checked that the private data fits.
    fn to_raw(self) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            // librdmacm takes these from the id's queue pair.
            srq: 0,
            qp_num: 0,
        }
    }
}

/// What a work request of the send queue does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opcode {
    Read,
    Write,
    /// With immediate data, in host byte order.
    WriteWithImm(u32),
    Send,
    /// With immediate data, in host byte order.
    SendWithImm(u32),
}

impl Opcode {
    #[inline]
    fn to_raw(self) -> (sys::ibv_wr_opcode, u32) {
        match self {
            Self::Read => (sys::ibv_wr_opcode::IBV_WR_RDMA_READ, 0),
            Self::Write => (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0),
            Self::WriteWithImm(imm) => (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, imm),
            Self::Send => (sys::ibv_wr_opcode::IBV_WR_SEND, 0),
            Self::SendWithImm(imm) => (sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, imm),
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteAddress {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

impl RemoteAddress {
    /// No memory at all: for messages, and for operations of 0 bytes.
    pub(crate) const NONE: Self = Self {
        address: 0,
        rkey: 0,
    };
}

/// Why a work request was not posted.
#[derive(Debug)]
pub(crate) enum PostError {
    /// The queue has no room. Nothing has happened.
    Full,
    /// It failed, and may be in the queue nevertheless.
    Failed(Error),
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::provider("ibv_post_send", Errno::NOMEM),
            PostError::Failed(error) => error,
        }
    }
}

/// What a call that posts has returned. ENOMEM stands for a full queue only if the call also says which
/// request it refused: the kernel may be out of memory after the request was queued.
#[inline]
pub(super) fn check_posted(
    call: &'static str,
    ret: std::ffi::c_int,
    none_refused: bool,
) -> Result<(), PostError> {
    match check_errno(call, ret) {
        Ok(()) => Ok(()),
        Err(error) if error.is_errno(Errno::NOMEM) && !none_refused => Err(PostError::Full),
        Err(error) => Err(PostError::Failed(error)),
    }
}

bitflags::bitflags! {
    /// `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SendFlags: u32 {
        const FENCE = sys::ibv_send_flags::IBV_SEND_FENCE.0;
        const SIGNALED = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        const SOLICITED = sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
        const INLINE = sys::ibv_send_flags::IBV_SEND_INLINE.0;
    }
}

impl QueuePair {
    /// Makes a queue pair on `id`, or gives the id back.
    pub(crate) fn new(id: CmId, pd: &Arc<Pd>, attr: &QpAttr<'_>) -> Result<Self, (Error, CmId)> {
        match Self::create(&id, pd, attr) {
            Ok((raw, native)) => Ok(Self {
                raw,
                native,
                id,
                released: false,
                _send_cq: Arc::clone(attr.send_cq),
                _recv_cq: Arc::clone(attr.recv_cq),
                _srq: attr.srq.cloned(),
                _pd: Arc::clone(pd),
            }),
            Err(error) => Err((error, id)),
        }
    }

    fn create(
        id: &CmId,
        pd: &Arc<Pd>,
        attr: &QpAttr<'_>,
    ) -> Result<(NonNull<sys::ibv_qp>, NativeOps)> {
        pd.check_device(id)?;
        match Self::create_with(id, pd, attr, attr.native) {
            // The kernel has the operation, but the provider of the installed rdma-core does not.
            Err(error) if attr.native.send_ops_flags() != 0 && error.is_errno(Errno::OPNOTSUPP) => {
                log::info!("the provider has no native flush or atomic write: using the fallbacks");
                Self::create_with(id, pd, attr, NativeOps::default())
            }
            result => result,
        }
    }

    fn create_with(
        id: &CmId,
        pd: &Arc<Pd>,
        attr: &QpAttr<'_>,
        native: NativeOps,
    ) -> Result<(NonNull<sys::ibv_qp>, NativeOps)> {
        let send_ops_flags = native.send_ops_flags();
        let mut comp_mask = sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        // A provider without extended queue pairs accepts the plain form only, which is what the
        // domain alone asks for.
        if send_ops_flags != 0 {
            comp_mask |= sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        }
        let mut init = sys::ibv_qp_init_attr_ex {
            send_cq: attr.send_cq.as_ptr(),
            recv_cq: attr.recv_cq.as_ptr(),
            srq: attr.srq.map_or(ptr::null_mut(), |srq| srq.as_ptr()),
            cap: sys::ibv_qp_cap {
                max_send_wr: attr.max_send_wr,
                max_recv_wr: attr.max_recv_wr,
                max_send_sge: attr.max_send_sge,
                max_recv_sge: 1,
                max_inline_data: attr.max_inline_data,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            comp_mask,
            pd: pd.as_ptr(),
            send_ops_flags,
            ..Default::default()
        };
        id.serialised(|id| {
            // SAFETY: the id, the domain and the queues are alive and of one device.
            let ret = unsafe { sys::rdma_create_qp_ex(id, &raw mut init) };
            check_minus_one("rdma_create_qp", ret)
        })?;
        // SAFETY: the id is alive; the call above set its queue pair.
        let qp = unsafe { (*id.as_ptr()).qp };
        Ok((check_non_null("rdma_create_qp", qp)?, native))
    }

    pub(crate) fn native_ops(&self) -> NativeOps {
        self.native
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(crate) fn next_event(&self, deadline: Deadline) -> Result<Option<CmEvent>> {
        self.id.next_event(deadline)
    }

    /// Asks the peer for the connection. Its answer is an event.
    pub(crate) fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        let mut raw = param.to_raw();
        self.id.serialised(|id| {
            // SAFETY: the id is alive and has a queue pair; the call copies the parameters and the data.
            let ret = unsafe { sys::rdma_connect(id, &raw mut raw) };
            check_minus_one("rdma_connect", ret)
        })
    }

    /// Accepts the request that the id stands for. The queue pair can send afterwards.
    pub(crate) fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        let mut raw = param.to_raw();
        self.id.serialised(|id| {
            // SAFETY: as in `connect`.
            let ret = unsafe { sys::rdma_accept(id, &raw mut raw) };
            check_minus_one("rdma_accept", ret)
        })
    }

    /// Rejects the request that the id stands for.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }

    /// Moves the queue pair to the error state and tells the peer.
    pub(crate) fn disconnect(&self) -> Result<()> {
        self.id.serialised(|id| {
            // SAFETY: the id is alive and has a queue pair.
            let ret = unsafe { sys::rdma_disconnect(id) };
            check_minus_one("rdma_disconnect", ret)
        })
    }

    /// Moves the queue pair to the error state, without telling the peer.
    pub(crate) fn set_error(&self) -> Result<()> {
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_ERR,
            ..Default::default()
        };
        self.modify(&mut attr, sys::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// Sets for how long a peer waits that met no receive here: a code of the specification.
    pub(crate) fn set_min_rnr_timer(&self, code: u8) -> Result<()> {
        let mut attr = sys::ibv_qp_attr {
            min_rnr_timer: code,
            ..Default::default()
        };
        self.modify(&mut attr, sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER)
    }

    fn modify(&self, attr: &mut sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask) -> Result<()> {
        self.id.serialised(|_id| {
            // SAFETY: the queue pair is alive; under the lock the connection manager does not change
            // it at the same time.
            let ret = unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), attr, mask.0 as i32) };
            check_errno("ibv_modify_qp", ret)
        })
    }

    /// How many reads the connection may have in flight. With 0, a read would never complete.
    pub(crate) fn max_reads(&self) -> Result<u8> {
        let mut attr = sys::ibv_qp_attr::default();
        let mut init = sys::ibv_qp_init_attr::default();
        let mask = sys::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
        // SAFETY: the queue pair is alive; the call fills both structs.
        let ret = unsafe {
            sys::ibv_query_qp(self.raw.as_ptr(), &raw mut attr, mask as i32, &raw mut init)
        };
        check_errno("ibv_query_qp", ret)?;
        Ok(attr.max_rd_atomic)
    }

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
        let ret = unsafe { sys::ibv_post_send(self.raw.as_ptr(), &raw mut wr, &raw mut bad) };
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
        let ret = unsafe { sys::ibv_post_recv(self.raw.as_ptr(), &raw mut wr, &raw mut bad) };
        check_posted("ibv_post_recv", ret, bad.is_null())
    }

    /// Posts a native atomic write, after all earlier reads (which may be fallback flushes).
    #[cfg(native_atomic_write)]
    pub(crate) fn post_atomic_write(
        &self,
        remote: RemoteAddress,
        bytes: &[u8; 8],
        flags: SendFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        debug_assert!(self.native.atomic_write, "the caller asked native_ops");
        let batch = Batch::start(self);
        batch.set(wr_id, flags | SendFlags::FENCE);
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
    /// says; the last one carries `flags`.
    #[cfg(native_flush)]
    pub(crate) fn post_flush(
        &self,
        remote: RemoteAddress,
        len: u64,
        persistent: bool,
        flags: SendFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        debug_assert!(self.native.flush, "the caller asked native_ops");
        let kind = match persistent {
            true => sys::ibv_placement_type::IBV_FLUSH_PERSISTENT,
            false => sys::ibv_placement_type::IBV_FLUSH_GLOBAL,
        };
        let batch = Batch::start(self);
        let mut done = 0;
        while done < len {
            let chunk = (len - done).min(MAX_FLUSH);
            let last = done + chunk == len;
            batch.set(wr_id, if last { flags } else { SendFlags::empty() });
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

    /// Destroys the queue pair and its id. What fails stays allocated; the first failure is returned.
    pub(crate) fn destroy(mut self) -> Result<()> {
        let queue_pair = self.release();
        queue_pair.and(self.id.release())
    }

    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        // SAFETY: `released` says that the queue pair is alive, and nothing uses it after this.
        // librdmacm's own call would not tell whether it worked.
        let ret = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        check_errno("ibv_destroy_qp", ret)?;
        self.id.serialised(|id| {
            // SAFETY: the id is alive; it must not point to the queue pair that is gone.
            unsafe { (*id).qp = ptr::null_mut() };
        });
        Ok(())
    }
}

impl AsFd for QueuePair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qp_num", &self.number())
            .field("native", &self.native)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        log_leak(self.release());
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
        let qp = unsafe { sys::ibv_qp_to_qp_ex(qp.raw.as_ptr()) };
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
        // The providers refuse what has no room before they publish it.
        check_posted("ibv_wr_complete", ret, false)
    }
}

#[cfg(any(native_flush, native_atomic_write))]
impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: the batch is open.
        unsafe { sys::ibv_wr_abort(self.qp.as_ptr()) };
    }
}
