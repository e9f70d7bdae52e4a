//! The differences between devices.

use std::ffi::c_int;
use std::time::Duration;

use crate::call::{Result, errno_of};
use crate::memory::access;
use crate::types::ibv_wc_status;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) qp_wr: u32,
    pub(crate) sge: u32,
    pub(crate) inline: u32,
    pub(crate) cqe: u32,
    pub(crate) srq_wr: u32,
    pub(crate) srq_sge: u32,
}

/// The room for private data in the connection manager's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrivateData {
    pub(crate) request: usize,
    pub(crate) reply: usize,
    pub(crate) reject: usize,
    /// Whether all of the room arrives, with zeros after the data.
    pub(crate) is_padded: bool,
}

impl PrivateData {
    /// Private data as it arrives, in a message with so much room.
    pub(crate) fn arrives(&self, data: &[u8], room: usize) -> Vec<u8> {
        let mut arrived = data.to_vec();
        if self.is_padded {
            arrived.resize(room, 0);
        }
        arrived
    }
}

/// The times of connections that are TCP streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// For how long `rdma_connect` waits for a host that does not answer.
    pub(crate) connects: Duration,
    /// For how long a client waits for the server's program.
    pub(crate) decides: Duration,
    /// How long the first wait for an acknowledgement is, and the longest one. Each is twice the
    /// one before it.
    pub(crate) resends: (Duration, Duration),
    /// After so many repetitions without an acknowledgement a stream breaks.
    pub(crate) retries: u8,
}

/// A kind of device: its abilities, and its behaviour where the specification leaves a choice or
/// the device departs from it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    pub(crate) name: &'static str,
    /// The beginning of the names of its devices.
    pub(crate) device: &'static str,
    pub(crate) vendor_id: u32,
    /// Native flush and native atomic write.
    pub(crate) native: bool,
    /// The times of its TCP streams, if it is iWARP ([`SIW_6_12`](Self::SIW_6_12)). The kernel
    /// connects queue pairs there.
    pub(crate) tcp: Option<Tcp>,
    pub(crate) limits: Limits,
    pub(crate) max_msg_sz: u32,
    pub(crate) private_data: PrivateData,
    /// The reason of a reject that the peer's program has sent.
    pub(crate) rejected: i32,
    /// The acknowledgement timeout of connections that do not set one: 4.096 µs · 2^this.
    pub(crate) ack_timeout: u8,
    /// After which time the end of a connection is reported as forgotten, if ever.
    pub(crate) timewait: Option<Duration>,
    /// Whether a retry count of 7 has no end.
    pub(crate) retries_for_ever: bool,
    /// The status of a request with its own memory refused.
    pub(crate) local_error: ibv_wc_status,
    /// Whether a native flush or atomic write can be sent again.
    pub(crate) repeats_natives: bool,
    /// The statuses of a send that is longer than the receive: at the requester, and at the
    /// receive.
    pub(crate) too_long: (ibv_wc_status, ibv_wc_status),
    /// The status of a receive with its memory refused.
    pub(crate) receive_error: ibv_wc_status,
    /// The rights that the destination of a read needs.
    pub(crate) read_destination: u32,
    /// Whether the peer answers a read of 0 bytes. Otherwise its own device completes it.
    pub(crate) asks_for_nothing: bool,
    /// Whether requests are refused that the rights of the responder's queue pair do not cover.
    pub(crate) qps_have_rights: bool,
    /// Whether messages and writes may have immediate data.
    pub(crate) has_immediate_data: bool,
    /// Whether a receive may be without a buffer.
    pub(crate) takes_empty_receives: bool,
    /// Whether a local buffer of 0 bytes may be read as one of 2³¹.
    pub(crate) mistakes_empty_buffers: bool,
    /// Whether a post that fails returns a negative errno.
    pub(crate) posts_return_negative: bool,
    /// Whether requests and receives are flushed that were posted in the error state. Otherwise
    /// they never complete.
    pub(crate) flushes_late_posts: bool,
    /// Whether completions of flushed and failed requests are events for a program that asked for
    /// solicited ones.
    pub(crate) errors_are_solicited: bool,
    /// Whether the device reports a queue pair's failure by an asynchronous event.
    pub(crate) tells_failures: bool,
    /// Whether the device reports that a failed queue pair takes no more of a shared receive queue.
    pub(crate) tells_last_receive: bool,
    /// Whether a failed queue pair gives back the receive of a shared queue that an incomplete
    /// message has taken, and after which time.
    pub(crate) returns_last_receive: Option<Duration>,
    /// Whether a queue has more room than was asked for: the next power of two, less one.
    pub(crate) rounds_up: bool,
    /// Whether a send queue's slot is free again only when a completion of it, or of a later
    /// request, is polled.
    pub(crate) frees_slots_by_polling: bool,
    /// Whether a write or a message may be executed before an earlier read, flush or atomic write.
    pub(crate) reorders: bool,
    /// Whether its writes are copied by the processor, and so through its caches.
    pub(crate) copies: bool,
    /// Whether destroying a queue pair takes its completions out of the queues.
    pub(crate) purges_completions: bool,
    /// Whether a request for solicited events takes the place of an earlier one for all. The verbs
    /// specification does not define this order, and mlx5 writes the last request into its
    /// doorbell.
    pub(crate) last_arm_counts: bool,
}

