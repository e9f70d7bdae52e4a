//! The connection manager's attributes for a queue pair (`rdma_init_qp_attr(3)`), and librdmacm's
//! use of them.

use std::ffi::c_int;

use rustix::io::Errno;

use super::calls::of_id;
use super::{Depths, Stage};
use crate::call::Result;
use crate::memory::access;
use crate::modify::mask;
use crate::state::State;
use crate::types::{
    ibv_ah_attr, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state, rdma_cm_id,
};

/// The connection manager's attributes for the step to each state of a connection
/// (`cm_init_qp_init_attr`, `cm_init_qp_rtr_attr` and `cm_init_qp_rts_attr` in
/// `drivers/infiniband/core/cm.c`).
fn known(to: ibv_qp_state) -> Result<u32> {
    let attributes: &[Mask] = match to {
        ibv_qp_state::IBV_QPS_INIT => &[
            Mask::IBV_QP_ACCESS_FLAGS,
            Mask::IBV_QP_PKEY_INDEX,
            Mask::IBV_QP_PORT,
        ],
        ibv_qp_state::IBV_QPS_RTR => &[
            Mask::IBV_QP_AV,
            Mask::IBV_QP_PATH_MTU,
            Mask::IBV_QP_DEST_QPN,
            Mask::IBV_QP_RQ_PSN,
            Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            Mask::IBV_QP_MIN_RNR_TIMER,
        ],
        ibv_qp_state::IBV_QPS_RTS => &[
            Mask::IBV_QP_SQ_PSN,
            Mask::IBV_QP_TIMEOUT,
            Mask::IBV_QP_RETRY_CNT,
            Mask::IBV_QP_RNR_RETRY,
            Mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ],
        _ => return Err(Errno::INVAL),
    };
    Ok(Mask::IBV_QP_STATE.0 | mask(attributes))
}

/// As [`State::qp_attr`], where the kernel connects queue pairs: `rdma_init_qp_attr` of `cma.c`
/// and `iw_cm_init_qp_attr` of `iwcm.c`.
fn attr_of_stream(to: ibv_qp_state) -> Result<(ibv_qp_attr, u32)> {
    let attr = ibv_qp_attr {
        qp_state: to,
        qp_access_flags: access::REMOTE_WRITE | access::REMOTE_READ,
        port_num: 1,
        ..Default::default()
    };
    match to {
        ibv_qp_state::IBV_QPS_INIT | ibv_qp_state::IBV_QPS_RTR => {
            let changes = [Mask::IBV_QP_ACCESS_FLAGS, Mask::IBV_QP_PORT];
            Ok((attr, Mask::IBV_QP_STATE.0 | mask(&changes)))
        }
        ibv_qp_state::IBV_QPS_RTS => Ok((attr, Mask::IBV_QP_PORT.0)),
        _ => Err(Errno::INVAL),
    }
}

impl State {
    /// The attributes for the step of an id's queue pair to this state, and which these are.
    fn qp_attr(&self, number: u32, to: ibv_qp_state) -> Result<(ibv_qp_attr, u32)> {
        let id = &self.ids[number];
        if self.is_stream(number) {
            return attr_of_stream(to);
        }
        let is_known = match to {
            ibv_qp_state::IBV_QPS_INIT => id.nic.is_some() && id.stage != Stage::Over,
            // Both ends have each other's numbers, and neither has ended the connection.
            _ => matches!(
                id.stage,
                Stage::Requested | Stage::Accepted | Stage::Answered | Stage::Established
            ),
        };
        if !is_known {
            return Err(Errno::INVAL);
        }
        let profile = &self.profiles[id.host];
        let (own, theirs) = (id.own, id.theirs);
        // The server keeps the retries of the client's request.
        let is_client = id.is_client;
        let retry_cnt = if is_client { own } else { theirs }.retry_count;
        let mut rights = access::REMOTE_WRITE;
        // The other end has as many reads in flight as this one serves (`cm_req_handler`,
        // `cm_rep_handler`).
        if theirs.initiator_depth > 0 {
            rights |= access::REMOTE_READ | access::REMOTE_ATOMIC;
            if profile.native {
                rights |= access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;
            }
        }
        let attr = ibv_qp_attr {
            qp_state: to,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: id.their_qp,
            qp_access_flags: rights,
            ah_attr: ibv_ah_attr {
                port_num: 1,
                ..Default::default()
            },
            max_rd_atomic: theirs.responder_resources,
            max_dest_rd_atomic: theirs.initiator_depth,
            port_num: 1,
            timeout: id.ack_timeout.unwrap_or(profile.ack_timeout),
            retry_cnt,
            // Each end sends the other how often to try without a receive.
            rnr_retry: theirs.rnr_retry_count,
            ..Default::default()
        };
        Ok((attr, known(to)?))
    }

    /// Connects an id's queue pair to that at the other end, as librdmacm does: it is ready to send
    /// then. An id without one stays unchanged.
    pub(super) fn join(&mut self, number: u32, accepted: Option<Depths>) -> Result<()> {
        let Some(qp) = self.shown_qp(number) else {
            return Ok(());
        };
        for to in [
            ibv_qp_state::IBV_QPS_INIT,
            ibv_qp_state::IBV_QPS_RTR,
            ibv_qp_state::IBV_QPS_RTS,
        ] {
            let (mut attr, mask) = self.qp_attr(number, to)?;
            if let Some(accepted) = accepted {
                attr.max_rd_atomic = accepted.initiator_depth;
                attr.max_dest_rd_atomic = accepted.responder_resources;
            }
            self.modify_qp(qp, &attr, mask)?;
        }
        Ok(())
    }
}

/// `rdma_init_qp_attr(3)`.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet.
    let of = unsafe { of_id(id) };
    // SAFETY: by C's rules `qp_attr` leads to attributes in which the caller has set the state.
    let to = unsafe { (*qp_attr).qp_state };
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_init_qp_attr", |state| {
        let (attr, mask) = state.qp_attr(of.number, to)?;
        // SAFETY: by C's rules `qp_attr` leads to a place for the result.
        unsafe { qp_attr.write(attr) };
        // SAFETY: by C's rules `qp_attr_mask` leads to a place for the result.
        unsafe { qp_attr_mask.write(mask as c_int) };
        Ok(())
    })
}
