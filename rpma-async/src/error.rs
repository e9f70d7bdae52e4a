//! The errors that this crate adds to [`rpma::Error`], and those that give memory back.

use std::fmt;
use std::io;

use rpma::{Error, Failure, NotConnected, Queue, WcFailure};
use rustix::io::Errno;

/// Reports that an operation was not posted, and returns its memory.
///
/// It converts to [`rpma::Error`], so that `?` works in functions that return that error. If a
/// queue is full, the text of the `Refused` names the call of this crate that waits for room. The
/// text of the [`rpma::Error`] names the calls of rpma that poll.
pub struct Refused<B> {
    /// The reason.
    pub error: Error,
    /// The memory of the operation. `None` after [`Error::Provider`]: the device may have the
    /// request, and the memory goes back to its pool when no device can use it any more.
    pub memory: Option<B>,
}

/// Reports that a posted operation failed, and returns its memory.
///
/// It converts to [`rpma::Error`].
pub struct Failed<B> {
    /// The reason.
    pub error: Error,
    /// The memory of the operation. `None` if the operation may still be executed, and its
    /// completion can no longer be awaited. Then the memory goes back to its pool when no device
    /// can use it.
    pub memory: Option<B>,
}

macro_rules! errors_with_memory {
    ($($name:ident)*) => {$(
        impl<B> fmt::Debug for $name<B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("error", &self.error)
                    .field("has_memory", &self.memory.is_some())
                    .finish()
            }
        }

        impl<B> std::error::Error for $name<B> {}

        impl<B> From<$name<B>> for Error {
            fn from(error: $name<B>) -> Self {
                error.error
            }
        }
    )*};
}

errors_with_memory!(Refused Failed);

impl<B> fmt::Display for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        // rpma's own text names calls that poll, and here the reactor polls.
        match self.error {
            Error::QueueFull {
                queue: Queue::Send, ..
            } => f.write_str(". With a reactor, await Conn::ready"),
            Error::QueueFull {
                queue: Queue::Commits,
                ..
            } => f.write_str(". With a reactor, await Writer::room"),
            _ => Ok(()),
        }
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

pub(crate) fn invalid(text: impl Into<Box<str>>) -> Error {
    Error::InvalidArgument(text.into())
}

pub(crate) fn provider(call: &'static str, errno: Errno) -> Error {
    Error::Provider {
        call,
        cause: io::Error::from(errno),
        hint: None,
    }
}

/// As [`rpma::Conn::reason_of`].
#[cold]
pub(crate) fn reason(failure: WcFailure, conn: &rpma::Conn) -> Error {
    unnumbered(conn.reason_of(failure))
}

/// The error of a wait: without the number of its operation, which is this crate's.
#[cold]
pub(crate) fn unnumbered(error: Error) -> Error {
    match error {
        Error::Operation(of) => of.without_op_context().into(),
        error => error,
    }
}

/// The failure of a connection: without the number of its operation, which is this crate's.
#[cold]
pub(crate) fn without_number(failure: Failure) -> Failure {
    match failure {
        Failure::Operation(of) => of.without_op_context().into(),
        failure => failure,
    }
}

/// The same error, for one more that waits for a connection that was given up.
#[cold]
pub(crate) fn once_more(error: &Error) -> Error {
    match error {
        Error::Provider { call, cause, hint } => Error::Provider {
            call,
            cause: match cause.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::new(cause.kind(), cause.to_string()),
            },
            hint: *hint,
        },
        Error::Ended(event) => Error::Ended(event.clone()),
        _ => Error::NotConnected(NotConnected::GivenUp),
    }
}

#[cold]
pub(crate) fn driver_is_gone() -> Error {
    invalid(
        "the driver of this reactor was dropped, so no task can be woken: keep it running (spawn \
         it, or use Reactor::spawn) until the last connection is gone",
    )
}

#[cold]
pub(crate) fn clocks_differ() -> Error {
    invalid(
        "the clock of the driver's runtime is ahead of rpma's: it is paused, and rpma's time is real. In a test on \
         the simulated fabric call Fabric::follow before the first connection; with a device do not pause the clock",
    )
}

#[cold]
pub(crate) fn driver_never_ran() -> Error {
    invalid(
        "the driver of this reactor has never run: spawn the Driver that Reactor::new returned, on a runtime \
         that runs, or use Reactor::spawn",
    )
}