impl Profile {
    /// soft-RoCE of Linux 6.12 with rdma-core 56: native flush and atomic write, everything in
    /// order.
    ///
    /// Departs from the specification where that kernel does. Failures are not solicited
    /// (`rxe_resp.c`, `rxe_comp.c`: completions are posted with solicited = 0). If the device
    /// refuses a request because of this side's own memory, the request ends as flushed. A send
    /// that is too long is a remote operation error (`rxe_resp.c`), and a retry count of 7 is
    /// without end (`rxe_comp.c`). A native flush or atomic write that is sent again has a wrong
    /// address, and fails with `REM_ACCESS_ERR`; if only its answer was lost, it is never answered
    /// (`req_retry` in `rxe_req.c`, `rxe_prepare_res` in `rxe_resp.c`). A receive of a shared
    /// queue that an incomplete message has taken is lost with its queue pair (`flush_recv_queue`
    /// in `rxe_resp.c`).
    pub const RXE_6_12: Self = Self {
        name: "soft-RoCE of Linux 6.12",
        device: "rxe",
        vendor_id: 0xFF_FFFF,
        native: true,
        tcp: None,
        // `rxe_param.h`.
        limits: Limits {
            qp_wr: 1 << 20,
            sge: 32,
            inline: 512,
            cqe: 32_767,
            srq_wr: 1 << 20,
            srq_sge: 27,
        },
        max_msg_sz: 1 << 31,
        // `include/rdma/ib_cm.h`; of a request, less the header of RDMA IP.
        private_data: PrivateData {
            request: 56,
            reply: 196,
            reject: 148,
            is_padded: true,
        },
        // `IB_CM_REJ_CONSUMER_DEFINED`.
        rejected: 28,
        ack_timeout: 17,
        timewait: Some(Duration::from_millis(510)),
        retries_for_ever: true,
        local_error: ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        repeats_natives: false,
        too_long: (
            ibv_wc_status::IBV_WC_REM_OP_ERR,
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        ),
        // It makes no difference (`RESPST_ERR_MALFORMED_WQE`).
        receive_error: ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        read_destination: access::LOCAL_WRITE,
        asks_for_nothing: true,
        qps_have_rights: true,
        has_immediate_data: true,
        takes_empty_receives: true,
        mistakes_empty_buffers: true,
        posts_return_negative: false,
        flushes_late_posts: true,
        errors_are_solicited: false,
        tells_failures: false,
        tells_last_receive: true,
        returns_last_receive: None,
        rounds_up: true,
        frees_slots_by_polling: false,
        reorders: false,
        copies: true,
        purges_completions: false,
        last_arm_counts: false,
    };

    /// soft-RoCE of Linux 6.1: neither native flush nor native atomic write. It follows the source
    /// of that kernel. No test here compares it with a running one.
    pub const RXE_6_1: Self = Self {
        name: "soft-RoCE of Linux 6.1",
        native: false,
        max_msg_sz: 1 << 23,
        ack_timeout: 19,
        timewait: Some(Duration::from_millis(2_050)),
        local_error: ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        errors_are_solicited: true,
        tells_last_receive: false,
        returns_last_receive: Some(Duration::ZERO),
        ..Self::RXE_6_12
    };

