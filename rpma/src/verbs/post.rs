//! Posting to a queue pair. The calls of extended queue pairs: see [`super::stream`].
//!
//! Posting takes `&self`: the providers lock a queue while they write to it.
//!
//! No code here can make a device touch memory that is not registered. An address and a key that do
//! not belong to a region of the queue pair's domain are refused by the device, and the operation
//! completes with an error. Registered memory is written by devices at any time, and its owners
//! count on that. So posting is safe, even if the region is gone before the operation is done.

use std::mem::offset_of;
use std::ptr;

use rpma_sys as sys;

use super::wr::{Call, PostError, Request, SendWr, check_posted, post_receives, recv_wr};
use super::{LocalBuffer, QueuePair};

impl QueuePair {
    pub(crate) fn post(&self, request: &mut Request<'_>, wr_id: u64) -> Result<(), PostError> {
        request.wr.wr_id.write(wr_id);
        request.wr.next.write(ptr::null_mut());
        let mut bad = ptr::null_mut();
        let wr = &raw mut request.wr;
        // Both pointers are made of one: the provider reads the request, and through it its buffer.
        let sge = wr.wrapping_byte_add(offset_of!(SendWr, sge)).cast();
        // SAFETY: `wr` is the request's own field, which is borrowed mutably here.
        unsafe { (*wr).sg_list.write(sge) };
        let wr = wr.cast();
        let post_send = self.calls.post_send;
        // SAFETY: `ibv_post_send` of the queue pair's own context. Only `release`, which needs
        // `&mut self`, destroys the queue pair. The call copies the request and its entry. Inline
        // data is read now: a request borrows its buffer, so the buffer's memory lives and may be
        // read. For later reads and writes of the device see the head of this module.
        let ret = unsafe { post_send(self.as_ptr(), wr, &raw mut bad) };
        check_posted(Call::PostSend, ret, bad.is_null())
    }

    /// Posts a receive; `SOME`: of some bytes.
    #[inline(always)]
    pub(crate) fn post_recv<const SOME: bool>(
        &self,
        local: LocalBuffer<'_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let mut sge = local.to_sge();
        self.post_receive(recv_wr::<SOME>(&mut sge, wr_id))
    }

    /// Posts receives into these buffers: see [`post_receives`].
    #[inline(always)]
    pub(crate) fn post_recvs<'mr, const SOME: bool, T>(
        &self,
        receives: (&[T], impl Fn(&T) -> (LocalBuffer<'mr>, u64)),
        number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        post_receives::<SOME, T>(Call::PostRecv, receives, number, |wr, bad| {
            // SAFETY: `ibv_post_recv` of the queue pair's own context. Only `release`, which needs
            // `&mut self`, destroys the queue pair. `post_receives` keeps the chain during the
            // call, which copies it.
            unsafe { (self.calls.post_recv)(self.as_ptr(), wr, bad) }
        })
    }

    /// The entry of the request, if it has one, is alive.
    #[inline(always)]
    fn post_receive(&self, mut wr: sys::ibv_recv_wr) -> Result<(), PostError> {
        let mut bad = ptr::null_mut();
        let post_recv = self.calls.post_recv;
        // SAFETY: `ibv_post_recv` of the queue pair's own context. Only `release`, which needs
        // `&mut self`, destroys the queue pair. `wr` lives here, and its entry in the caller, until
        // the call has copied both. The device checks the key.
        let ret = unsafe { post_recv(self.as_ptr(), &raw mut wr, &raw mut bad) };
        check_posted(Call::PostRecv, ret, bad.is_null())
    }
}
