//! The error type of the whole crate: librpma's codes as variants, and never without the cause.
//!
//! librpma has one number for each kind of failure and writes the cause to a log. Here the error
//! holds the failing verb and its errno, and a remedy if the cause is known.

mod text;

use std::fmt;
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::event::ConnEvent;
use crate::failure::NotConnected;
use crate::hints::{self, Hint, Limits};
use crate::refusal::{Refusal, RefusalCode};
use crate::status::WcFailure;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a failed call.
///
/// It converts to [`io::Error`] with the fitting [`io::ErrorKind`] (`WouldBlock` for
/// [`NoCompletion`](Self::NoCompletion) and [`NoEvent`](Self::NoEvent)).
#[doc(alias = "rpma_err_2str")]
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A verb or a function of librdmacm or the system failed (`RPMA_E_PROVIDER`). If it failed
    /// while an operation was posted, the device may have the operation, and execute it or not.
    Provider {
        /// The function that failed, by its C name.
        call: &'static str,
        /// The cause that the verb reported. [`Error::raw_os_error`] returns its errno. The error's
        /// message contains the cause. So [`source`](std::error::Error::source) does not return it.
        cause: io::Error,
        /// The usual cause and its remedy, if they are known. Either can be empty.
        /// [`Error::reason`] has the cause in it, and [`Error::remedy`] returns the remedy.
        hint: Option<&'static [&'static str; 2]>,
    },

    /// An argument was refused before any change (`RPMA_E_INVAL`). The text names the argument, the
    /// limit, and the remedy.
    InvalidArgument(Box<str>),

    /// The device, the memory or the peer cannot do this (`RPMA_E_NOSUPP`). The text names the
    /// missing feature.
    NotSupported(Box<str>),

    /// Every slot of the queue holds an operation with a completion that has not been polled yet.
    ///
    /// The operation was not posted. Poll completions with [`Cq::get_wc`](crate::Cq::get_wc).
    /// [`Queue`] describes when a slot comes back.
    QueueFull {
        /// The queue that is full.
        queue: Queue,
        /// How many slots it has.
        depth: u32,
    },

    /// The shared receive queue is full, and it is possible that the device never returns any of
    /// its receives.
    ///
    /// The receive was not posted. Poll the completions that are there. If messages do not arrive
    /// any more, [make a new queue](crate::guide::security#a-shared-receive-queue-can-be-used-up)
    /// for new connections.
    ReceivesKept {
        /// How many receives the device keeps, at most.
        kept: u32,
        /// How many slots the queue has.
        depth: u32,
    },

    /// The operation needs more slots of the send queue than are free. Polling frees no slot,
    /// because no operation with [`Flags::COMPLETION_ALWAYS`](crate::Flags::COMPLETION_ALWAYS) is
    /// outstanding.
    ///
    /// The operation was not posted. Post one with that flag, poll its completion, and try again.
    /// An empty write will do: the last slot is kept for it. After that, set the flag on at least
    /// one operation before the queue is full.
    NoCompletionDue {
        /// How many slots the send queue has.
        depth: u32,
    },

    /// The ring of a set's source memory has no place for a record: the bytes of the oldest commit
    /// are still in use.
    ///
    /// No replica got a post. [`Replicas::holders`](crate::commit::Replicas::holders) names the
    /// replicas that use these bytes. Wait for them
    /// ([`Replicas::wait_room`](crate::commit::Replicas::wait_room), in `rpma_async`
    /// `Replicas::room`), or go on without them
    /// ([`Replicas::make_room`](crate::commit::Replicas::make_room)).
    RingFull,

    /// Fewer replicas can take a commit than copies were asked for. No replica got a post. Add a
    /// replica ([`Replicas::add`](crate::commit::Replicas::add)).
    TooFewReplicas {
        /// The number of replicas that can take it.
        able: usize,
        /// The number of copies that were asked for.
        k: u32,
        /// The number of replicas in the set, without those that were set aside.
        present: u32,
    },

    /// A commit is on fewer replicas than copies were required
    /// ([`Outcome::require`](crate::commit::Outcome::require)). It may be on more of them, or come
    /// there later.
    TooFewCopies {
        /// The number of replicas that have it.
        copies: u32,
        /// The number of copies that were required.
        k: u32,
        /// The number of replicas that may have it ([`Replicas::unknown`]).
        ///
        /// [`Replicas::unknown`]: crate::commit::Replicas::unknown
        unknown: u32,
        /// The number of replicas that never get it ([`Replicas::failed`]).
        ///
        /// [`Replicas::failed`]: crate::commit::Replicas::failed
        failed: u32,
    },

    /// The connection takes no operations, for this reason.
    NotConnected(NotConnected),

    /// The connection ended while the program waited for an operation: this event came instead.
    ///
    /// Whether the operation was executed is unknown.
    Ended(Box<ConnEvent>),

    /// The completion of this operation was polled already.
    ///
    /// [`Cq::get_wc`](crate::Cq::get_wc), [`Conn::next`](crate::Conn::next) or an earlier
    /// [`Conn::wait_for`](crate::Conn::wait_for) returned it or handed it over. That completion, or
    /// the error of that wait, has the operation's outcome.
    PolledElsewhere,

    /// The connection was not established. The event gives the reason.
    NotEstablished(Box<ConnEvent>),

    /// No address of the server works. The text has the reason of each.
    NoAddress(Box<[(SocketAddr, Error)]>),

    /// A [`Reconnect`](crate::reconnect::Reconnect) has tried until its limit
    /// ([`ReconnectCfg::set_limit`](crate::reconnect::ReconnectCfg::set_limit)). The error is that
    /// of the last try.
    GaveUp(Box<Error>),

    /// An operation failed. Its completion gives the reason.
    ///
    /// [`WcFailure`] converts to this error. So `wc.result()?` works in a function that returns
    /// this error.
    Operation(WcFailure),

    /// The expected step did not happen within the time limit. The text names it.
    ///
    /// An operation goes on after the wait for it has timed out: the device still uses its memory,
    /// and its outcome is unknown until its completion or the end of the connection.
    TimedOut(&'static str),

    /// [`Server::answer`](crate::serve::Server::answer) could not deregister the memory of this
    /// client's key ([`Identity::key`](crate::Identity::key)), or could not register it again.
    ///
    /// The key has no memory until a request for it registers the memory again, or, if it could
    /// not be deregistered, until the program ends. Other keys are served as before.
    PartLost {
        /// The key.
        key: u64,
        /// The error of the failed registration or deregistration. The message contains its text.
        cause: Box<Error>,
    },

    /// Another program of this host may serve the memory, through another inode of the same device
    /// ([`PmemMap::claim`](crate::pmem::PmemMap::claim)). The text names both inodes and the
    /// remedy.
    Claimed(Box<str>),

    /// The completion queue shares its channel with others (`RPMA_E_SHARED_CHANNEL`), so that
    /// waiting for it alone could take their events.
    SharedChannel,

    /// The connection's completion queues have a channel each (`RPMA_E_NOT_SHARED_CHNL`), or one
    /// that is shared with other connections.
    NotSharedChannel,

    /// There is no completion now (`RPMA_E_NO_COMPLETION`): the time limit passed, or the
    /// descriptor is non-blocking.
    NoCompletion,

    /// There is no event now (`RPMA_E_NO_EVENT`): the time limit passed, or the descriptor is
    /// non-blocking.
    NoEvent,
}