    /// An adapter that does no more than the specification guarantees, and that has a native flush
    /// and a native atomic write. No adapter has these today ([`ADAPTER`](Self::ADAPTER)).
    ///
    /// * A write or a message may be executed before an earlier read, flush or atomic write of its
    ///   queue pair, unless it has a fence. A fence covers earlier reads and atomics (IBA
    ///   10.8.3.3). No public text guarantees that it covers flushes, so here it does not. Writes
    ///   and messages stay in order among themselves. Reads, flushes and atomic writes are
    ///   executed after everything that was posted before them.
    /// * The data of a write or a message is read at any time between its post and its completion,
    ///   in parts.
    /// * A plain write that was executed, and has completed, may become visible to the programs of
    ///   its target later. Such writes become visible in any order, if they are not to the same
    ///   bytes. A read, a flush of their range, a message, immediate data or a native atomic write
    ///   that comes after them makes them visible; time does, too. So a flag that a plain write
    ///   sets does not prove that earlier data is visible
    ///   ([`Fabric::early_reads`](crate::Fabric::early_reads)). An atomic write on
    ///   [`ADAPTER`](Self::ADAPTER) is a plain write, too.
    /// * A queue has the room that was asked for, and a slot of a send queue is free only when a
    ///   completion of its request or of a later one was polled.
    /// * Failures have the specification's statuses, are solicited, and are reported by
    ///   asynchronous events.
    /// * An incomplete message may have taken a receive from a shared queue. A queue pair that
    ///   fails returns that receive 2 ms later. Then it reports `IBV_EVENT_QP_LAST_WQE_REACHED`. A
    ///   queue pair that is destroyed within these 2 ms does not return the receive.
    /// * Destroying a queue pair takes its completions out of the completion queues, as mlx5 does.
    pub const STRICT: Self = Self {
        name: "a strict adapter",
        device: "strict",
        // Not a number that a vendor has.
        vendor_id: 0x51_3D05,
        retries_for_ever: false,
        local_error: ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        too_long: (
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        ),
        receive_error: ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        repeats_natives: true,
        errors_are_solicited: true,
        tells_failures: true,
        returns_last_receive: Some(Duration::from_millis(2)),
        rounds_up: false,
        frees_slots_by_polling: true,
        reorders: true,
        copies: false,
        purges_completions: true,
        last_arm_counts: true,
        ..Self::RXE_6_12
    };

    /// An adapter like those of today: [`STRICT`](Self::STRICT), without native flush and native
    /// atomic write.
    pub const ADAPTER: Self = Self {
        name: "an adapter of today",
        native: false,
        ..Self::STRICT
    };

