//! [`ConnEvent`]: what happens to a connection (`enum rpma_conn_event`).

use std::fmt;

use rustix::io::Errno;

use crate::refusal::Refusal;

/// An event of a connection.
///
/// It is a copy: the connection manager's own event was acknowledged before it was returned.
#[doc(alias = "rpma_utils_conn_event_2str")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnEvent {
    /// The connection is established (`RPMA_CONN_ESTABLISHED`).
    Established,
    /// The peer has closed the connection, or has answered this side's disconnect
    /// (`RPMA_CONN_CLOSED`). If the peer closed it, call
    /// [`Conn::disconnect`](crate::Conn::disconnect) next or drop the connection: the peer waits
    /// for that.
    Closed,
    /// No late packets of the closed connection can arrive any more. librpma reports this as a
    /// second `RPMA_CONN_CLOSED`.
    TimewaitExit,
    /// The connection is lost (`RPMA_CONN_LOST`). The device is gone, or the queue pair could not
    /// be set up, for example because the peer closed the connection before this side took its
    /// answer. A keep-alive also ends a connection with this event. Its status is then
    /// `-ETIMEDOUT` if the peer did not answer
    /// ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)).
    Lost {
        /// A negative errno, or 0.
        status: i32,
    },
    /// The peer has rejected the connection, or no program listens on the port
    /// (`RPMA_CONN_REJECTED`). An established connection may end with it as well: if the accepting
    /// peer ends it before its host has taken the last message of the handshake, the kernel rejects
    /// (`cm_destroy_id` in `IB_CM_REP_SENT`).
    Rejected {
        /// The reason code of the transport (for InfiniBand and RoCE those of the connection
        /// manager's REJ message), or a negative errno. [`NO_LISTENER`](Self::NO_LISTENER) and
        /// [`BY_PROGRAM`](Self::BY_PROGRAM) are two of them. iWARP has errnos: `-ECONNREFUSED` is
        /// `NO_LISTENER` here, and `-ECONNRESET` is `BY_PROGRAM`.
        reason: i32,
        /// The private data that the peer sent with the reject, padded with zeros to 148 bytes;
        /// empty if the transport carried none.
        private_data: Box<[u8]>,
    },
    /// The peer does not answer (`RPMA_CONN_UNREACHABLE`).
    Unreachable {
        /// A negative errno (`-ETIMEDOUT`, for instance), or 0.
        status: i32,
    },
    /// Another event of `enum rdma_cm_event_type`. It is a notice: the connection goes on, or is
    /// still being established. The one that Linux sends is 14, `RDMA_CM_EVENT_ADDR_CHANGE`: a bond
    /// has failed over, and its interface has another hardware address.
    Other {
        /// The event's number.
        event: u32,
        /// Its status.
        status: i32,
    },
}

impl ConnEvent {
    /// A reject's reason: no program listens on that port, because the service ID is unknown.
    pub const NO_LISTENER: i32 = 8;
    /// A reject's reason: the program on the other side has rejected the request, or dropped it, or
    /// has ended before it answered. In the last case the kernel rejects for it, with the same
    /// reason.
    pub const BY_PROGRAM: i32 = 28;

    /// Returns whether the connection is over with this event: [`Closed`](Self::Closed),
    /// [`TimewaitExit`](Self::TimewaitExit), [`Lost`](Self::Lost), [`Rejected`](Self::Rejected) and
    /// [`Unreachable`](Self::Unreachable) are ends. [`Other`](Self::Other) is a notice, also if its
    /// number is one that this library does not have.
    ///
    /// [Which event is an end](crate::guide::failures#which-event-is-an-end) is for programs that
    /// take events themselves.
    #[must_use]
    pub fn is_end(&self) -> bool {
        match self {
            Self::Closed
            | Self::TimewaitExit
            | Self::Lost { .. }
            | Self::Rejected { .. }
            | Self::Unreachable { .. } => true,
            Self::Established | Self::Other { .. } => false,
        }
    }

