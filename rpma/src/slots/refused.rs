//! The errors of requests that were not posted.

use super::{ConnSlots, ConnState, PostRefusal};
use crate::error::{Error, Queue};
use crate::failure::POST_ENDED_IT;

impl ConnSlots {
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_refused(&self, refusal: PostRefusal, count: u32) -> Error {
        if self.takes_no_more() && refusal.call().is_none() {
            return self.closed();
        }
        let error = refused_by_a_full_queue(refusal, Queue::Receive, self.receive.depth(), count);
        if matches!(error, Error::QueueFull { .. }) {
            self.count_full(Queue::Receive);
        }
        error
    }

    /// The error of an operation of `count` requests.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_refused(&self, refusal: PostRefusal, what: &str, count: u32) -> Error {
        let depth = self.send.depth();
        if let Some(call) = refusal.call() {
            return match Error::from(call) {
                error @ Error::Provider { hint: None, .. } => error.with_hint(POST_ENDED_IT),
                error => error,
            };
        }
        let ended = self.life.state() != ConnState::Open;
        match refusal.bits() {
            _ if ended => self.closed(),
            PostRefusal::TOO_LONG => Error::invalid(format!(
                "the {what} takes {count} slots of the send queue, which has {depth}{}: ask for \
                 more with ConnCfg::set_sq_size",
                if count == depth {
                    ". Without Flags::COMPLETION_ALWAYS it needs another slot, which is kept \
                         for an operation with that flag"
                } else {
                    ""
                },
            )),
            PostRefusal::FULL => {
                self.count_full(Queue::Send);
                Error::QueueFull {
                    queue: Queue::Send,
                    depth,
                }
            }
            PostRefusal::NO_COMPLETION_DUE => {
                self.count_full(Queue::Send);
                Error::NoCompletionDue { depth }
            }
            _ => self.closed(),
        }
    }
}

/// The error of `count` requests that were not posted to a queue of this depth. Each would give a
/// completion.
#[cold]
#[inline(never)]
pub(crate) fn refused_by_a_full_queue(
    refusal: PostRefusal,
    queue: Queue,
    depth: u32,
    count: u32,
) -> Error {
    if let Some(call) = refusal.call() {
        return call.into();
    }
    let setter = queue.setter();
    match refusal.bits() {
        PostRefusal::TOO_LONG if depth == 0 => Error::invalid(format!(
            "the {queue} was made with no slots: ask for some with {setter}"
        )),
        PostRefusal::TOO_LONG => Error::invalid(format!(
            "{count} receives at once do not fit into the {queue}, which has {depth} slots: ask \
             for more with {setter}"
        )),
        _ => Error::QueueFull { queue, depth },
    }
}
