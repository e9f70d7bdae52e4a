//! The calls that post to a device of iWARP. They stand in the place of the provider's calls, so that
//! posts to other devices have no step more.

use std::ffi::c_int;

use rpma_sys as sys;

use super::SendFlags;

/// The entry of a request without local memory.
static NO_BYTES: sys::ibv_sge = sys::ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

/// As the provider's `ibv_post_send`, with a fence for each request except reads, and an entry for
/// each read.
///
/// soft-iWARP takes a read to have one entry. Without one, it would read into the memory of an
/// earlier request (`siw_post_send`).
///
/// soft-iWARP completes a write or a message as soon as its TCP stream has the bytes, also if a read
/// that was posted before has no answer yet (`siw_qp_sq_process`). But completions must come in the
/// order of the posts: one of them shows that all requests before it are done. A fence holds a
/// request back until the reads before it are complete.
///
/// # Safety
///
/// As `ibv_post_send`, for a chain that may be changed.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    let mut next = first;
    while !next.is_null() {
        // SAFETY: by the caller's promise, the chain lives, and nothing else uses it.
        let request = unsafe { &mut *next };
        if request.opcode != sys::ibv_wr_opcode::IBV_WR_RDMA_READ {
            request.send_flags |= SendFlags::FENCE.bits();
        } else if request.num_sge == 0 {
            (request.sg_list, request.num_sge) = (no_bytes(), 1);
        }
        next = request.next;
    }
    // SAFETY: by the caller's promise, the queue pair lives.
    let context = unsafe { (*qp).context };
    // SAFETY: the queue pair lives, and with it its context.
    let Some(post) = (unsafe { (*context).ops.post_send }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the caller's promise.
    unsafe { post(qp, first, bad) }
}

/// As the provider's `ibv_post_recv`, with an entry for each receive.
///
/// soft-iWARP refuses a receive without a scatter entry, and takes one of 0 bytes. (For other
/// devices such an entry may stand for 2³¹ bytes.)
///
/// # Safety
///
/// As `ibv_post_recv`, for a chain that may be changed.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give_entries(first) };
    // SAFETY: by the caller's promise, the queue pair lives.
    let context = unsafe { (*qp).context };
    // SAFETY: the queue pair lives, and with it its context.
    let Some(post) = (unsafe { (*context).ops.post_recv }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the caller's promise.
    unsafe { post(qp, first, bad) }
}

/// As [`post_recv`], of a shared receive queue.
///
/// # Safety
///
/// As [`post_recv`].
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give_entries(first) };
    // SAFETY: by the caller's promise, the queue lives.
    let context = unsafe { (*srq).context };
    // SAFETY: the queue lives, and with it its context.
    let Some(post) = (unsafe { (*context).ops.post_srq_recv }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the caller's promise.
    unsafe { post(srq, first, bad) }
}

/// # Safety
///
/// The chain lives, and nothing else uses it.
unsafe fn give_entries(first: *mut sys::ibv_recv_wr) {
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the caller's promise.
        let receive = unsafe { &mut *next };
        if receive.num_sge == 0 {
            (receive.sg_list, receive.num_sge) = (no_bytes(), 1);
        }
        next = receive.next;
    }
}

/// An entry that providers only read.
fn no_bytes() -> *mut sys::ibv_sge {
    (&raw const NO_BYTES).cast_mut()
}
