//! Events of the connection manager (`struct rdma_cm_event`), copied out and acknowledged.

use std::ptr::NonNull;

use rpma_sys as sys;
use rpma_sys::rdma_cm_event_type as EventType;

use super::{check_minus_one, log_leak};
use crate::event::ConnEvent;

/// An event, copied out of librdmacm's struct, which was acknowledged already.
#[derive(Debug)]
pub(crate) struct CmEvent {
    pub(crate) kind: CmEventKind,
    /// 0 or a negative errno; of a reject, its reason.
    pub(crate) status: i32,
    /// As the transport delivers it: padded with zeros to the field's full length.
    pub(crate) private_data: Box<[u8]>,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
}

/// `enum rdma_cm_event_type`, as far as this crate acts on it.
///
/// An established connection gets `Unreachable`, `Rejected`, `Disconnected`, `DeviceRemoval`,
/// `TimewaitExit` and notices. These functions of Linux 6.12 send the events (`cma.c` in
/// drivers/infiniband/core):
///
/// | event | sent by | and so |
/// |---|---|---|
/// | `ConnectError` | librdmacm, `cma_ib_handler` | the queue pair could not be set up |
/// | `Unreachable` | `cma_ib_handler`, `cma_netevent_work_handler` | the peer does not answer, or the neighbour has another hardware address |
/// | `Rejected` | `cma_ib_handler` | the peer or its kernel rejects; later: its kernel does not have the connection |
/// | `Established` | `cma_ib_handler`, librdmacm | |
/// | `Disconnected`, `TimewaitExit` | `cma_ib_handler` | |
/// | `DeviceRemoval` | `cma_send_device_removal_put` | |
/// | 14, `ADDR_CHANGE` | `cma_netdev_change` | a bond has failed over |
///
/// 5, `CONNECT_RESPONSE`, comes only to an id without a queue pair, and 12 and 13 only to members
/// of multicast groups. rpma has neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmEventKind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    Established,
    Disconnected,
    TimewaitExit,
    ConnectError,
    DeviceRemoval,
    Rejected,
    Unreachable,
    /// Any other, by its number: a notice, which changes nothing.
    Other(u32),
}

impl CmEventKind {
    fn from_raw(raw: EventType) -> Self {
        match raw {
            EventType::RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddrResolved,
            EventType::RDMA_CM_EVENT_ADDR_ERROR => Self::AddrError,
            EventType::RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            EventType::RDMA_CM_EVENT_ROUTE_ERROR => Self::RouteError,
            EventType::RDMA_CM_EVENT_CONNECT_REQUEST => Self::ConnectRequest,
            EventType::RDMA_CM_EVENT_ESTABLISHED => Self::Established,
            EventType::RDMA_CM_EVENT_DISCONNECTED => Self::Disconnected,
            EventType::RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            EventType::RDMA_CM_EVENT_CONNECT_ERROR => Self::ConnectError,
            EventType::RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoval,
            EventType::RDMA_CM_EVENT_REJECTED => Self::Rejected,
            EventType::RDMA_CM_EVENT_UNREACHABLE => Self::Unreachable,
            EventType(other) => Self::Other(other),
        }
    }
}

impl CmEvent {
    /// The event of an iWARP connection that the peer or the network refuses, for this reason: as
    /// the kernel reports it for adapters (`cma_iw_handler`).
    pub(super) fn not_connected(errno: i32) -> Option<Self> {
        let kind = match errno {
            libc::ECONNREFUSED | libc::ECONNRESET => CmEventKind::Rejected,
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => CmEventKind::Unreachable,
            _ => return None,
        };
        Some(Self {
            kind,
            status: -errno,
            private_data: Box::default(),
            initiator_depth: 0,
            responder_resources: 0,
        })
    }
}

impl From<CmEvent> for ConnEvent {
    fn from(event: CmEvent) -> Self {
        let status = event.status;
        match event.kind {
            CmEventKind::Established => Self::Established,
            CmEventKind::Disconnected => Self::Closed,
            CmEventKind::TimewaitExit => Self::TimewaitExit,
            CmEventKind::ConnectError | CmEventKind::DeviceRemoval => Self::Lost { status },
            CmEventKind::Rejected => Self::Rejected {
                reason: reason(status),
                private_data: event.private_data,
            },
            CmEventKind::Unreachable => Self::Unreachable { status },
            CmEventKind::Other(event) => Self::Other { event, status },
            // These end a resolution or reach an endpoint, never a connection.
            CmEventKind::AddrResolved => Self::Other { event: 0, status },
            CmEventKind::AddrError => Self::Other { event: 1, status },
            CmEventKind::RouteResolved => Self::Other { event: 2, status },
            CmEventKind::RouteError => Self::Other { event: 3, status },
            CmEventKind::ConnectRequest => Self::Other { event: 4, status },
        }
    }
}