    /// Returns the [`Refusal`] with which a server rejected this client. `None` for another event,
    /// and for a reject without a refusal of this library.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Rejected { private_data, .. } => Refusal::decode(private_data).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for ConnEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Established => f.write_str("Connection established"),
            Self::Closed => f.write_str("Connection closed"),
            Self::TimewaitExit => f.write_str("Connection closed, its last packets have expired"),
            Self::Lost { status } if *status == -Errno::INVAL.raw_os_error() => write!(
                f,
                "Connection lost: the queue pair could not be set up, most likely because the peer has closed \
                 the connection before its answer was taken{}",
                Status(*status)
            ),
            Self::Lost { status } => write!(f, "Connection lost{}", Status(*status)),
            Self::Rejected {
                reason,
                private_data,
            } => {
                let refusal = self.refusal();
                let refusal = refusal.as_ref().map(Refusal::words);
                match refusal.or_else(|| words(private_data)) {
                    // The kernel, which rejects for a program that has ended, sends no words.
                    Some(words) => write!(
                        f,
                        "Connection rejected by the program on the other side (reason {}), with the words \
                         {words:?}",
                        reason
                    ),
                    None => write!(f, "Connection rejected: {}", RejectReason(*reason)),
                }
            }
            Self::Unreachable { status } => write!(
                f,
                "Connection unreachable, because the peer's host or its program did not answer{}",
                Status(*status)
            ),
            Self::Other { event: 14, .. } => f.write_str(
                "The interface has another hardware address (RDMA_CM_EVENT_ADDR_CHANGE); the \
                 connection goes on",
            ),
            Self::Other { event, status } => write!(
                f,
                "Event {event} of the connection manager{}; the connection goes on",
                Status(*status)
            ),
        }
    }
}

/// The text that a peer sent, without the zeros after it, if it is a line of text.
fn words(private_data: &[u8]) -> Option<&str> {
    let end = private_data.iter().rposition(|byte| *byte != 0)?;
    let words = std::str::from_utf8(&private_data[..=end]).ok()?;
    // It goes to terminals and logs, and the peer chose it.
    let is_plain = words
        .chars()
        .all(|char| char == ' ' || char.is_ascii_graphic());
    is_plain.then_some(words)
}

struct RejectReason(i32);

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ConnEvent::NO_LISTENER => f.write_str("nobody listens on that port (reason 8)"),
            ConnEvent::BY_PROGRAM => f.write_str(
                "the program on the other side rejected it without a reason (see its log), or that \
                 program has ended (reason 28)",
            ),
            // `IB_CM_REJ_STALE_CONN`.
            10 => f.write_str(
                "the peer's kernel does not know the connection, as after a restart of its host \
                 (reason 10)",
            ),
            reason if reason < 0 => std::io::Error::from_raw_os_error(-reason).fmt(f),
            reason => write!(f, "reason {reason}"),
        }
    }
}

struct Status(i32);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            errno if errno < 0 => write!(f, ": {}", std::io::Error::from_raw_os_error(-errno)),
            status => write!(f, ": status {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_tell_the_cause() {
        let rejected = ConnEvent::Rejected {
            reason: 8,
            private_data: Box::default(),
        };
        assert!(
            rejected.to_string().contains("nobody listens"),
            "{rejected}"
        );
        let with = |bytes: &[u8]| ConnEvent::Rejected {
            reason: 28,
            private_data: bytes.into(),
        };
        let full = with(b"all slots are taken\0\0").to_string();
        assert!(
            full.ends_with(", with the words \"all slots are taken\""),
            "{full}"
        );
        assert!(!full.contains("has ended"), "{full}");
        for bytes in [&b"\0\0"[..], b"\x1b[2J", b"\xff\0", b"two\nlines"] {
            let text = with(bytes).to_string();
            assert!(text.ends_with("(reason 28)"), "{text}");
        }
        let unreachable = ConnEvent::Unreachable { status: -110 };
        assert!(
            unreachable.to_string().contains("timed out"),
            "{unreachable}"
        );
        let lost = ConnEvent::Lost { status: -22 };
        assert!(lost.to_string().contains("closed the connection"), "{lost}");
        let other = ConnEvent::Other {
            event: 99,
            status: 3,
        };
        assert_eq!(
            other.to_string(),
            "Event 99 of the connection manager: status 3; the connection goes on"
        );
    }
}
