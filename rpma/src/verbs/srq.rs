//! Shared receive queues (`struct ibv_srq`).

use std::ffi::c_int;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rpma_sys as sys;

use super::wr::{Call, PostError, check_posted, post_receives, recv_wr};
use super::{LocalBuffer, Pd, check_errno, check_non_null, iwarp, log_leak};
use crate::error::{Error, Result};

/// A receive queue of many queue pairs.
pub(crate) struct SharedReceiveQueue {
    raw: NonNull<sys::ibv_srq>,
    /// `ibv_post_srq_recv`, looked up once.
    post: PostRecv,
    released: bool,
    _pd: Arc<Pd>,
}

// SAFETY: no thread owns a queue: the provider locks it while it writes to it.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: the provider's lock lets several threads post at the same time. The fields change only in
// `release`, which takes `&mut self`.
unsafe impl Sync for SharedReceiveQueue {}

type PostRecv = unsafe extern "C" fn(
    *mut sys::ibv_srq,
    *mut sys::ibv_recv_wr,
    *mut *mut sys::ibv_recv_wr,
) -> c_int;

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &Arc<Pd>, max_wr: u32) -> Result<Arc<Self>> {
        let mut init = sys::ibv_srq_init_attr {
            attr: sys::ibv_srq_attr {
                max_wr,
                max_sge: 1,
                srq_limit: 0,
            },
            ..Default::default()
        };
        // SAFETY: `pd` is borrowed and keeps its context, whose id keeps the device open.
        let mut post = unsafe { (*pd.context().as_ptr()).ops }
            .post_srq_recv
            .ok_or_else(|| Error::not_supported("the provider has no shared receive queues"))?;
        if pd.context().is_iwarp() {
            post = iwarp::post_srq_recv;
        }
        // SAFETY: `pd` is borrowed and keeps the domain.
        let raw = unsafe { sys::ibv_create_srq(pd.as_ptr(), &raw mut init) };
        let raw = check_non_null("ibv_create_srq", raw)?;
        Ok(Arc::new(Self {
            raw,
            post,
            released: false,
            _pd: Arc::clone(pd),
        }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    /// Posts a receive; `SOME`: of some bytes.
    #[inline(always)]
    pub(crate) fn post_recv<const SOME: bool>(
        &self,
        local: LocalBuffer<'_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let mut sge = local.to_sge();
        let mut wr = recv_wr::<SOME>(&mut sge, wr_id);
        let mut bad = ptr::null_mut();
        // SAFETY: `ibv_post_srq_recv` of the queue's own context. Only `release` destroys the
        // queue, for its last owner. The call copies the request and its entry. The device checks
        // the key.
        let ret = unsafe { (self.post)(self.raw.as_ptr(), &raw mut wr, &raw mut bad) };
        check_posted(Call::PostSrqRecv, ret, bad.is_null())
    }

    /// Posts receives into these buffers: see [`post_receives`].
    #[inline(always)]
    pub(crate) fn post_recvs<'mr, const SOME: bool, T>(
        &self,
        receives: (&[T], impl Fn(&T) -> (LocalBuffer<'mr>, u64)),
        number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        post_receives::<SOME, T>(Call::PostSrqRecv, receives, number, |wr, bad| {
            // SAFETY: `ibv_post_srq_recv` of the queue's own context. Only `release` destroys the
            // queue, for its last owner. `post_receives` keeps the chain during the call, which
            // copies it.
            unsafe { (self.post)(self.raw.as_ptr(), wr, bad) }
        })
    }

    /// Destroys the queue if this is its last owner. A failure leaves it allocated.
    pub(crate) fn destroy(self: Arc<Self>) -> Result<()> {
        Arc::into_inner(self).map_or(Ok(()), |mut queue| queue.release())
    }

    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        // SAFETY: every queue pair that uses this queue holds an `Arc` of it, so none is left, and
        // `released` was false: no call has destroyed it.
        let ret = unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
        check_errno("ibv_destroy_srq", ret)
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").finish_non_exhaustive()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        log_leak(self.release());
    }
}
