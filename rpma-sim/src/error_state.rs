//! Queue pairs in the error state: all that they have completes as flushed, and the last receive of
//! a shared queue comes back.

use crate::async_events::Element;
use crate::qp::{LastReceive, QpState};
use crate::state::State;
use crate::timer::Timer;
use crate::types::{ibv_event_type, ibv_wc, ibv_wc_status};

impl State {
    pub(crate) fn fail_qp(&mut self, number: u32) {
        let qp = &mut self.qps[number];
        if qp.state != QpState::Error {
            qp.state = QpState::Error;
            qp.waiting = None;
            qp.attempt += 1;
        }
        self.flush(number);
        self.hang_up(number);
    }

    /// A failed queue pair takes no more receives from a shared queue. Some time later it gives
    /// back the receive that an incomplete message has taken.
    fn end_shared(&mut self, number: u32) {
        let delay = self.profile_of(number).returns_last_receive;
        let delay = delay.unwrap_or_default();
        let qp = &mut self.qps[number];
        if qp.srq.is_none() || qp.last_receive != LastReceive::Open {
            return;
        }
        qp.last_receive = LastReceive::Due;
        if qp.begun.is_some() && !delay.is_zero() {
            self.clock.after(delay, Timer::LastReceive { qp: number })
        } else {
            self.last_receive(number)
        }
    }

    /// A failed queue pair gives back the receive that an incomplete message has taken, if it ever
    /// does, and reports that this was the last receive.
    pub(crate) fn last_receive(&mut self, number: u32) {
        if self.qps.get(number).is_none() {
            return;
        }
        let is_frozen = self.is_frozen(number);
        let qp = &mut self.qps[number];
        if is_frozen {
            // It is flushed again later.
            qp.last_receive = LastReceive::Open;
            return;
        }
        qp.last_receive = LastReceive::Over;
        let (nic, cq, begun) = (qp.nic, qp.recv_cq, qp.begun.take());
        let profile = self.profile(nic);
        let (solicited, tells_last) = (profile.errors_are_solicited, profile.tells_last_receive);
        let returned = begun.filter(|_| profile.returns_last_receive.is_some());
        if let Some(receive) = returned {
            let wc = failed(number, receive.wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            self.complete(cq, wc, solicited, 0);
        }
        if tells_last {
            let last = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED;
            self.tell(nic, last, Element::Qp(number));
        }
    }

    /// Completes everything that a queue pair in the error state has.
    pub(crate) fn flush(&mut self, number: u32) {
        if self.is_frozen(number) {
            return;
        }
        let (solicited, status) = (
            self.profile_of(number).errors_are_solicited,
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        );
        if !self.qps[number].sends.is_empty() {
            self.push_read(number);
        }
        while let Some(send) = self.qps[number].sends.pop_front() {
            let wc = failed(number, send.wr_id, status);
            self.complete_send(number, Some(wc), solicited);
        }
        while let Some(receive) = self.qps[number].receives.pop_front() {
            let wc = failed(number, receive.wr_id, status);
            self.complete(self.qps[number].recv_cq, wc, solicited, 0);
        }
        self.end_shared(number);
    }
}

/// A failed completion has only these valid fields.
pub(crate) fn failed(number: u32, wr_id: u64, status: ibv_wc_status) -> ibv_wc {
    ibv_wc {
        wr_id,
        status,
        qp_num: number,
        ..Default::default()
    }
}
