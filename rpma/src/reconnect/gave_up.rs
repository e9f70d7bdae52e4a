//! [`GaveUp`]: the end of a reconnect without a connection; and the judgement of each failed try.

use std::fmt;

use crate::error::Error;
use crate::event::ConnEvent;
use crate::refusal::{Refusal, RefusalCode};

/// A reconnect that ended without a connection.
#[derive(Debug)]
pub struct GaveUp {
    /// Why no other try is made.
    pub why: Why,
    /// The error of the last try.
    pub error: Error,
}

/// Why a reconnect gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The server refused the client for a reason that does not go away by itself.
    ///
    /// [`RefusalCode::Taken`](crate::RefusalCode::Taken): another instance has the key, with the
    /// epoch [`Refusal::epoch`]. A program that decides to take over sends a higher epoch
    /// ([`Reconnect::set_offer`](super::Reconnect::set_offer)).
    /// [`RefusalCode::OldEpoch`](crate::RefusalCode::OldEpoch): another writer has taken over.
    Refused(Refusal),
    /// The limit has passed ([`ReconnectCfg::set_limit`](super::ReconnectCfg::set_limit)).
    Limit,
    /// Another try would get the same error. Examples are settings that the device cannot have, a
    /// server that does not serve the method, and this host's device after its removal (`ENODEV`).
    Error,
}

impl GaveUp {
    pub(super) fn error(error: Error) -> Self {
        let why = Why::Error;
        Self { why, error }
    }
}

impl GaveUp {
    /// Returns the epoch of another writer if the server refused this client because of it
    /// ([`RefusalCode::Taken`], [`RefusalCode::OldEpoch`]). To take over, a program sends a higher
    /// epoch ([`Reconnect::set_offer`](super::Reconnect::set_offer)).
    #[must_use]
    pub fn other_epoch(&self) -> Option<u64> {
        let Why::Refused(refusal) = &self.why else {
            return None;
        };
        matches!(refusal.code(), RefusalCode::Taken | RefusalCode::OldEpoch)
            .then(|| refusal.epoch())
    }
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Limit => write!(f, "gave up at the limit; the last error: {}", self.error),
            Why::Refused(_) | Why::Error => self.error.fmt(f),
        }
    }
}

impl std::error::Error for GaveUp {}

impl From<GaveUp> for Error {
    fn from(gave_up: GaveUp) -> Self {
        gave_up.error
    }
}

/// The next step after a failed try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To try again after the next wait.
    Again,
    /// To try again after the longest wait.
    Slowly,
    /// Not to try again.
    Stop(Why),
}

impl Verdict {
    pub(super) fn on(error: &Error) -> Self {
        match error {
            Error::NotEstablished(event) => Self::on_event(event),
            // A call failed, or something took too long. The next try may find something better.
            Error::Provider { .. }
            | Error::TimedOut(_)
            | Error::NotConnected(_)
            | Error::Ended(_)
            | Error::Operation(_) => Self::Again,
            _ => Self::Stop(Why::Error),
        }
    }

    fn on_event(event: &ConnEvent) -> Self {
        let ConnEvent::Rejected { private_data, .. } = event else {
            return Self::Again;
        };
        match Refusal::decode(private_data) {
            Ok(refusal) if refusal.code().is_temporary() => Self::Slowly,
            Ok(refusal) => Self::Stop(Why::Refused(refusal)),
            // No reason by this library: no program listens yet, or the program has ended.
            Err(_) => Self::Again,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::RejectReason;

    fn rejected(private_data: &[u8]) -> Error {
        Error::NotEstablished(Box::new(ConnEvent::Rejected {
            reason: RejectReason::CONSUMER,
            private_data: private_data.into(),
        }))
    }

    /// Promise: the table of codes in docs/reconnecting.md.
    #[test]
    fn each_code_has_its_verdict() {
        use RefusalCode::{Broken, Full, NotCutOff, OldEpoch, Other, Refused, Taken};
        for code in [Broken, OldEpoch, Taken, Refused, Other(77)] {
            let refusal = Refusal::new(code, "words");
            let verdict = Verdict::on(&rejected(&refusal.encode()));
            assert_eq!(verdict, Verdict::Stop(Why::Refused(refusal)));
        }
        for code in [Full, NotCutOff] {
            let refusal = Refusal::new(code, "words").encode();
            assert_eq!(Verdict::on(&rejected(&refusal)), Verdict::Slowly);
        }
    }

    /// Promise: the epoch of another writer is returned if that writer is the reason, and only then.
    #[test]
    fn the_epoch_of_another_writer() {
        use RefusalCode::{Broken, OldEpoch, Other, Refused, Taken};
        let other_epoch = |why| {
            let error = Error::TimedOut("a test");
            GaveUp { why, error }.other_epoch()
        };
        for code in [OldEpoch, Taken, Broken, Refused, Other(77)] {
            let mut refusal = Refusal::new(code, "words");
            refusal.set_epoch(41);
            let epoch = matches!(code, OldEpoch | Taken).then_some(41);
            assert_eq!(other_epoch(Why::Refused(refusal)), epoch);
        }
        assert_eq!(other_epoch(Why::Limit), None);
        assert_eq!(other_epoch(Why::Error), None);
    }

    /// Promise: a reject without a reason, a time-out and a failed call are tried again, and a
    /// mistake is not.
    #[test]
    fn each_error_has_its_verdict() {
        let status = -110;
        let unreachable = Error::NotEstablished(Box::new(ConnEvent::Unreachable { status }));
        for error in [
            rejected(b""),
            rejected(b"not today\0\0"),
            unreachable,
            Error::TimedOut("no answer"),
            Error::provider("rdma_resolve_addr", rustix::io::Errno::TIMEDOUT),
        ] {
            assert_eq!(Verdict::on(&error), Verdict::Again, "{error}");
        }
        for error in [Error::invalid("a wildcard"), Error::not_supported("that")] {
            let verdict = Verdict::on(&error);
            assert_eq!(verdict, Verdict::Stop(Why::Error), "{error}");
        }
    }

    proptest! {
        /// Promise: bytes that are no refusal count as no reason.
        #[test]
        fn garbage_is_no_reason(bytes: Vec<u8>) {
            prop_assume!(Refusal::decode(&bytes).is_err());
            prop_assert_eq!(Verdict::on(&rejected(&bytes)), Verdict::Again);
        }
    }
}
