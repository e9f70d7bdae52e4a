//! The queue pair of a connection, with the id that connects it (`struct ibv_qp`,
//! `struct ibv_qp_ex`).
//!
//! Posting to it: see [`super::post`].

use std::ffi::c_int;
use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rpma_sys as sys;
use rustix::io::Errno;

use super::accept::{accept, modify, set_error};
use super::asking::RDMA_CONNECT;
use super::device_events::{OnError, WatchedQueuePair};
#[cfg(any(native_flush, native_atomic_write))]
use super::stream::StreamCalls;
use super::{
    CmEvent, CmId, CompletionQueue, Deadline, Pd, SharedReceiveQueue, check_errno, check_minus_one,
    check_non_null, iwarp, log_leak,
};
use crate::bell::Bell;
use crate::clock::sleep;
use crate::error::{Error, Result};

/// A queue pair and its id. Dropping it destroys the queue pair, then the id (which notifies the
/// peer), then lets go of the queues and the domain.
///
/// The calls stand first: a post then loads its first argument last, where it belongs, and moves
/// it no more.
#[repr(C)]
pub(crate) struct QueuePair {
    pub(super) calls: Calls,
    raw: NonNull<sys::ibv_qp>,
    /// Set for a queue pair with native operations.
    #[cfg(any(native_flush, native_atomic_write))]
    pub(super) stream: Option<StreamCalls>,
    native: NativeOps,
    id: CmId,
    released: bool,
    watched: Option<WatchedQueuePair>,
    before_destroy: Option<BeforeDestroy>,
    /// Whether a shared receive may be missing, after
    /// [`end_shared_receives`](Self::end_shared_receives).
    may_be_kept: Option<bool>,
    /// See [`alive`](Self::alive).
    alive: Option<Arc<()>>,
    _send_cq: Arc<CompletionQueue>,
    _recv_cq: Arc<CompletionQueue>,
    srq: Option<Arc<SharedReceiveQueue>>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs keeps no state of a queue pair in a thread, and any thread may make its calls.
// `raw` and `stream` lead to it, and the other fields are `Send`.
unsafe impl Send for QueuePair {}
// SAFETY: the providers lock the queues while threads post and poll. The lock of the id's channel
// serialises the connection-manager calls of `&self` and those that change the state. Threads that
// post to an extended queue pair hold the lock of the send queue's slots (`Ring::posting`). The
// other fields change only by `&mut self`.
unsafe impl Sync for QueuePair {}

/// The calls that post, which `verbs.h` has as `static inline` look-ups: they are looked up once.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv,
}

type PostSend = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_send_wr,
    *mut *mut sys::ibv_send_wr,
) -> c_int;
type PostRecv = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_recv_wr,
    *mut *mut sys::ibv_recv_wr,
) -> c_int;

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

/// The callbacks to the owner of a queue pair.
pub(crate) struct Hooks {
    /// The device reports that the queue pair is in error. Called in a thread that waits for
    /// something.
    pub(crate) on_error: OnError,
    /// Set for a queue pair with a shared receive queue.
    pub(crate) before_destroy: Option<BeforeDestroy>,
}

/// The steps before a queue pair with a shared receive queue is destroyed.
pub(crate) struct BeforeDestroy {
    /// soft-RoCE does not report the receives that it returns: see
    /// [`QueuePair::wait_for_last_receive`].
    pub(crate) soft_roce: bool,
    /// Called in the error state: the last moment to poll completions of the queue pair, which
    /// some providers take out of the completion queues then. The arguments are the queue pair's
    /// number, and whether a receive may be missing that a message has taken.
    pub(crate) call: Box<dyn Fn(u32, bool) + Send + Sync>,
}

/// Whether a queue pair was destroyed, and whether everything else was that belongs to it.
#[must_use]
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) queue_pair: Result<()>,
    /// The first failure.
    pub(crate) rest: Result<()>,
}

