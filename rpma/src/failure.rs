//! Why a connection takes no operations: [`Failure`], a cause of its end, and [`NotConnected`], the
//! error of an operation afterwards.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::error::Error;
use crate::hints::{Hint, with_remedy};
use crate::status::{WcFailure, WcStatus};

/// Why a connection failed: [`Conn::failure`](crate::Conn::failure).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// An operation completed with an error.
    Operation(WcFailure),
    /// A call that posts failed, and the library moved the queue pair to the error state.
    Post {
        /// The function that failed, by its C name.
        call: &'static str,
        /// The errno that it reported.
        errno: i32,
    },
    /// The device reported an error of the queue pair in an asynchronous event, which is in the
    /// log.
    Device,
    /// The peer gave no sign of life for as long as the keep-alive allows
    /// ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)), and the library moved the
    /// queue pair to the error state.
    Silent {
        /// The keep-alive of the connection.
        keep_alive: Duration,
    },
    /// A probe of the keep-alive failed. The peer's host, its device or the network is down, or the
    /// queue pair was in the error state before.
    Probe {
        /// The status of its completion: [`WcStatus::RETRY_EXC_ERR`] if the peer's device does not
        /// answer.
        status: WcStatus,
    },
}

pub(crate) const POST_ENDED_IT: Hint = &["This failed post ended the connection", "connect again"];

impl Failure {
    /// Whether this explains more than an `earlier` failure, and takes its place.
    pub(crate) fn explains(&self, earlier: &Self) -> bool {
        self.rank() > earlier.rank()
    }

    /// Returns whether it is a flushed operation ([`WcStatus::WR_FLUSH_ERR`]): the operation failed
    /// because of the connection's end, and does not explain it.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        match self {
            Self::Operation(WcFailure { status, .. }) | Self::Probe { status } => {
                *status == WcStatus::WR_FLUSH_ERR
            }
            Self::Post { .. } | Self::Device | Self::Silent { .. } => false,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            _ if self.is_flushed() => 0,
            Self::Device => 1,
            Self::Operation(_) | Self::Post { .. } | Self::Silent { .. } | Self::Probe { .. } => 2,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation(failure) => failure.fmt(f),
            Self::Post { call, errno } => {
                let cause = io::Error::from_raw_os_error(*errno);
                let [why, remedy] = POST_ENDED_IT;
                write!(f, "{call} failed: {cause}. {why}: {remedy}")
            }
            Self::Device => NotConnected::GivenUp.fmt(f),
            Self::Silent { keep_alive } => write!(
                f,
                "the keep-alive ended the connection, because the peer's device did not answer within \
                 {keep_alive:?} (ConnCfg::set_keep_alive): the peer's host or the network is down; connect again"
            ),
            Self::Probe { status } => write!(
                f,
                "a probe of the keep-alive failed with {status}: {}",
                NotConnected::Silent
            ),
        }
    }
}

impl std::error::Error for Failure {}

impl From<WcFailure> for Failure {
    fn from(failure: WcFailure) -> Self {
        Self::Operation(failure)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Operation(failure) => Self::Operation(failure),
            Failure::Post { call, errno } => {
                Self::provider(call, io::Error::from_raw_os_error(errno)).with_hint(POST_ENDED_IT)
            }
            Failure::Device => Self::NotConnected(NotConnected::GivenUp),
            Failure::Silent { .. } | Failure::Probe { .. } => {
                Self::NotConnected(NotConnected::Silent)
            }
        }
    }
}

/// Why a connection takes no operations: the reason of [`Error::NotConnected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotConnected {
    /// It is not established yet.
    NotYet,
    /// An operation or a post failed: [`Conn::failure`](crate::Conn::failure).
    Failed,
    /// The device reported an error of the queue pair. Completions may be missing. This comes
    /// before the other reasons: [`Conn::reason`](crate::Conn::reason) may have a failed operation.
    GivenUp,
    /// The keep-alive ended it ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)): the
    /// peer's device does not answer.
    Silent,
    /// It has ended: this side or the peer closed it, or the network or the device ended it
    /// ([`Conn::ended`](crate::Conn::ended)).
    Closed,
    /// In [`Conn::close`](crate::Conn::close), the connection ended before the peer acknowledged
    /// every operation.
    Unacknowledged,
}

impl NotConnected {
    /// The reason and the remedy.
    pub(crate) fn parts(self) -> [&'static str; 2] {
        match self {
            Self::NotYet => [
                "the connection is not established yet",
                "wait with Conn::wait_established, or for ConnEvent::Established",
            ],
            Self::Failed => [
                "an operation on the connection failed, which ended it",
                "poll the remaining completions, disconnect, and connect again. Conn::failure has the failed operation",
            ],
            Self::GivenUp => [
                "the device reported an error of the connection's queue pair (see the log), which ended it, and \
                 completions may be missing",
                "drop the connection, and connect again",
            ],
            Self::Silent => [
                "the keep-alive ended the connection, because the peer's device did not answer: the peer's host or \
                 the network is down",
                "connect again. ConnCfg::set_keep_alive has the limit",
            ],
            Self::Closed => [
                "the connection is closed, because this side closed it, or it has ended",
                "connect again. Conn::ended has the event",
            ],
            Self::Unacknowledged => [
                "the connection ended before the peer acknowledged every operation: the peer's host, its device or \
                 the network is down, or its program has ended",
                "",
            ],
        }
    }
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [reason, remedy] = self.parts();
        f.write_str(&with_remedy(reason, remedy))
    }
}
