//! The text of an error: its reason, and then its remedy. Both are values, because the command `rpma`
//! has remedies of its own.

use std::fmt;
use std::net::SocketAddr;

use super::{Error, Queue};
use crate::hints::with_remedy;

impl Error {
    /// Returns the text of the error without its remedy: the failure, and its usual cause if it is
    /// known.
    ///
    /// ```
    /// let error = rpma::Error::NotConnected(rpma::NotConnected::NotYet);
    /// assert_eq!(error.reason(), "the connection is not established yet");
    /// ```
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Provider { call, cause, hint } => match hint {
                Some([why, _]) if !why.is_empty() => format!("{call} failed: {cause}. {why}"),
                _ => format!("{call} failed: {cause}"),
            },
            Self::InvalidArgument(text) | Self::NotSupported(text) | Self::Claimed(text) => {
                text.to_string()
            }
            Self::QueueFull { queue, depth } => format!(
                "the {queue} is full: none of its {depth} slots is free for this operation"
            ),
            Self::ReceivesKept { kept, depth } => format!(
                "the shared receive queue is full, and the device may keep {kept} of its {depth} receives for \
                 connections that ended in the middle of a message"
            ),
            Self::NoCompletionDue { depth } => format!(
                "the send queue of {depth} has too few free slots for this operation, and no completion is coming \
                 that would free one"
            ),
            Self::TooFewReplicas { able, k, present } => format!(
                "only {able} of the set's {present} replicas can take a commit, and {k} copies were asked for"
            ),
            Self::TooFewCopies {
                copies,
                k,
                unknown,
                failed,
            } => format!(
                "the commit has {copies} of {k} required copies (replicas without an answer: {unknown}; replicas \
                 that never get it: {failed})"
            ),
            Self::NotConnected(reason) => reason.parts()[0].to_owned(),
            Self::Ended(event) => {
                format!("the connection ended before the operation completed: {event}")
            }
            Self::NotEstablished(event) => format!("the connection was not established: {event}"),
            Self::NoAddress(tried) => no_address(tried, Self::reason),
            Self::GaveUp(last) => format!("gave up at the limit; the last error: {}", last.reason()),
            Self::Operation(failure) => failure.reason(),
            Self::TimedOut(step) => format!("the time limit has passed: {step}"),
            Self::PartLost { key, cause } => format!(
                "the key {key:#x} has no memory, because it could not be registered again: {}",
                cause.reason()
            ),
            Self::RingFull => {
                "the ring of source memory is full: the replicas of Replicas::holders have not released the oldest \
                 commit"
                    .into()
            }
            Self::PolledElsewhere => {
                "the completion of this operation was polled already, by Cq::get_wc, Conn::next or an earlier \
                 Conn::wait_for: that call returned the outcome or handed it over"
                    .into()
            }
            Self::SharedChannel => "the completion channel is shared".into(),
            Self::NotSharedChannel => {
                "the connection has no completion channel of its own for both its queues".into()
            }
            Self::NoCompletion => "no completion is available".into(),
            Self::NoEvent => "no event is available".into(),
        }
    }

    /// Returns the remedy with which the text of the error ends. `None` if none is known, or if the
    /// [reason](Self::reason) has it: that of an [`InvalidArgument`](Self::InvalidArgument) and of
    /// something that is [`NotSupported`](Self::NotSupported). For [`NoAddress`](Self::NoAddress)
    /// it is that of the last address.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        let remedy = match self {
            Self::Provider { hint, .. } => hint.map_or("", |[_, remedy]| remedy),
            Self::QueueFull { queue, .. } => queue.remedy(),
            Self::ReceivesKept { .. } => {
                "if polling frees no slot, make a new queue for new connections (Srq::new)"
            }
            Self::NoCompletionDue { .. } => {
                "post an operation with Flags::COMPLETION_ALWAYS, for which the last slot is kept, and poll its \
                 completion"
            }
            Self::TooFewReplicas { .. } => "connect again, and add a replica (Replicas::add)",
            Self::RingFull => "Wait for room, or go on without them (Replicas::make_room)",
            Self::PolledElsewhere => "Conn::failure returns the first failure of the connection",
            Self::NotConnected(reason) => reason.parts()[1],
            Self::Operation(failure) => failure.status.hint()[1],
            Self::PartLost { cause, .. } => return cause.remedy(),
            Self::GaveUp(last) => return last.remedy(),
            Self::NoAddress(tried) => return tried.last()?.1.remedy(),
            Self::SharedChannel => {
                "wait with Conn::wait, with Wait::next if the connection was made for a Wait, or with \
                 CompletionChannel::wait if the ConnCfg named one"
            }
            Self::NotSharedChannel => "wait with Cq::wait, or set ComplChannel::Shared",
            Self::InvalidArgument(_)
            | Self::NotSupported(_)
            | Self::TooFewCopies { .. }
            | Self::Ended(_)
            | Self::NotEstablished(_)
            | Self::TimedOut(_)
            | Self::Claimed(_)
            | Self::NoCompletion
            | Self::NoEvent => "",
        };
        (!remedy.is_empty()).then_some(remedy)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Each has a remedy of its own.
            Self::NoAddress(tried) => f.write_str(&no_address(tried, Self::to_string)),
            _ => f.write_str(&with_remedy(
                &self.reason(),
                self.remedy().unwrap_or_default(),
            )),
        }
    }
}