impl Freed {
    pub(crate) fn all(self) -> Result<()> {
        self.queue_pair.and(self.rest)
    }
}

/// The timing of a queue pair, settled when it was connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How many reads the connection may have in flight. With 0, a read would never complete.
    pub(crate) max_reads: u8,
    /// The acknowledgement time-out, as an exponent. 0: the transport has no time-out.
    pub(crate) ack_timeout: u8,
}

/// The operations beyond plain verbs that a queue pair has, or should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NativeOps {
    pub(crate) flush: bool,
    pub(crate) atomic_write: bool,
}

/// The operations that every queue pair has, for one that has others as well.
const PLAIN_OPS: u64 = {
    type Op = sys::ibv_qp_create_send_ops_flags;
    let writes = Op::IBV_QP_EX_WITH_RDMA_WRITE.0 | Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;
    let sends = Op::IBV_QP_EX_WITH_SEND.0 | Op::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
    (writes | sends | Op::IBV_QP_EX_WITH_RDMA_READ.0) as u64
};

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
        match flags {
            0 => 0,
            // Where there are such operations all others of a batch go the same way.
            _ => flags | PLAIN_OPS,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnParam<'data> {
    pub(crate) private_data: &'data [u8],
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
}

impl ConnParam<'_> {
    /// The caller has checked that the private data fits. librdmacm reads the last two fields only
    /// if it sees no queue pair of the id.
    pub(super) fn to_raw(self, qp_num: u32, has_srq: bool) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: has_srq.into(),
            qp_num,
        }
    }
}

impl QueuePair {
    /// Makes a queue pair on `id`, or gives the id back.
    pub(crate) fn new(
        id: CmId,
        pd: &Arc<Pd>,
        attr: &QpAttr<'_>,
        hooks: Hooks,
    ) -> Result<Self, (Error, CmId)> {
        let (raw, native, calls) = match Self::create(&id, pd, attr) {
            Ok(created) => created,
            Err(error) => return Err((error, id)),
        };
        #[cfg(any(native_flush, native_atomic_write))]
        // SAFETY: `create` has made the queue pair. The calls are used only by this value, which
        // destroys the queue pair in `release`, as the last use of them.
        let stream = unsafe { StreamCalls::of(raw, native) };
        #[cfg(any(native_flush, native_atomic_write))]
        let native = match stream {
            Some(_) => native,
            None => NativeOps::default(),
        };
        Ok(Self {
            raw,
            calls,
            #[cfg(any(native_flush, native_atomic_write))]
            stream,
            native,
            id,
            released: false,
            before_destroy: hooks.before_destroy,
            alive: Some(Arc::default()),
            may_be_kept: None,
            watched: Some(WatchedQueuePair::new(raw, hooks.on_error)),
            _send_cq: Arc::clone(attr.send_cq),
            _recv_cq: Arc::clone(attr.recv_cq),
            srq: attr.srq.cloned(),
            _pd: Arc::clone(pd),
        })
    }

