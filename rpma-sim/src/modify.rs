//! The transitions of queue pairs (`ibv_modify_qp(3)`), with the kernel's checks.

use std::ffi::c_int;

use rustix::io::Errno;

use crate::call::{Result, errno_of};
use crate::device::MAX_RD_ATOM;
use crate::handle::of;
use crate::qp::QpState;
use crate::state::State;
use crate::types::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

/// Each transition of a connection's queue pair, with the attributes that it requires and those
/// that it also accepts (`qp_state_table` in the kernel's `drivers/infiniband/core/verbs.c`). Any
/// state may change to the error state.
const TRANSITIONS: [(QpState, QpState, &[Mask], &[Mask]); 4] = [
    (
        QpState::Init,
        QpState::Init,
        &[],
        &[
            Mask::IBV_QP_PKEY_INDEX,
            Mask::IBV_QP_PORT,
            Mask::IBV_QP_ACCESS_FLAGS,
        ],
    ),
    (
        QpState::Init,
        QpState::ReadyToReceive,
        &[
            Mask::IBV_QP_AV,
            Mask::IBV_QP_PATH_MTU,
            Mask::IBV_QP_DEST_QPN,
            Mask::IBV_QP_RQ_PSN,
            Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            Mask::IBV_QP_MIN_RNR_TIMER,
        ],
        &[
            Mask::IBV_QP_ALT_PATH,
            Mask::IBV_QP_ACCESS_FLAGS,
            Mask::IBV_QP_PKEY_INDEX,
        ],
    ),
    (
        QpState::ReadyToReceive,
        QpState::ReadyToSend,
        &[
            Mask::IBV_QP_TIMEOUT,
            Mask::IBV_QP_RETRY_CNT,
            Mask::IBV_QP_RNR_RETRY,
            Mask::IBV_QP_SQ_PSN,
            Mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ],
        &[
            Mask::IBV_QP_ALT_PATH,
            Mask::IBV_QP_ACCESS_FLAGS,
            Mask::IBV_QP_MIN_RNR_TIMER,
            Mask::IBV_QP_PATH_MIG_STATE,
        ],
    ),
    (
        QpState::ReadyToSend,
        QpState::ReadyToSend,
        &[],
        &[
            Mask::IBV_QP_ACCESS_FLAGS,
            Mask::IBV_QP_ALT_PATH,
            Mask::IBV_QP_PATH_MIG_STATE,
            Mask::IBV_QP_MIN_RNR_TIMER,
        ],
    ),
];

use ibv_qp_attr_mask as Mask;

/// Some attributes of a queue pair: the bits of their mask.
pub(crate) fn mask(attributes: &[Mask]) -> u32 {
    attributes.iter().fold(0, |all, one| all | one.0)
}

/// The state after a change of these attributes, if a queue pair in this state takes them
/// (`ib_modify_qp_is_ok`).
fn next_state(from: QpState, attr: &ibv_qp_attr, changes: u32) -> Result<QpState> {
    let to = match changes & Mask::IBV_QP_STATE.0 {
        0 => from,
        _ => QpState::of(attr.qp_state).ok_or(Errno::INVAL)?,
    };
    let changes = changes & !Mask::IBV_QP_STATE.0;
    if to == QpState::Error {
        return match changes {
            0 => Ok(to),
            _ => Err(Errno::INVAL),
        };
    }
    let found = TRANSITIONS
        .iter()
        .find(|(before, after, ..)| (*before, *after) == (from, to));
    let (_, _, required, accepted) = found.ok_or(Errno::INVAL)?;
    let (required, accepted) = (mask(required), mask(accepted));
    if changes & required == required && changes & !(required | accepted) == 0 {
        Ok(to)
    } else {
        Err(Errno::INVAL)
    }
}