fn no_address(tried: &[(SocketAddr, Error)], text: impl Fn(&Error) -> String) -> String {
    let each = tried
        .iter()
        .map(|(addr, error)| format!("{addr}: {}", text(error)));
    let each = each.collect::<Vec<_>>().join("; ");
    format!("none of the {} addresses works: {each}", tried.len())
}

impl Queue {
    /// How a slot comes back, and how there are more.
    fn remedy(self) -> &'static str {
        match self {
            Self::Commits => {
                "A slot comes back when the oldest commit is complete (Writer::look, Writer::wait_room); \
                 WriterCfg::set_in_flight and the server's credits limit them"
            }
            Self::Send => {
                "A slot comes back when a completion is polled (Cq::get_wc; of a SharedWriter by its look); \
                 ConnCfg::set_sq_size asks for more slots"
            }
            Self::Receive => {
                "A slot comes back when a completion is polled (Cq::get_wc); ConnCfg::set_rq_size asks for more slots"
            }
            Self::SharedReceive => {
                "A slot comes back when a completion is polled (Cq::get_wc); SrqCfg::set_rq_size asks for more slots"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use super::*;
    use crate::failure::NotConnected;
    use crate::status::{WcFailure, WcStatus};

    /// Promise: a reason names no function of this library.
    #[test]
    fn a_text_is_the_reason_and_the_remedy() {
        let statuses = [
            WcStatus::LOC_LEN_ERR,
            WcStatus::WR_FLUSH_ERR,
            WcStatus::REM_INV_REQ_ERR,
            WcStatus::REM_ACCESS_ERR,
            WcStatus::RETRY_EXC_ERR,
            WcStatus::RNR_RETRY_EXC_ERR,
        ];
        let operations = statuses.map(|status| Error::Operation(WcFailure::for_test(7, status)));
        let states = [
            NotConnected::NotYet,
            NotConnected::Failed,
            NotConnected::GivenUp,
            NotConnected::Silent,
            NotConnected::Closed,
            NotConnected::Unacknowledged,
        ];
        let calls = [
            ("ibv_reg_mr", Errno::NOMEM),
            ("ibv_create_cq", Errno::NOMEM),
            ("rdma_create_qp", Errno::AGAIN),
            ("ibv_post_send", Errno::NXIO),
        ];
        let calls = calls.map(|(call, errno)| Error::provider(call, errno));
        let errors = operations
            .into_iter()
            .chain(states.map(Error::NotConnected))
            .chain(calls);
        for error in errors {
            let (text, reason) = (error.to_string(), error.reason());
            assert!(text.starts_with(&reason), "{text}");
            assert!(!reason.contains("::"), "{reason}");
            if let Some(remedy) = error.remedy() {
                assert!(text.ends_with(remedy), "{text}");
            }
            let outer = Error::GaveUp(Box::new(error));
            assert!(outer.reason().ends_with(&reason), "{outer}");
            assert!(outer.to_string().ends_with(&text), "{outer}");
        }
    }

    #[test]
    fn a_provider_error_names_the_call_the_errno_and_the_hint() {
        let error = Error::provider("ibv_reg_mr", Errno::FAULT).with_hint(&["Why", "Raise it"]);
        assert_eq!(
            error.to_string(),
            "ibv_reg_mr failed: Bad address (os error 14). Why. Raise it"
        );
        assert!(error.is_errno(Errno::FAULT));
        let error = Error::provider("ibv_reg_mr", Errno::NOMEM);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn a_full_queue_names_its_remedy() {
        for queue in [
            Queue::Send,
            Queue::Receive,
            Queue::SharedReceive,
            Queue::Commits,
        ] {
            let text = Error::QueueFull { queue, depth: 10 }.to_string();
            assert!(text.starts_with(&format!("the {queue} is full")), "{text}");
            assert!(text.contains(queue.setter()), "{text}");
        }
    }
}
