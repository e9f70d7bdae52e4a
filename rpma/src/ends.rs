//! The addresses of a connection, and its name in the log.

use std::fmt;
use std::net::SocketAddr;

use crate::error::{Error, Result};
use crate::verbs::QueuePair;

/// The two ends of a connection. The log names a connection by its display, which is the peer's
/// end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    qp_num: u32,
}

impl Ends {
    pub(crate) fn of(qp: &QueuePair) -> Self {
        let (local, peer) = qp.ends();
        Self {
            local,
            peer,
            qp_num: qp.number(),
        }
    }

    /// The ends before there is a queue pair.
    pub(crate) fn before(peer: Option<SocketAddr>) -> Self {
        Self {
            peer,
            ..Self::default()
        }
    }

    pub(crate) fn local(&self) -> Result<SocketAddr> {
        self.local.ok_or_else(no_address)
    }

    pub(crate) fn peer(&self) -> Result<SocketAddr> {
        self.peer.ok_or_else(no_address)
    }
}

pub(crate) fn no_address() -> Error {
    Error::not_supported("the connection manager has no IP address for this end of the connection")
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.peer, self.qp_num) {
            // It is not made yet.
            (Some(peer), 0) => peer.fmt(f),
            (Some(peer), number) => write!(f, "{peer} (queue pair {number})"),
            (None, number) => write!(f, "queue pair {number}"),
        }
    }
}