    fn create(
        id: &CmId,
        pd: &Arc<Pd>,
        attr: &QpAttr<'_>,
    ) -> Result<(NonNull<sys::ibv_qp>, NativeOps, Calls)> {
        pd.check_device(id)?;
        // SAFETY: `pd` is borrowed and keeps its context, whose id keeps the device open.
        let ops = unsafe { (*pd.context().as_ptr()).ops };
        let (Some(mut post_send), Some(mut post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(Error::not_supported("the provider has no calls that post"));
        };
        if pd.context().is_iwarp() {
            (post_send, post_recv) = (iwarp::post_send, iwarp::post_recv);
        }
        let (raw, native) = match Self::create_with(id, pd, attr, attr.native) {
            // The kernel has the operation, but the provider of the installed rdma-core does not.
            Err(error) if attr.native.send_ops_flags() != 0 && error.is_errno(Errno::OPNOTSUPP) => {
                log::info!("the provider has no native flush or atomic write: using the fallbacks");
                Self::create_with(id, pd, attr, NativeOps::default())
            }
            result => result,
        }?;
        let calls = Calls {
            post_send,
            post_recv,
        };
        Ok((raw, native, calls))
    }

    fn create_with(
        id: &CmId,
        pd: &Arc<Pd>,
        attr: &QpAttr<'_>,
        native: NativeOps,
    ) -> Result<(NonNull<sys::ibv_qp>, NativeOps)> {
        let send_ops_flags = native.send_ops_flags();
        let mut comp_mask = sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        // A provider without extended queue pairs accepts the plain form only, which asks for the
        // domain alone.
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
            // SAFETY: `id`, `pd` and the queues in `attr` are borrowed, and each keeps its object.
            // They are of one device: `create` has checked the id, and `Plan::new` the queues.
            let ret = unsafe { sys::rdma_create_qp_ex(id, &raw mut init) };
            check_minus_one("rdma_create_qp", ret)
        })?;
        // SAFETY: `id` is borrowed, and only its `release` destroys it. The call above has set its
        // queue pair.
        let qp = unsafe { (*id.as_ptr()).qp };
        Ok((check_non_null("rdma_create_qp", qp)?, native))
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    #[inline]
    pub(crate) fn native_ops(&self) -> NativeOps {
        self.native
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the last use of the queue pair is a `release` that succeeds, and this is not
        // called after it.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// The addresses of this side and of the other.
    pub(crate) fn ends(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (self.id.local_addr(), self.id.peer_addr())
    }

    pub(crate) fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.id.set_nonblocking(on)
    }

    pub(crate) fn next_event(
        &self,
        bell: Option<&Bell>,
        deadline: Deadline,
    ) -> Result<Option<CmEvent>> {
        self.id.next_event(bell, deadline)
    }

