//! The differences between devices.

use std::time::Duration;

use crate::types::ibv_wc_status;

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
    pub(crate) max_msg_sz: u32,
    /// The acknowledgement timeout of connections that do not set one: 4.096 µs · 2^this.
    pub(crate) ack_timeout: u8,
    pub(crate) timewait: Duration,
    /// Whether a retry count of 7 has no end.
    pub(crate) retries_for_ever: bool,
    /// The status of a request with its own memory refused.
    pub(crate) local_error: ibv_wc_status,
    /// Whether a native flush or atomic write can be sent again.
    pub(crate) repeats_natives: bool,
    /// The statuses of a send that is longer than the receive: at the requester, and at the
    /// receive.
    pub(crate) too_long: (ibv_wc_status, ibv_wc_status),
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
        max_msg_sz: 1 << 31,
        ack_timeout: 17,
        timewait: Duration::from_millis(510),
        retries_for_ever: true,
        local_error: ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        repeats_natives: false,
        too_long: (
            ibv_wc_status::IBV_WC_REM_OP_ERR,
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        ),
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
        timewait: Duration::from_millis(2_050),
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

    /// All of them, for loops.
    pub const ALL: [Self; 4] = [Self::RXE_6_12, Self::RXE_6_1, Self::STRICT, Self::ADAPTER];

    /// Whether it is an adapter. If not, it is soft-RoCE, and the kernel copies the data that it
    /// places.
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

    /// The room of a queue that was asked for with `asked`.
    pub(crate) fn room(&self, asked: u32) -> u32 {
        if self.rounds_up {
            (asked + 1).next_power_of_two() - 1
        } else {
            asked
        }
    }
}