/// The error of a call that takes an object, and the object, which the call has not used. The
/// errors of [`Conn::close`](crate::Conn::close) and [`Conn::cut_off`](crate::Conn::cut_off) have
/// the completions that were not polled, those of each queue in their order.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct GivenBack<T> {
    /// The reason.
    pub error: Error,
    /// The object, unchanged. Dropping it has its usual effect: a connection ends, a request is
    /// rejected, an endpoint stops listening.
    pub object: T,
}

impl<T> GivenBack<Box<T>> {
    #[cold]
    pub(crate) fn boxed(error: Error, object: T) -> Self {
        let object = Box::new(object);
        Self { error, object }
    }
}

impl<T> fmt::Debug for GivenBack<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenBack")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> From<GivenBack<T>> for Error {
    fn from(error: GivenBack<T>) -> Self {
        error.error
    }
}

/// The queues of a connection that have counted slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queue {
    /// The send queue. A slot comes back when the completion of its operation is polled, or that
    /// of a later operation with [`Flags::COMPLETION_ALWAYS`](crate::Flags::COMPLETION_ALWAYS).
    /// While no operation with that flag is outstanding, the last free slot is kept for such an
    /// operation ([`Error::NoCompletionDue`]).
    Send,
    /// The receive queue. A slot comes back when the completion of its receive is polled.
    Receive,
    /// A shared receive queue. A slot comes back when the completion of its receive is polled,
    /// whichever connection it arrived on.
    SharedReceive,
    /// The commits in flight of a [`Writer`](crate::commit::Writer).
    /// [`WriterCfg::in_flight`](crate::commit::WriterCfg::in_flight) and the server's credits
    /// ([`Limits`](crate::commit::Limits)) limit their number. Another commit is possible when the
    /// oldest one is complete: [`Writer::look`](crate::commit::Writer::look) takes its completions.
    Commits,
}

