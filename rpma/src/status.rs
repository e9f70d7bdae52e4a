//! The outcome of an operation as plain values: [`WcStatus`], [`WcOpcode`] and [`WcFailure`]. Errors
//! contain them, and so they are below verbs.

use std::fmt;

use crate::hints::with_remedy;

/// The completion of an operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WcFailure {
    /// The `op_context` of the operation.
    pub wr_id: u64,
    /// The number of the queue pair.
    pub qp_num: u32,
    /// The reason of the failure.
    pub status: WcStatus,
    /// The provider's own code.
    pub vendor_err: u32,
    /// Not 0: the program gave no `op_context`. (A `bool` has a niche, in which the compiler keeps
    /// the kinds of [`Error`](crate::Error), and each post would look at them there.)
    is_unnamed: u8,
}

impl WcFailure {
    pub(crate) fn new(wr_id: u64, qp_num: u32, status: WcStatus, vendor_err: u32) -> Self {
        Self {
            wr_id,
            qp_num,
            status,
            vendor_err,
            is_unnamed: 0,
        }
    }

    /// Returns the same failure, with a text that leaves out the `op_context`. It is for a library
    /// that posts with its own numbers, which mean nothing to its program.
    #[must_use]
    pub fn without_op_context(self) -> Self {
        Self {
            is_unnamed: 1,
            ..self
        }
    }

    /// The failure and its usual cause.
    pub(crate) fn reason(&self) -> String {
        let Self {
            qp_num,
            status,
            vendor_err,
            ..
        } = self;
        let name = self.name();
        let failed = format!(
            "{name} on queue pair {qp_num} failed: {status} (vendor error {vendor_err:#x})"
        );
        match status.hint() {
            ["", _] => failed,
            [why, _] => format!("{failed}. {why}"),
        }
    }

    fn name(&self) -> String {
        match self.is_unnamed {
            1 => "an operation".into(),
            _ => format!("the operation {:#x}", self.wr_id),
        }
    }
}

impl fmt::Display for WcFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, remedy] = self.status.hint();
        f.write_str(&with_remedy(&self.reason(), remedy))
    }
}

impl std::error::Error for WcFailure {}

#[cfg(test)]
impl WcFailure {
    pub(crate) fn for_test(wr_id: u64, status: WcStatus) -> Self {
        Self::new(wr_id, 0, status, 0)
    }
}

/// The status of a completion: success, or the kind of failure (`enum ibv_wc_status`). A value
/// that is unknown to this version stays a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

/// The kind of operation that completed (`enum ibv_wc_opcode`). A value that is unknown to this
/// version stays a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcOpcode(pub u32);

