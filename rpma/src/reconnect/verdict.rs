//! The judgement of each failed try of a reconnect.

use crate::error::Error;
use crate::event::ConnEvent;

/// The next step after a failed try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To try again after the next wait.
    Again,
    /// To try again after the longest wait.
    Slowly,
    /// Not to try again: the server refused the client for a reason that does not go away by
    /// itself.
    Refused,
    /// Not to try again: another try would get the same error.
    Stop,
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
            _ => Self::Stop,
        }
    }

    fn on_event(event: &ConnEvent) -> Self {
        match event.refusal() {
            Some(refusal) if refusal.code().is_temporary() => Self::Slowly,
            Some(_) => Self::Refused,
            // No reason by this library: no program listens yet, or the program has ended.
            None => Self::Again,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::refusal::{Refusal, RefusalCode};

    fn rejected(private_data: &[u8]) -> Error {
        Error::NotEstablished(Box::new(ConnEvent::Rejected {
            reason: ConnEvent::BY_PROGRAM,
            private_data: private_data.into(),
        }))
    }

    /// Promise: the table of codes in docs/failures.md.
    #[test]
    fn each_code_has_its_verdict() {
        use RefusalCode::{Broken, Full, NotCutOff, OldEpoch, Other, Refused, Taken};
        for code in [Broken, OldEpoch, Taken, Refused, Other(77)] {
            let refusal = Refusal::new(code, "words").encode();
            assert_eq!(Verdict::on(&rejected(&refusal)), Verdict::Refused);
        }
        for code in [Full, NotCutOff] {
            let refusal = Refusal::new(code, "words").encode();
            assert_eq!(Verdict::on(&rejected(&refusal)), Verdict::Slowly);
        }
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
            assert_eq!(Verdict::on(&error), Verdict::Stop, "{error}");
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