/// The values that a device refuses (`rxe_qp_chk_attr`), and those that their fields of the wire
/// cannot have.
fn check_values(attr: &ibv_qp_attr, changes: u32) -> Result<()> {
    let fits = |attribute: Mask, fits: bool| changes & attribute.0 == 0 || fits;
    let all = [
        fits(Mask::IBV_QP_PORT, attr.port_num == 1),
        fits(Mask::IBV_QP_AV, attr.ah_attr.port_num == 1),
        fits(
            Mask::IBV_QP_MAX_QP_RD_ATOMIC,
            attr.max_rd_atomic <= MAX_RD_ATOM,
        ),
        fits(
            Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic <= MAX_RD_ATOM,
        ),
        fits(Mask::IBV_QP_TIMEOUT, attr.timeout < 32),
        fits(Mask::IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer < 32),
        fits(Mask::IBV_QP_RETRY_CNT, attr.retry_cnt < 8),
        fits(Mask::IBV_QP_RNR_RETRY, attr.rnr_retry < 8),
    ];
    if all.iter().all(|fits| *fits) {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

impl QpState {
    fn of(state: ibv_qp_state) -> Option<Self> {
        match state {
            ibv_qp_state::IBV_QPS_INIT => Some(Self::Init),
            ibv_qp_state::IBV_QPS_RTR => Some(Self::ReadyToReceive),
            ibv_qp_state::IBV_QPS_RTS => Some(Self::ReadyToSend),
            ibv_qp_state::IBV_QPS_ERR => Some(Self::Error),
            _ => None,
        }
    }

    pub(crate) fn ibv(self) -> ibv_qp_state {
        match self {
            Self::Init => ibv_qp_state::IBV_QPS_INIT,
            Self::ReadyToReceive => ibv_qp_state::IBV_QPS_RTR,
            Self::ReadyToSend => ibv_qp_state::IBV_QPS_RTS,
            Self::Error => ibv_qp_state::IBV_QPS_ERR,
        }
    }
}

impl State {
    /// Changes these attributes of a queue pair, or none on an error.
    pub(crate) fn modify_qp(
        &mut self,
        number: u32,
        attr: &ibv_qp_attr,
        changes: u32,
    ) -> Result<()> {
        if self.qps.get(number).is_some() && self.is_tcp(number) {
            return self.modify_of_stream(number, attr, changes);
        }
        let qp = self.qps.get_mut(number).ok_or(Errno::INVAL)?;
        let state = next_state(qp.state, attr, changes)?;
        check_values(attr, changes)?;
        if state == QpState::Error {
            self.leave_requests(number);
            self.fail_qp(number);
            return Ok(());
        }
        qp.state = state;
        let is_changed = |attribute: Mask| changes & attribute.0 != 0;
        if is_changed(Mask::IBV_QP_ACCESS_FLAGS) {
            qp.rights = attr.qp_access_flags;
        }
        if is_changed(Mask::IBV_QP_DEST_QPN) {
            qp.peer = Some(attr.dest_qp_num);
        }
        for (attribute, field, value) in [
            (Mask::IBV_QP_TIMEOUT, &mut qp.ack_timeout, attr.timeout),
            (Mask::IBV_QP_RETRY_CNT, &mut qp.retry_count, attr.retry_cnt),
            (
                Mask::IBV_QP_RNR_RETRY,
                &mut qp.rnr_retry_count,
                attr.rnr_retry,
            ),
            (
                Mask::IBV_QP_MIN_RNR_TIMER,
                &mut qp.min_rnr_timer,
                attr.min_rnr_timer,
            ),
            (
                Mask::IBV_QP_MAX_QP_RD_ATOMIC,
                &mut qp.max_rd_atomic,
                attr.max_rd_atomic,
            ),
            (
                Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
                &mut qp.max_dest_rd_atomic,
                attr.max_dest_rd_atomic,
            ),
        ] {
            if is_changed(attribute) {
                *field = value;
            }
        }
        if is_changed(Mask::IBV_QP_DEST_QPN) {
            self.note_ends(number, attr.dest_qp_num);
        }
        Ok(())
    }
}

impl State {
    /// As [`modify_qp`](Self::modify_qp), where the kernel connects queue pairs, with as few checks
    /// as `siw_verbs_modify_qp` has.
    fn modify_of_stream(&mut self, number: u32, attr: &ibv_qp_attr, changes: u32) -> Result<()> {
        if changes & Mask::IBV_QP_ACCESS_FLAGS.0 != 0 {
            self.qps[number].rights = attr.qp_access_flags;
        }
        if changes & Mask::IBV_QP_STATE.0 == 0 {
            return Ok(());
        }
        match QpState::of(attr.qp_state).ok_or(Errno::INVAL)? {
            QpState::Error => self.fail_qp(number),
            // It has no socket.
            QpState::ReadyToSend if self.qps[number].state == QpState::Init => {
                return Err(Errno::INVAL);
            }
            _ => {}
        }
        Ok(())
    }
}

/// `ibv_modify_qp(3)`.
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of(qp) };
    // SAFETY: by C's rules `attr` leads to attributes that no other thread writes to.
    let attr = unsafe { &*attr };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_modify_qp", of.nic).begin()?;
        state.modify_qp(of.number, attr, mask as u32)?;
        let now = state.qps[of.number].state.ibv();
        // SAFETY: `qp` is in the table, so it is not destroyed yet. By C's rules the caller changes
        // its state in one thread at a time.
        unsafe { (*qp).state = now };
        fate.end()
    })())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change needs the attributes that the specification requires for it, and takes no others.
    #[test]
    fn transitions_are_checked_as_the_kernel_checks_them() {
        use QpState::{Error, Init, ReadyToReceive, ReadyToSend};
        let attr = |qp_state| ibv_qp_attr {
            qp_state,
            ..Default::default()
        };
        let step = |from, to: QpState, changes: u32| {
            next_state(from, &attr(to.ibv()), changes | Mask::IBV_QP_STATE.0)
        };
        for (from, to, required, accepted) in TRANSITIONS {
            let (required, accepted) = (mask(required), mask(accepted));
            assert_eq!(step(from, to, required), Ok(to));
            assert_eq!(step(from, to, required | accepted), Ok(to));
            let foreign = required | Mask::IBV_QP_QKEY.0;
            assert_eq!(step(from, to, foreign), Err(Errno::INVAL));
            if required != 0 {
                let missing = required & (required - 1);
                assert_eq!(step(from, to, missing), Err(Errno::INVAL));
            }
        }
        for from in [Init, ReadyToReceive, ReadyToSend, Error] {
            assert_eq!(step(from, Error, 0), Ok(Error));
            let with_more = Mask::IBV_QP_MIN_RNR_TIMER.0;
            assert_eq!(step(from, Error, with_more), Err(Errno::INVAL));
        }
        assert_eq!(step(Init, ReadyToSend, 0), Err(Errno::INVAL), "no step");
        assert_eq!(step(Error, Init, 0), Err(Errno::INVAL));
        // Without a state it is the one that it has.
        let timer = Mask::IBV_QP_MIN_RNR_TIMER.0;
        let unchanged = attr(ibv_qp_state::IBV_QPS_RESET);
        assert_eq!(next_state(ReadyToSend, &unchanged, timer), Ok(ReadyToSend));
        assert_eq!(next_state(Error, &unchanged, timer), Err(Errno::INVAL));
    }
}