/// Constants with a name and, for `Display`, a text.
macro_rules! codes {
    ($type:ident { $($(#[$doc:meta])* $name:ident = $value:expr, $text:literal;)* }) => {
        impl $type {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            fn known(self) -> Option<(&'static str, &'static str)> {
                match self {
                    $(Self::$name => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.known() {
                    Some((name, _)) => f.write_str(name),
                    None => write!(f, concat!(stringify!($type), "({})"), self.0),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.known() {
                    Some((name, text)) => write!(f, "{text} ({name}, {})", self.0),
                    None => write!(f, "unknown code {}", self.0),
                }
            }
        }
    };
}

codes!(WcStatus {
    /// The operation succeeded.
    SUCCESS = 0, "success";
    /// The message was longer than the receive buffer.
    LOC_LEN_ERR = 1, "local length error";
    /// An internal consistency error of the queue pair, or an operation that is unknown to the
    /// kernel.
    LOC_QP_OP_ERR = 2, "local queue pair operation error";
    /// End-to-end context error (reliable datagrams).
    LOC_EEC_OP_ERR = 3, "local end-to-end context operation error";
    /// A local address or key that is not registered with the needed rights.
    LOC_PROT_ERR = 4, "local protection error";
    /// The operation was flushed: the queue pair is in the error state. On soft-RoCE even the
    /// first error of a connection can have this status.
    WR_FLUSH_ERR = 5, "work request flushed";
    /// A memory window could not be bound.
    MW_BIND_ERR = 6, "memory window bind error";
    /// The responder answered unexpectedly.
    BAD_RESP_ERR = 7, "bad response";
    /// A receive was refused by its own memory region.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The responder found the request invalid.
    REM_INV_REQ_ERR = 9, "remote invalid request error";
    /// The remote region does not allow the access: wrong key, out of range, or a missing right.
    REM_ACCESS_ERR = 10, "remote access error";
    /// The responder could not complete the request.
    REM_OP_ERR = 11, "remote operation error";
    /// The peer did not answer although the message was sent again and again.
    RETRY_EXC_ERR = 12, "transport retry counter exceeded";
    /// The peer had no receive posted, for too long.
    RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retry counter exceeded";
    /// Reliable datagrams.
    LOC_RDD_VIOL_ERR = 14, "local reliable datagram domain violation";
    /// Reliable datagrams.
    REM_INV_RD_REQ_ERR = 15, "remote invalid reliable datagram request";
    /// The responder aborted the operation.
    REM_ABORT_ERR = 16, "remote aborted error";
    /// Reliable datagrams.
    INV_EECN_ERR = 17, "invalid end-to-end context number";
    /// Reliable datagrams.
    INV_EEC_STATE_ERR = 18, "invalid end-to-end context state";
    /// The queue pair suffered a fatal error.
    FATAL_ERR = 19, "fatal error";
    /// The responder timed out.
    RESP_TIMEOUT_ERR = 20, "response timeout";
    /// Any other error.
    GENERAL_ERR = 21, "general error";
});

codes!(WcOpcode {
    /// A send.
    SEND = 0, "send";
    /// A write, with or without immediate data, or a fallback atomic write.
    RDMA_WRITE = 1, "RDMA write";
    /// A read, or a fallback flush.
    RDMA_READ = 2, "RDMA read";
    /// A native flush.
    FLUSH = 8, "flush";
    /// A native atomic write.
    ATOMIC_WRITE = 9, "atomic write";
    /// A receive that took a send.
    RECV = 128, "receive";
    /// A receive that a write with immediate data consumed.
    RECV_RDMA_WITH_IMM = 129, "receive of an RDMA write with immediate data";
});

impl WcStatus {
    /// The usual cause and its remedy, if they are known.
    pub(crate) fn hint(self) -> [&'static str; 2] {
        match self {
            Self::LOC_LEN_ERR => ["The message was longer than the receive that took it", ""],
            Self::WR_FLUSH_ERR => [
                "The connection had ended before",
                "connect again. Conn::failure or Conn::next_event has the cause. If they have no other failure than \
                 this, the device has reported no cause to this side. soft-RoCE reports none if it refused an \
                 operation of the peer",
            ],
            Self::REM_INV_REQ_ERR => [
                "The peer's device may not know the operation, or the message was longer than the receive that took \
                 it",
                "ConnCfg::set_force_fallback uses no native operation",
            ],
            Self::REM_ACCESS_ERR => [
                "The peer's memory region does not allow it or is gone, or the slice is one of another server's \
                 region; or, on soft-RoCE only, a packet of a native flush or atomic write was lost",
                "connect again, and use ConnCfg::set_force_fallback on a network that loses packets",
            ],
            Self::RETRY_EXC_ERR => [
                "The peer's host, its device, its program or the network is down; or, on soft-RoCE only, the answer \
                 of a native flush or atomic write was lost",
                "connect again when they are back (ConnCfg::set_ack_timeout and set_retry_count set how long the \
                 device tries). ConnCfg::set_force_fallback uses no native operation",
            ],
            Self::RNR_RETRY_EXC_ERR => [
                "The peer's program did not post a receive in time",
                "ConnCfg::set_rnr_retry_count of the accepting side sets how often the device tries",
            ],
            _ => ["", ""],
        }
    }
}

impl WcOpcode {
    /// Returns whether this is the completion of a receive.
    #[must_use]
    pub fn is_receive(self) -> bool {
        self.0 & Self::RECV.0 != 0
    }
}
