//! The asynchronous events of devices: an error of an object, and the last receive of a shared
//! queue.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use crate::call::minus_one;
use crate::handle::of_context;
use crate::pipe::wait_readable;
use crate::state::State;
use crate::types::{
    ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_context, ibv_cq, ibv_event_type, ibv_qp,
    ibv_srq,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    kind: ibv_event_type,
    of: Element,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Cq(u32),
    Qp(u32),
    Srq(u32),
}

impl State {
    /// Something has happened to an object.
    pub(crate) fn tell(&mut self, nic: usize, kind: ibv_event_type, of: Element) {
        let nic = &mut self.nics[nic];
        nic.events.push_back(Event { kind, of });
        nic.pipe.add();
    }

    /// Forgets the unread events of an object that is destroyed.
    pub(crate) fn untell(&mut self, nic: usize, of: Element) {
        let nic = &mut self.nics[nic];
        let before = nic.events.len();
        nic.events.retain(|event| event.of != of);
        for _ in nic.events.len()..before {
            nic.pipe.take();
        }
    }

    /// How many events of an object were read, which its destruction waits for.
    fn read_events(&mut self, of: Element) -> Option<&mut u32> {
        match of {
            Element::Cq(number) => self.cqs.get_mut(number).map(|cq| &mut cq.unacknowledged),
            Element::Qp(number) => self.qps.get_mut(number).map(|qp| &mut qp.unacknowledged),
            Element::Srq(number) => self.srqs.get_mut(number).map(|srq| &mut srq.unacknowledged),
        }
    }

    fn element(&self, of: Element) -> Option<ibv_async_event__bindgen_ty_1> {
        Some(match of {
            Element::Cq(number) => ibv_async_event__bindgen_ty_1 {
                cq: self.cqs.get(number)?.object.as_ptr(),
            },
            Element::Qp(number) => ibv_async_event__bindgen_ty_1 {
                qp: self.qps.get(number)?.object.as_ptr().cast(),
            },
            Element::Srq(number) => ibv_async_event__bindgen_ty_1 {
                srq: self.srqs.get(number)?.object.as_ptr(),
            },
        })
    }
}

/// `ibv_get_async_event(3)`.
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: by C's rules `context` is that of an id which is bound to its device and not
    // destroyed yet.
    let (shared, number) = unsafe { of_context(context) };
    loop {
        let mut state = shared.lock();
        let nic = &mut state.nics[number];
        if let Some(next) = nic.events.pop_front() {
            nic.pipe.take();
            // Its object may have gone since.
            let Some(element) = state.element(next.of) else {
                continue;
            };
            let told = ibv_async_event {
                element,
                event_type: next.kind,
            };
            if let Some(read) = state.read_events(next.of) {
                *read += 1;
            }
            // SAFETY: by C's rules `event` leads to a place for the result.
            unsafe { event.write(told) };
            return 0;
        }
        let pipe = Arc::clone(&nic.pipe);
        drop(state);
        if let Err(errno) = wait_readable(pipe.reader()) {
            return minus_one(Err(errno));
        }
    }
}

/// `ibv_ack_async_event(3)`.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    type Kind = ibv_event_type;
    // SAFETY: by C's rules `event` leads to one that `ibv_get_async_event` has filled.
    let ibv_async_event {
        element,
        event_type: kind,
    } = unsafe { *event };
    let (found, of): (_, fn(u32) -> Element) = match kind {
        Kind::IBV_EVENT_CQ_ERR => {
            // SAFETY: `State::element` has given an event of this kind a queue.
            let cq: *mut ibv_cq = unsafe { element.cq };
            // SAFETY: `ibv_destroy_cq` waits until each event of the queue that was read is
            // acknowledged.
            (unsafe { crate::handle::of(cq) }, Element::Cq)
        }
        Kind::IBV_EVENT_SRQ_ERR | Kind::IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: `State::element` has given an event of these kinds a shared receive queue.
            let srq: *mut ibv_srq = unsafe { element.srq };
            // SAFETY: `ibv_destroy_srq` waits until each event of the queue that was read is
            // acknowledged.
            (unsafe { crate::handle::of(srq) }, Element::Srq)
        }
        Kind::IBV_EVENT_QP_FATAL
        | Kind::IBV_EVENT_QP_REQ_ERR
        | Kind::IBV_EVENT_QP_ACCESS_ERR
        | Kind::IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: `State::element` has given an event of these kinds a queue pair.
            let qp: *mut ibv_qp = unsafe { element.qp };
            // SAFETY: `ibv_destroy_qp` waits until each event of the queue pair that was read is
            // acknowledged.
            (unsafe { crate::handle::of(qp) }, Element::Qp)
        }
        _ => return,
    };
    let mut state = found.shared.lock();
    if let Some(read) = state.read_events(of(found.number)) {
        *read = read.saturating_sub(1);
    }
    drop(state);
    found.shared.changed.notify_all();
}

/// `ibv_event_type_str(3)`.
pub unsafe extern "C" fn ibv_event_type_str(kind: ibv_event_type) -> *const c_char {
    type Kind = ibv_event_type;
    let text: &CStr = match kind {
        Kind::IBV_EVENT_CQ_ERR => c"CQ error",
        Kind::IBV_EVENT_QP_FATAL => c"local work queue catastrophic error",
        Kind::IBV_EVENT_QP_REQ_ERR => c"invalid request local work queue error",
        Kind::IBV_EVENT_QP_ACCESS_ERR => c"local access violation work queue error",
        Kind::IBV_EVENT_COMM_EST => c"communication established",
        Kind::IBV_EVENT_QP_LAST_WQE_REACHED => c"last WQE reached",
        Kind::IBV_EVENT_SRQ_ERR => c"SRQ catastrophic error",
        Kind::IBV_EVENT_SRQ_LIMIT_REACHED => c"SRQ limit reached",
        Kind::IBV_EVENT_DEVICE_FATAL => c"local catastrophic error",
        Kind::IBV_EVENT_PORT_ACTIVE => c"port active",
        Kind::IBV_EVENT_PORT_ERR => c"port error",
        _ => c"unknown",
    };
    text.as_ptr()
}
