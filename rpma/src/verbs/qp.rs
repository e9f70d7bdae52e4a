//! The queue pair of a connection, with the id that connects it (`struct ibv_qp`, `struct ibv_qp_ex`).
//!
//! Posting takes `&self`: the providers lock a queue while they write to it.
//!
//! Nothing here can make a device touch memory that is not registered. An address and a key that do
//! not belong to a region of the queue pair's domain are refused by the device, and the operation
//! completes with an error. Registered memory is written by devices at any time, and its owners count
//! on that. So posting is safe, whatever becomes of the region before the operation is done.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rpma_sys as sys;
use rustix::io::Errno;

use super::{
    CmEvent, CmId, CompletionQueue, Deadline, Pd, check_errno, check_minus_one, check_non_null,
    log_leak,
};
use crate::error::{Error, Result};

/// The longest stretch that one native flush names: its length has 32 bits on the wire, and a
/// responder refuses more than 2³¹ bytes.
#[cfg(native_flush)]
const MAX_FLUSH: u64 = 1 << 30;

/// A queue pair and its id. Dropping it destroys the queue pair, then the id (which tells the peer),
/// then lets go of the queues and the domain.
pub(crate) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    native: NativeOps,
    id: CmId,
    released: bool,
    _send_cq: Arc<CompletionQueue>,
    _recv_cq: Arc<CompletionQueue>,
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
    pub(crate) max_inline_data: u32,
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

/// A one-sided operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opcode {
    Read,
    Write,
}

/// Registered local memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBuffer {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// Registered memory of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteAddress {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// Whether an operation that succeeds gives a completion. One that fails always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Always,
    OnError,
}

impl Signal {
    fn flags(self) -> u32 {
        match self {
            Self::Always => sys::ibv_send_flags::IBV_SEND_SIGNALED.0,
            Self::OnError => 0,
        }
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
            cap: sys::ibv_qp_cap {
                max_send_wr: attr.max_send_wr,
                max_recv_wr: attr.max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: attr.max_inline_data,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            comp_mask,
            pd: pd.as_ptr(),
            send_ops_flags,
            ..Default::default()
        };
        let ret = id.serialised(|id| {
            // SAFETY: the id, the domain and the queues are alive and of one device.
            unsafe { sys::rdma_create_qp_ex(id, &raw mut init) }
        });
        check_minus_one("rdma_create_qp", ret)?;
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
        // SAFETY: the id is alive and has a queue pair; the call copies the parameters and the data.
        let ret = self
            .id
            .serialised(|id| unsafe { sys::rdma_connect(id, &raw mut raw) });
        check_minus_one("rdma_connect", ret)
    }

    /// Accepts the request that the id stands for. The queue pair can send afterwards.
    pub(crate) fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        let mut raw = param.to_raw();
        // SAFETY: as in `connect`.
        let ret = self
            .id
            .serialised(|id| unsafe { sys::rdma_accept(id, &raw mut raw) });
        check_minus_one("rdma_accept", ret)
    }

    /// Moves the queue pair to the error state and tells the peer.
    pub(crate) fn disconnect(&self) -> Result<()> {
        // SAFETY: the id is alive and has a queue pair.
        let ret = self.id.serialised(|id| unsafe { sys::rdma_disconnect(id) });
        check_minus_one("rdma_disconnect", ret)
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

    /// Posts a read or a write.
    #[inline]
    pub(crate) fn post(
        &self,
        opcode: Opcode,
        remote: RemoteAddress,
        local: LocalBuffer,
        signal: Signal,
        wr_id: u64,
    ) -> Result<()> {
        let mut sge = sys::ibv_sge {
            addr: local.address,
            length: local.len,
            lkey: local.lkey,
        };
        let mut wr = sys::ibv_send_wr {
            wr_id,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: match opcode {
                Opcode::Read => sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
                Opcode::Write => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            },
            send_flags: signal.flags(),
            ..Default::default()
        };
        wr.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: remote.address,
            rkey: remote.rkey,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the call copies the request and its one entry. The device
        // checks the keys: see the head of this module.
        let ret = unsafe { sys::ibv_post_send(self.raw.as_ptr(), &raw mut wr, &raw mut bad) };
        check_errno("ibv_post_send", ret)
    }

    /// How many send-queue slots a native flush of `len` bytes takes.
    #[cfg(native_flush)]
    pub(crate) fn flush_slots(len: u64) -> u32 {
        u32::try_from(len.div_ceil(MAX_FLUSH)).unwrap_or(u32::MAX)
    }

    /// Posts a native flush of `len` bytes, in as many requests as [`flush_slots`](Self::flush_slots)
    /// says; the last one carries `signal`.
    #[cfg(native_flush)]
    pub(crate) fn post_flush(
        &self,
        remote: RemoteAddress,
        len: u64,
        persistent: bool,
        signal: Signal,
        wr_id: u64,
    ) -> Result<()> {
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
            batch.set(wr_id, if last { signal } else { Signal::OnError });
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
#[cfg(native_flush)]
struct Batch {
    qp: NonNull<sys::ibv_qp_ex>,
}

#[cfg(native_flush)]
impl Batch {
    fn start(qp: &QueuePair) -> Self {
        // SAFETY: the queue pair is alive and was created with `send_ops_flags`, so it is extended.
        let qp = unsafe { NonNull::new_unchecked(sys::ibv_qp_to_qp_ex(qp.raw.as_ptr())) };
        // SAFETY: as above; the batch ends in `complete` or in `drop`.
        unsafe { sys::ibv_wr_start(qp.as_ptr()) };
        Self { qp }
    }

    /// What the next request carries.
    fn set(&self, wr_id: u64, signal: Signal) {
        // SAFETY: the queue pair is alive, and the open batch holds its lock.
        let qp = unsafe { &mut *self.qp.as_ptr() };
        qp.wr_id = wr_id;
        qp.wr_flags = signal.flags();
    }

    fn complete(self) -> Result<()> {
        let batch = std::mem::ManuallyDrop::new(self);
        // SAFETY: the batch is open, and `drop` does not run.
        let ret = unsafe { sys::ibv_wr_complete(batch.qp.as_ptr()) };
        check_errno("ibv_wr_complete", ret)
    }
}

#[cfg(native_flush)]
impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: the batch is open.
        unsafe { sys::ibv_wr_abort(self.qp.as_ptr()) };
    }
}
