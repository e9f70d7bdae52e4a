//! Accepting a connection with this side's own retry counts.
//!
//! A client's request carries a retry count for both sides. `rdma_accept` makes the transitions of
//! the queue pair with that count, so that a client could make a server wait for ever for a client
//! that is gone (7 has no end on soft-RoCE). The count can be set only in the transition to "ready
//! to send". So the transitions are made here, as librdmacm makes them (`ucma_modify_qp_rtr` and
//! `ucma_modify_qp_rts` in librdmacm/cma.c), with other counts. Then `rdma_accept` must not make
//! them again: it does not if it sees no queue pair.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use rpma_sys as sys;

use super::{check_errno, check_minus_one};
use crate::error::Result;

/// The steps from a new queue pair to one that sends. The first one repeats the state of a new
/// queue pair: the rights of the peer follow from the request.
const STEPS: [sys::ibv_qp_state; 3] = [
    sys::ibv_qp_state::IBV_QPS_INIT,
    sys::ibv_qp_state::IBV_QPS_RTR,
    sys::ibv_qp_state::IBV_QPS_RTS,
];

/// Accepts the request that the id stands for, with the counts and depths in `param`, which names
/// the queue pair. `check` gets the acknowledgement time-out, if the transport has one, and can
/// refuse it. If this fails, the queue pair is in the error state, as after a failed
/// `rdma_accept` that makes the transitions.
///
/// # Safety
///
/// The id is alive, and so is its queue pair, `qp`. `param` points to private data of the length in
/// it. The lock of the id is held.
pub(super) unsafe fn accept(
    id: *mut sys::rdma_cm_id,
    qp: NonNull<sys::ibv_qp>,
    param: &mut sys::rdma_conn_param,
    check: impl FnOnce(Option<u8>) -> Result<()>,
) -> Result<()> {
    let mut steps = STEPS.into_iter();
    // SAFETY: `# Safety` of this function requires all that `step` does: `id` and `qp` are alive,
    // and the lock is held.
    let connected = steps.try_fold(None, |_, state| unsafe { step(id, qp, state, param) });
    // SAFETY: by `# Safety` the id is alive, the lock is held, and `param` has as much private data
    // as its length.
    let tell = |()| unsafe { tell_the_client(id, param) };
    let accepted = connected.and_then(check).and_then(tell);
    if accepted.is_err() {
        // SAFETY: by `# Safety` the queue pair is alive and the lock is held.
        if let Err(error) = unsafe { set_error(qp) } {
            log::warn!("{error}, of a queue pair that was not accepted");
        }
    }
    accepted
}

/// Changes the state of the queue pair with the connection manager's attributes, except the retry
/// counts and depths. Returns the acknowledgement time-out, if this state sets one.
///
/// # Safety
///
/// As of [`accept`].
unsafe fn step(
    id: *mut sys::rdma_cm_id,
    qp: NonNull<sys::ibv_qp>,
    state: sys::ibv_qp_state,
    param: &sys::rdma_conn_param,
) -> Result<Option<u8>> {
    // SAFETY: by `# Safety` the id is alive and its lock is held.
    let (mut attr, mask) = unsafe { known(id, state) }?;
    // The mask has only the attributes that this state and this transport need: for iWARP none of
    // these.
    attr.max_dest_rd_atomic = param.responder_resources;
    attr.max_rd_atomic = param.initiator_depth;
    attr.retry_cnt = param.retry_count;
    attr.rnr_retry = param.rnr_retry_count;
    // SAFETY: by `# Safety` the queue pair is alive and the lock is held.
    unsafe { modify(qp, &mut attr, mask) }?;
    Ok(timeout_of(&attr, mask))
}

/// Returns the acknowledgement time-out with which the request that the id stands for would be
/// accepted, if the transport has one. The kernel has it before there is a queue pair
/// (`cm_init_qp_rts_attr` in drivers/infiniband/core/cm.c).
///
/// # Safety
///
/// The id is alive, and its lock is held.
pub(super) unsafe fn ack_timeout(id: *mut sys::rdma_cm_id) -> Result<Option<u8>> {
    // SAFETY: by `# Safety` the id is alive and its lock is held.
    let (attr, mask) = unsafe { known(id, sys::ibv_qp_state::IBV_QPS_RTS) }?;
    Ok(timeout_of(&attr, mask))
}