impl Queue {
    pub(crate) fn setter(self) -> &'static str {
        match self {
            Self::Send => "ConnCfg::set_sq_size",
            Self::Receive => "ConnCfg::set_rq_size",
            Self::SharedReceive => "SrqCfg::set_rq_size",
            Self::Commits => "WriterCfg::set_in_flight",
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send queue",
            Self::Receive => "receive queue",
            Self::SharedReceive => "shared receive queue",
            Self::Commits => "writer",
        })
    }
}

impl Error {
    pub(crate) fn provider(call: &'static str, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        let errno = cause.raw_os_error().map(Errno::from_raw_os_error);
        let hint = errno.and_then(|errno| hints::of(call, errno, Limits::of_this_process));
        Self::Provider { call, cause, hint }
    }

    /// The same error, if it is one of a call, of an argument, or of something unsupported.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::Provider { call, cause, hint } => Some(Self::Provider {
                call,
                cause: match cause.raw_os_error() {
                    Some(errno) => io::Error::from_raw_os_error(errno),
                    None => io::Error::new(cause.kind(), cause.to_string()),
                },
                hint: *hint,
            }),
            Self::InvalidArgument(text) => Some(Self::InvalidArgument(text.clone())),
            Self::NotSupported(text) => Some(Self::NotSupported(text.clone())),
            _ => None,
        }
    }

    /// Adds the known cause and its remedy.
    pub(crate) fn with_hint(mut self, known: Hint) -> Self {
        if let Self::Provider { hint, .. } = &mut self {
            *hint = Some(known);
        }
        self
    }

    pub(crate) fn invalid(text: impl Into<Box<str>>) -> Self {
        Self::InvalidArgument(text.into())
    }

    pub(crate) fn not_supported(text: impl Into<Box<str>>) -> Self {
        Self::NotSupported(text.into())
    }

    /// Returns the [`Refusal`] with which a server rejected this client, if the error is a
    /// [`NotEstablished`](Self::NotEstablished) for this reason.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::NotEstablished(event) => event.refusal(),
            _ => None,
        }
    }

    /// Returns the epoch of another writer if the server refused this client because of it
    /// ([`RefusalCode::Taken`], [`RefusalCode::OldEpoch`]). To take over, a program sends a higher
    /// epoch ([`Reconnect::set_offer`](crate::reconnect::Reconnect::set_offer)).
    #[must_use]
    pub fn other_epoch(&self) -> Option<u64> {
        let refusal = self.refusal()?;
        let is_other = matches!(refusal.code(), RefusalCode::Taken | RefusalCode::OldEpoch);
        is_other.then_some(refusal.epoch())
    }

    /// Returns the errno of a [`Provider`](Self::Provider) failure, if it has one. For a
    /// [`PartLost`](Self::PartLost) it is the errno of the cause, for
    /// [`NoAddress`](Self::NoAddress) that of the last address, and for [`GaveUp`](Self::GaveUp)
    /// that of the last try.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Provider { cause, .. } => cause.raw_os_error(),
            Self::PartLost { cause, .. } => cause.raw_os_error(),
            Self::NoAddress(tried) => tried.last()?.1.raw_os_error(),
            Self::GaveUp(last) => last.raw_os_error(),
            _ => None,
        }
    }

    pub(crate) fn is_errno(&self, errno: Errno) -> bool {
        self.raw_os_error() == Some(errno.raw_os_error())
    }
}