/// The reason of a reject, with the two of [`ConnEvent`] for the errnos of iWARP, which stand for
/// the same: `siw_cm.c` reports a reject of the peer's kernel, and that of a program.
fn reason(status: i32) -> i32 {
    const REFUSED: i32 = -libc::ECONNREFUSED;
    const RESET: i32 = -libc::ECONNRESET;
    match status {
        REFUSED => ConnEvent::NO_LISTENER,
        RESET => ConnEvent::BY_PROGRAM,
        _ => status,
    }
}

/// An event that librdmacm lent; it must be acknowledged exactly once.
pub(super) struct RawEvent {
    pub(super) event: NonNull<sys::rdma_cm_event>,
    /// The value of errno when the event came.
    pub(super) errno: i32,
}

impl RawEvent {
    pub(super) fn acknowledge(self) -> CmEvent {
        let event = self.copy();
        drop(self);
        event
    }

    /// Copies the contents of the event, private data included: all of it dies with the
    /// acknowledgement.
    fn copy(&self) -> CmEvent {
        // SAFETY: only `drop` acknowledges the event, which frees its struct.
        let event = unsafe { self.event.as_ref() };
        // SAFETY: librdmacm zeroes the event first and fills in `conn` for ids of connected
        // services; all bits are valid for it.
        let conn = unsafe { event.param.conn };
        let private_data = if conn.private_data.is_null() {
            Box::default()
        } else {
            let (data, len) = (
                conn.private_data.cast::<u8>(),
                usize::from(conn.private_data_len),
            );
            // SAFETY: librdmacm points `private_data` to a buffer of that length inside the event,
            // which lives until `drop` acknowledges it.
            Box::from(unsafe { std::slice::from_raw_parts(data, len) })
        };
        CmEvent {
            kind: CmEventKind::from_raw(event.event),
            status: status(event, self.errno),
            private_data,
            initiator_depth: conn.initiator_depth,
            responder_resources: conn.responder_resources,
        }
    }

    /// The id that it is about: of a request, the new one.
    pub(super) fn id(&self) -> *mut sys::rdma_cm_id {
        // SAFETY: only `drop` acknowledges the event, which frees its struct.
        unsafe { (*self.event.as_ptr()).id }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: the event came from `rdma_get_cm_event` and is acknowledged only here.
        let ret = unsafe { sys::rdma_ack_cm_event(self.event.as_ptr()) };
        log_leak(check_minus_one("rdma_ack_cm_event", ret));
    }
}

/// The status of an event as a negative errno, except for a reject's reason.
///
/// If librdmacm itself has failed, the status is −1, with the reason in errno, or a positive errno.
fn status(event: &sys::rdma_cm_event, errno: i32) -> i32 {
    match (event.event, event.status) {
        (
            EventType::RDMA_CM_EVENT_ADDR_ERROR
            | EventType::RDMA_CM_EVENT_ROUTE_ERROR
            | EventType::RDMA_CM_EVENT_CONNECT_ERROR,
            status,
        ) if status >= -1 => match status {
            -1 => -errno,
            status => -status,
        },
        (_, status) => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also those that end a resolution or a multicast join: they never read a missing field (W-5).
    #[test]
    fn events_that_no_connection_has_stay_numbers() {
        let of = |number, status| {
            ConnEvent::from(CmEvent {
                kind: CmEventKind::from_raw(EventType(number)),
                status,
                private_data: Box::default(),
                initiator_depth: 0,
                responder_resources: 0,
            })
        };
        for event in (0..5).chain(12..15).chain([16, 4711, u32::MAX]) {
            for status in [0, -110] {
                let notice = ConnEvent::Other { event, status };
                assert!(!notice.is_end(), "{notice}");
                assert_eq!(of(event, status), notice);
            }
        }
        assert_eq!(of(9, 0), ConnEvent::Established);
        assert_eq!(of(10, 0), ConnEvent::Closed);
        assert_eq!(of(11, -19), ConnEvent::Lost { status: -19 });
        assert_eq!(of(15, 0), ConnEvent::TimewaitExit);
    }

    /// Promise: two reasons of a reject are the same on every transport.
    #[test]
    fn reasons_of_rejects() {
        for (status, expected) in [
            (8, 8),
            (28, 28),
            (-111, 8),
            (-104, 28),
            (10, 10),
            (-13, -13),
        ] {
            assert_eq!(reason(status), expected);
        }
        assert_eq!(reason(i32::MIN), i32::MIN);
    }
}