    /// soft-iWARP of Linux 6.12 (`siw`) with rdma-core 56: connections are TCP streams. It follows
    /// measurements of a running one, and the source of that kernel.
    ///
    /// * A write or a message completes with success when its stream has taken it, and the stream
    ///   takes it at once. The peer may refuse it, have no receive for it, be frozen or be gone. So
    ///   the completion proves nothing about the peer.
    /// * A read completes when the peer has answered it, after it has placed all earlier writes of
    ///   the connection. Writes and messages that were posted after a read may complete before it,
    ///   unless they have a fence.
    /// * A peer that does not answer is noticed when TCP gives up: 15 minutes after the first byte
    ///   that is not acknowledged. Without such a byte it is never noticed.
    /// * A responder that refuses a request, or has no receive for it, ends the connection. The
    ///   RNR settings have no effect. Both ends get `RDMA_CM_EVENT_DISCONNECTED`, and all that
    ///   they have posted is flushed. No completion has the reason.
    /// * A queue pair that fails or is destroyed ends its connection, with the same event at both
    ///   ends. Some of the data in its stream still arrives. `RDMA_CM_EVENT_TIMEWAIT_EXIT` never
    ///   comes.
    /// * Requests and receives that are posted in the error state never complete.
    /// * There is no immediate data, no native flush and no native atomic write. A receive needs a
    ///   buffer, which may have 0 bytes. A post that fails returns a negative errno.
    /// * `rdma_connect` fails with `ECONNREFUSED` if no program listens. If the host does not
    ///   answer, the call blocks until TCP gives up after 131 seconds, and fails with `ETIMEDOUT`.
    ///   A server has 10 seconds to accept or to reject. A reject has the reason -104, and so has
    ///   the end of the server's id. Private data arrives without padding.
    /// * The destination of a read needs a remote write right, as iWARP demands it. `siw` itself
    ///   asks for a local one only (`siw_proc_rresp`).
    ///
    /// The stream never fills. (A real one blocks requests when the peer takes none.) A lost
    /// packet, or an acknowledgement that is lost once, costs 200 ms. [`Link`](crate::Link) has
    /// the other faults.
    pub const SIW_6_12: Self = Self {
        name: "soft-iWARP of Linux 6.12",
        device: "siw",
        vendor_id: 0x62_6D74,
        native: false,
        tcp: Some(Tcp {
            // `tcp_syn_retries` and `tcp_syn_linear_timeouts` of that kernel.
            connects: Duration::from_secs(131),
            // `MPAREQ_TIMEOUT` (`siw_cm.h`).
            decides: Duration::from_secs(10),
            // `TCP_RTO_MIN`, `TCP_RTO_MAX` and `tcp_retries2`: 924.6 s.
            resends: (Duration::from_millis(200), Duration::from_secs(120)),
            retries: 15,
        }),
        // `siw.h`, `siw-abi.h`.
        limits: Limits {
            qp_wr: 32 << 10,
            sge: 6,
            inline: 80,
            cqe: (32 << 10) * 100,
            srq_wr: (32 << 10) * 10,
            srq_sge: 6,
        },
        max_msg_sz: u32::MAX,
        // A length of 8 bits, less the header of MPA (`siw_send_mpareqrep`).
        private_data: PrivateData {
            request: 251,
            reply: 251,
            reject: 251,
            is_padded: false,
        },
        // `-ECONNRESET`.
        rejected: -104,
        timewait: None,
        retries_for_ever: false,
        local_error: ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        too_long: (
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        ),
        receive_error: ibv_wc_status::IBV_WC_GENERAL_ERR,
        read_destination: access::LOCAL_WRITE | access::REMOTE_WRITE,
        qps_have_rights: false,
        has_immediate_data: false,
        takes_empty_receives: false,
        mistakes_empty_buffers: false,
        posts_return_negative: true,
        flushes_late_posts: false,
        tells_failures: true,
        tells_last_receive: false,
        returns_last_receive: Some(Duration::ZERO),
        rounds_up: false,
        last_arm_counts: true,
        ..Self::RXE_6_12
    };

    /// Those of InfiniBand and RoCE, for loops. Tests of a program that does not support iWARP use
    /// these.
    pub const ALL: [Self; 4] = [Self::RXE_6_12, Self::RXE_6_1, Self::STRICT, Self::ADAPTER];

    /// All of them, with iWARP, for loops.
    pub const EVERY: [Self; 5] = [
        Self::RXE_6_12,
        Self::RXE_6_1,
        Self::STRICT,
        Self::ADAPTER,
        Self::SIW_6_12,
    ];

    /// Whether it is an adapter. If not, it is soft-RoCE or soft-iWARP, and the kernel copies the
    /// data that it places.
    #[must_use]
    pub fn is_adapter(&self) -> bool {
        !self.copies
    }

    /// The name of the device.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it has a native flush and a native atomic write.
    #[must_use]
    pub fn flushes_natively(&self) -> bool {
        self.native
    }

    /// The same device with another vendor id: 0, say, for a driver that reports no id.
    #[must_use]
    pub fn with_vendor_id(mut self, vendor_id: u32) -> Self {
        self.vendor_id = vendor_id;
        self
    }

    /// The same device, but it completes a read of 0 bytes without an answer of the peer.
    #[must_use]
    pub fn with_unanswered_empty_reads(mut self) -> Self {
        self.asks_for_nothing = false;
        self
    }

    pub(crate) fn result_of_post(&self, posted: Result<()>) -> c_int {
        match errno_of(posted) {
            errno if self.posts_return_negative => -errno,
            errno => errno,
        }
    }

    pub(crate) fn room(&self, asked: u32) -> u32 {
        if self.rounds_up {
            (asked + 1).next_power_of_two() - 1
        } else {
            asked
        }
    }
}