impl std::error::Error for Error {}

impl From<WcFailure> for Error {
    fn from(failure: WcFailure) -> Self {
        Self::Operation(failure)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(kind(&error), error)
    }
}

fn kind(error: &Error) -> io::ErrorKind {
    match error {
        Error::Provider { cause, .. } => cause.kind(),
        Error::InvalidArgument(_) => io::ErrorKind::InvalidInput,
        Error::NotSupported(_) => io::ErrorKind::Unsupported,
        Error::QueueFull { .. }
        | Error::ReceivesKept { .. }
        | Error::NoCompletionDue { .. }
        | Error::RingFull => io::ErrorKind::ResourceBusy,
        Error::NotConnected(_) | Error::TooFewReplicas { .. } | Error::TooFewCopies { .. } => {
            io::ErrorKind::NotConnected
        }
        Error::Ended(_) => io::ErrorKind::ConnectionAborted,
        Error::PolledElsewhere => io::ErrorKind::InvalidInput,
        Error::NotEstablished(event) => match **event {
            ConnEvent::Rejected { .. } => io::ErrorKind::ConnectionRefused,
            ConnEvent::Unreachable { .. } => io::ErrorKind::HostUnreachable,
            _ => io::ErrorKind::ConnectionAborted,
        },
        Error::TimedOut(_) => io::ErrorKind::TimedOut,
        Error::PartLost { cause, .. } | Error::GaveUp(cause) => kind(cause),
        Error::NoAddress(tried) => {
            let last = tried.last().map(|(_, error)| kind(error));
            last.unwrap_or(io::ErrorKind::NotFound)
        }
        Error::SharedChannel | Error::NotSharedChannel => io::ErrorKind::InvalidInput,
        Error::Operation(_) => io::ErrorKind::Other,
        Error::NoCompletion | Error::NoEvent => io::ErrorKind::WouldBlock,
        Error::Claimed(_) => io::ErrorKind::ResourceBusy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the epoch of another writer is returned if that writer is the reason, and only
    /// then.
    #[test]
    fn the_epoch_of_another_writer() {
        use RefusalCode::{Broken, Full, OldEpoch, Other, Refused, Taken};
        let rejected = |code| {
            let mut refusal = Refusal::new(code, "words");
            refusal.set_epoch(41);
            Error::NotEstablished(Box::new(ConnEvent::Rejected {
                reason: ConnEvent::BY_PROGRAM,
                private_data: refusal.encode().into(),
            }))
        };
        for code in [OldEpoch, Taken, Broken, Refused, Full, Other(77)] {
            let epoch = matches!(code, OldEpoch | Taken).then_some(41);
            let error = rejected(code);
            assert_eq!(error.other_epoch(), epoch);
            assert_eq!(error.refusal().map(|of| of.code()), Some(code));
            // The limit has passed: the last reason need not be the last word.
            assert_eq!(Error::GaveUp(Box::new(error)).other_epoch(), None);
        }
        assert_eq!(Error::TimedOut("a test").other_epoch(), None);
    }

    #[test]
    fn nothing_pending_would_block() {
        for error in [Error::NoCompletion, Error::NoEvent] {
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn the_error_is_small() {
        assert!(size_of::<Error>() <= 48, "{}", size_of::<Error>());
    }
}