/// Returns the connection manager's attributes for the step to this state, and which these are.
///
/// # Safety
///
/// As of [`ack_timeout`].
unsafe fn known(
    id: *mut sys::rdma_cm_id,
    state: sys::ibv_qp_state,
) -> Result<(sys::ibv_qp_attr, c_int)> {
    let mut attr = sys::ibv_qp_attr {
        qp_state: state,
        ..Default::default()
    };
    let mut mask: c_int = 0;
    // SAFETY: by `# Safety` the id is alive and its lock is held. The call reads the state from
    // `attr`, and writes `attr` and `mask`.
    let ret = unsafe { sys::rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) };
    check_minus_one("rdma_init_qp_attr", ret)?;
    Ok((attr, mask))
}

fn timeout_of(attr: &sys::ibv_qp_attr, mask: c_int) -> Option<u8> {
    let has_timeout = mask & sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT.0 as c_int != 0;
    has_timeout.then_some(attr.timeout)
}

/// Calls `rdma_accept` for a queue pair that is ready to send.
///
/// # Safety
///
/// As of [`accept`].
unsafe fn tell_the_client(
    id: *mut sys::rdma_cm_id,
    param: &mut sys::rdma_conn_param,
) -> Result<()> {
    // SAFETY: by `# Safety` the id is alive and its lock is held until this function returns, which
    // drops `_hidden`.
    let _hidden = unsafe { Hidden::of(id) };
    // SAFETY: by `# Safety` the id is alive, and `param` has as much private data as its length.
    // The call copies both, and takes the number of the queue pair from `param`.
    let ret = unsafe { sys::rdma_accept(id, param) };
    check_minus_one("rdma_accept", ret)
}

/// Moves a queue pair to the error state.
///
/// # Safety
///
/// As of [`modify`].
pub(super) unsafe fn set_error(qp: NonNull<sys::ibv_qp>) -> Result<()> {
    let mut attr = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_ERR,
        ..Default::default()
    };
    let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE;
    // SAFETY: by `# Safety` the queue pair is alive and the lock of its id is held.
    unsafe { modify(qp, &mut attr, mask.0 as c_int) }
}

/// Changes those attributes of a queue pair that the mask names.
///
/// # Safety
///
/// The queue pair is alive, and the lock of its id is held: neither the connection manager nor
/// another thread changes it at the same time.
pub(super) unsafe fn modify(
    qp: NonNull<sys::ibv_qp>,
    attr: &mut sys::ibv_qp_attr,
    mask: c_int,
) -> Result<()> {
    // SAFETY: by `# Safety` the queue pair is alive and no other code changes it now. The call only
    // reads `attr`.
    let ret = unsafe { sys::ibv_modify_qp(qp.as_ptr(), attr, mask) };
    check_errno("ibv_modify_qp", ret)
}

/// An id with its queue pair hidden from librdmacm. It sees the queue pair again when this is
/// dropped: without it, `rdma_disconnect` and a reject would leave the queue pair alive.
struct Hidden {
    id: *mut sys::rdma_cm_id,
    qp: *mut sys::ibv_qp,
}

impl Hidden {
    /// # Safety
    ///
    /// The id is alive until this is dropped, and its lock is held until then.
    unsafe fn of(id: *mut sys::rdma_cm_id) -> Self {
        // SAFETY: by `# Safety` the id is alive; this makes no reference to its field.
        let field = unsafe { &raw mut (*id).qp };
        // SAFETY: by `# Safety` the lock of the id is held, without which no thread uses the field.
        let qp = unsafe { field.replace(ptr::null_mut()) };
        Self { id, qp }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // SAFETY: `of` requires of its caller that the id is alive and its lock is held until this
        // drop.
        unsafe { (*self.id).qp = self.qp };
    }
}
