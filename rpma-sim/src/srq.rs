//! Shared receive queues.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::async_events::Element;
use crate::call::{errno_of, null};
use crate::handle::of;
use crate::post::post_receives;
use crate::qp::Recv;
use crate::types::{ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_init_attr};

/// A receive queue of many queue pairs.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) object: NonNull<ibv_srq>,
    pub(crate) pd: u32,
    pub(crate) room: usize,
    pub(crate) max_sge: u32,
    pub(crate) receives: VecDeque<Recv>,
    /// Asynchronous events that were read and not acknowledged.
    pub(crate) unacknowledged: u32,
}

/// `ibv_create_srq(3)`.
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: by C's rules `pd` is of `ibv_alloc_pd`, and not deallocated yet.
    let of = unsafe { of(pd) };
    // SAFETY: by C's rules `pd` is of `ibv_alloc_pd`, and not deallocated yet.
    let context = unsafe { (*pd).context };
    // SAFETY: by C's rules `attr` leads to attributes that no other thread uses during the call.
    let asked = unsafe { (*attr).attr };
    let mut state = of.shared.lock();
    null((|| {
        state.call("ibv_create_srq", of.nic).object()?;
        let limits = &state.profile(of.nic).limits;
        if asked.max_wr == 0 || asked.max_wr > limits.srq_wr || asked.max_sge > limits.srq_sge {
            return Err(Errno::INVAL);
        }
        let room = state.profile(of.nic).room(asked.max_wr);
        let number = state.srqs.add(|handle| {
            let object = Box::new(ibv_srq {
                context,
                pd,
                handle,
                ..Default::default()
            });
            Srq {
                object: NonNull::from(Box::leak(object)),
                pd: of.number,
                room: room as usize,
                max_sge: asked.max_sge,
                receives: VecDeque::new(),
                unacknowledged: 0,
            }
        });
        // SAFETY: by C's rules `attr` leads to attributes that no other thread uses during the
        // call.
        unsafe { (*attr).attr.max_wr = room };
        Ok(state.srqs[number].object.as_ptr())
    })())
}

/// `ibv_destroy_srq(3)`.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: by C's rules `srq` is of `ibv_create_srq`, and not destroyed yet.
    let of = unsafe { of(srq) };
    let mut state = of.shared.lock();
    let fate = match state.call("ibv_destroy_srq", of.nic).begin() {
        Ok(fate) => fate,
        Err(errno) => return errno_of(Err(errno)),
    };
    let number = of.number;
    if state.qps.iter().any(|(_, qp)| qp.srq == Some(number)) {
        return errno_of(Err(Errno::BUSY));
    }
    state.untell(of.nic, Element::Srq(number));
    let mut state = of
        .shared
        .wait_until(state, |state| state.srqs[number].unacknowledged == 0);
    let gone = state.srqs.remove(number).expect("it is alive");
    // SAFETY: `ibv_create_srq` made it of a box, and by C's rules the caller uses it no more.
    drop(unsafe { Box::from_raw(gone.object.as_ptr()) });
    errno_of(fate.end())
}

/// `ibv_post_srq_recv(3)`.
pub unsafe extern "C" fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by C's rules `srq` is of `ibv_create_srq`, and not destroyed yet.
    let of = unsafe { of(srq) };
    let mut state = of.shared.lock();
    let fate = state.call("ibv_post_srq_recv", of.nic);
    let profile = state.profile(of.nic).clone();
    let srq = &mut state.srqs[of.number];
    let (queue, room, max_sge) = (&mut srq.receives, srq.room, srq.max_sge);
    // SAFETY: by C's rules `wr` is a chain of receives, and `bad` leads to a place for the refused
    // one.
    let posted = unsafe { post_receives(queue, &profile, room, max_sge, wr, bad, fate) };
    profile.result_of_post(posted)
}