    /// The answer of the peer is an event.
    pub(crate) fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        if let Some(asking) = self.id.asking() {
            let numbers = (self.number(), self.srq.is_some());
            // SAFETY: the state is that of the id, which has this queue pair. `release` destroys
            // both, after it has asked `hand_over`.
            return unsafe { asking.ask(self.id.as_ptr(), param, numbers) };
        }
        let mut raw = self.raw_param(param);
        self.id.serialised(|id| {
            // SAFETY: `self.id` keeps the id, and its queue pair stays until `release`. The call
            // copies the parameters, and as much private data as `to_raw` has counted.
            let ret = unsafe { sys::rdma_connect(id, &raw mut raw) };
            check_minus_one(RDMA_CONNECT, ret)
        })
    }

    /// Accepts the request that the id stands for, with the retry counts and depths in `param`:
    /// see [`super::accept`]. The queue pair can send afterwards. If this fails it is in the error
    /// state.
    ///
    /// `check` gets the acknowledgement time-out before the client gets the answer, as an exponent,
    /// and can refuse it. `None`: the transport has no time-out.
    pub(crate) fn accept(
        &self,
        param: ConnParam<'_>,
        check: impl FnOnce(Option<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut raw = self.raw_param(param);
        self.id.serialised(|id| {
            // SAFETY: `self.id` keeps the id, and only `release` destroys its queue pair.
            // `serialised` holds the lock. `to_raw` has counted the private data.
            unsafe { accept(id, self.raw, &mut raw, check) }
        })
    }

    fn raw_param(&self, param: ConnParam<'_>) -> sys::rdma_conn_param {
        param.to_raw(self.number(), self.srq.is_some())
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }

    /// Moves the queue pair to the error state and notifies the peer.
    pub(crate) fn disconnect(&self) -> Result<()> {
        if self.id.asking().is_some_and(|asking| asking.is_calling()) {
            return Err(Error::provider("rdma_disconnect", Errno::BUSY).with_hint(&[
                "The kernel still asks for the connection",
                "drop it, which ends that",
            ]));
        }
        self.id.serialised(|id| {
            // SAFETY: `self.id` keeps the id, and its queue pair stays until `release`.
            let ret = unsafe { sys::rdma_disconnect(id) };
            check_minus_one("rdma_disconnect", ret)
        })
    }

    /// Moves the queue pair to the error state, without telling the peer.
    pub(crate) fn set_error(&self) -> Result<()> {
        self.id.serialised(|_id| {
            // SAFETY: a queue pair lives until `release` has destroyed it, which does not come here
            // after that. `serialised` holds the lock.
            unsafe { set_error(self.raw) }
        })
    }

    /// Sets for how long a peer waits that met no receive here: a code of the specification.
    pub(crate) fn set_min_rnr_timer(&self, code: u8) -> Result<()> {
        let mut attr = sys::ibv_qp_attr {
            min_rnr_timer: code,
            ..Default::default()
        };
        let mask = sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.id.serialised(|_id| {
            // SAFETY: only `release`, which needs `&mut self`, destroys the queue pair.
            // `serialised` holds the lock.
            unsafe { modify(self.raw, &mut attr, mask.0 as c_int) }
        })
    }

    pub(crate) fn timing(&self) -> Result<Timing> {
        let reads = sys::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        let timeout = sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT;
        let attr = self.query(sys::ibv_qp_attr_mask(reads.0 | timeout.0))?;
        Ok(Timing {
            max_reads: attr.max_rd_atomic,
            ack_timeout: attr.timeout,
        })
    }

    /// Whether the queue pair is in the error state, where it takes no settings.
    pub(crate) fn is_in_error(&self) -> Result<bool> {
        let state = self.query(sys::ibv_qp_attr_mask::IBV_QP_STATE)?.qp_state;
        Ok(state == sys::ibv_qp_state::IBV_QPS_ERR)
    }

    fn query(&self, mask: sys::ibv_qp_attr_mask) -> Result<sys::ibv_qp_attr> {
        let mut attr = sys::ibv_qp_attr::default();
        let mut init = sys::ibv_qp_init_attr::default();
        let ret = self.id.serialised(|_id| {
            // SAFETY: only `release`, which needs `&mut self`, destroys the queue pair after its
            // last query. The call fills both structs, and writes the state that it finds into the
            // queue pair's, which the lock of `serialised` keeps from being changed at the same
            // time.
            unsafe {
                sys::ibv_query_qp(
                    self.raw.as_ptr(),
                    &raw mut attr,
                    mask.0 as i32,
                    &raw mut init,
                )
            }
        });
        check_errno("ibv_query_qp", ret)?;
        Ok(attr)
    }

    /// Moves a queue pair with shared receives that matter ([`BeforeDestroy`]) to the error state,
    /// and waits for its last receive. Returns whether a receive may be missing that a message has
    /// taken. The first call counts, and any other queue pair is left as it is.
    pub(crate) fn end_shared_receives(&mut self) -> bool {
        let soft_roce = self.before_destroy.as_ref().map(|before| before.soft_roce);
        match (self.may_be_kept, soft_roce) {
            (None, Some(soft_roce)) => {
                let may_be_kept = self.has_lost_a_receive(soft_roce);
                *self.may_be_kept.insert(may_be_kept)
            }
            (may_be_kept, _) => may_be_kept.unwrap_or(false),
        }
    }

    fn has_lost_a_receive(&self, soft_roce: bool) -> bool {
        let was_connected = match self.query(sys::ibv_qp_attr_mask::IBV_QP_STATE) {
            Ok(attr) => attr.qp_state != sys::ibv_qp_state::IBV_QPS_INIT,
            Err(error) => {
                log::warn!(
                    "queue pair {}: {error}; a receive that is not kept may count as kept",
                    self.number()
                );
                true
            }
        };
        if let Err(error) = self.set_error() {
            log::warn!(
                "queue pair {}: {error}; messages that arrive now may be lost",
                self.number()
            );
            return was_connected;
        }
        was_connected && !self.wait_for_last_receive(soft_roce)
    }

    /// Waits, with a limit, until the device reports that a queue pair in the error state has
    /// completed its receives. Returns whether it has. soft-RoCE is never taken at its word.
    ///
    /// soft-RoCE of Linux 6.12 reports the last receive and does not return it (`flush_recv_queue`
    /// in `rxe_resp.c`). That of Linux 6.1 returns it, and does not report that.
    fn wait_for_last_receive(&self, soft_roce: bool) -> bool {
        /// Between two looks: other threads may take the event.
        const PAUSE: Duration = Duration::from_micros(200);
        let limit = if soft_roce {
            Duration::from_millis(2)
        } else {
            Duration::from_millis(100)
        };
        let (deadline, device) = (Deadline::after(limit), self.id.device());
        let had_last = || {
            self.watched
                .as_ref()
                .is_some_and(WatchedQueuePair::had_last_receive)
        };
        loop {
            if let Some(device) = &device {
                device.take_all();
                device.tell();
            }
            if had_last() || deadline.has_passed() {
                return had_last() && !soft_roce;
            }
            sleep(PAUSE);
        }
    }

    /// A mark that is gone when the queue pair is destroyed, and stays for ever if it cannot be.
    pub(crate) fn alive(&self) -> Weak<()> {
        self.alive.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }

    /// Destroys the queue pair and its id. An object that cannot be destroyed stays allocated.
    pub(crate) fn destroy(mut self) -> Freed {
        Freed {
            queue_pair: self.release(),
            rest: self.id.release(),
        }
    }

    /// Gives the thread that asks for the connection the queue pair, if its destroy might wait.
    fn is_handed_over(&mut self) -> bool {
        let Some(asking) = self.id.asking().cloned() else {
            return false;
        };
        if !asking.is_unanswered() {
            return false;
        }
        // The peer cannot use it from here on: a queue pair in error gets no connection, and
        // soft-iWARP places nothing by it (`siw_qp_llp_data_ready`).
        if let Err(error) = self.set_error() {
            log::warn!(
                "queue pair {}: {error}, before its connection",
                self.number()
            );
        }
        asking.hand_over(|| Self {
            raw: self.raw,
            calls: self.calls,
            #[cfg(any(native_flush, native_atomic_write))]
            stream: self.stream.take(),
            native: self.native,
            id: self.id.take(),
            released: false,
            watched: self.watched.take(),
            before_destroy: self.before_destroy.take(),
            may_be_kept: self.may_be_kept,
            alive: self.alive.take(),
            _send_cq: Arc::clone(&self._send_cq),
            _recv_cq: Arc::clone(&self._recv_cq),
            srq: self.srq.clone(),
            _pd: Arc::clone(&self._pd),
        })
    }

    fn release(&mut self) -> Result<()> {
        if mem::replace(&mut self.released, true) {
            return Ok(());
        }
        if self.is_handed_over() {
            return Ok(());
        }
        let may_be_kept = self.end_shared_receives();
        if let Some(before_destroy) = self.before_destroy.take() {
            (before_destroy.call)(self.number(), may_be_kept);
        }
        // First: another queue pair may get its address as soon as it is gone.
        self.watched = None;
        // SAFETY: `released` was false, so that the queue pair is alive, and `&mut self` leaves no
        // other user. It is used after this only if the call fails, which leaves it alive.
        // librdmacm's own call would not report whether it worked.
        let ret = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        if let Err(error) = check_errno("ibv_destroy_qp", ret) {
            // It stays for ever: the peer must reach no memory by it.
            if let Err(worse) = self.set_error() {
                log::error!(
                    "queue pair {}: {worse}; the peer may still use it",
                    self.number()
                );
            }
            mem::forget(self.alive.take());
            return Err(error);
        }
        self.id.serialised(|id| {
            // SAFETY: `self.id` keeps the id, which must not point to the queue pair that is gone.
            // `serialised` holds the lock.
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
