//! Waits for room in the send queue, and until nothing is in flight.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};

use rpma::{Error, Result};

use super::shared::Room;
use super::{Conn, Shared};
use crate::error::invalid;
use crate::tasks::Ticket;

impl Conn {
    /// Waits until `n` slots of the send queue are free. Each operation takes one slot, and a batch
    /// one for each of its operations. A [commit](Self::commit) takes one for each request, and a
    /// native flush one for each 2 GiB.
    ///
    /// The room is not reserved: of several tasks that wait, one posts first, and the others may
    /// find the queue full again.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the queue has fewer slots, or if the driver is gone. If the
    /// connection is over: [`Error::Ended`], or its first failure.
    pub fn ready(&self, n: u32) -> impl Future<Output = Result<()>> + Unpin + use<> {
        self.room(Room::Slots(n))
    }

    /// Waits until no operation is in flight, including operations with dropped
    /// [`Op`](crate::Op)s. Messages that were received, and receives, do not count.
    ///
    /// # Cancel safety
    ///
    /// As [`ready`](Self::ready).
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`] if the device gave the connection up, and [`Error::Provider`] if
    /// the reactor did, because a call failed: completions of operations will never come.
    /// [`Error::InvalidArgument`] if the driver is gone.
    pub fn idle(&self) -> impl Future<Output = Result<()>> + Unpin + use<> {
        self.room(Room::Idle)
    }

    fn room(&self, wanted: Room) -> impl Future<Output = Result<()>> + Unpin + use<> {
        let mut waiting = Waiting {
            shared: Arc::clone(&self.shared),
            wanted,
            ticket: Ticket::default(),
        };
        poll_fn(move |cx| waiting.poll(cx))
    }
}

struct Waiting {
    shared: Arc<Shared>,
    wanted: Room,
    ticket: Ticket,
}

impl Waiting {
    fn why_not(&self) -> Option<Error> {
        let (shared, slots) = (
            &self.shared,
            match self.wanted {
                Room::Slots(slots) => slots,
                Room::Idle => return None,
            },
        );
        if slots > shared.depth() {
            return Some(invalid(format!(
                "room for {slots} operations in a send queue of {} slots: ask for more with \
                 ConnCfg::set_sq_size",
                shared.depth()
            )));
        }
        let ended = shared.end().cloned().map(Box::new).map(Error::Ended);
        ended.or_else(|| shared.cause_without_event())
    }

    /// Whether the wait is over. Otherwise its task has left its waker.
    fn look(&mut self, cx: &Context<'_>) -> Option<Result<()>> {
        if let Some(error) = self.why_not() {
            return Some(Err(error));
        }
        let Self {
            shared,
            wanted,
            ticket,
        } = self;
        if shared.has_room(*wanted, ticket, cx.waker()) {
            return Some(Ok(()));
        }
        shared.given_up().map(Err)
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        // It may be all that the task waits for, again and again.
        if self.ticket.is_none() && self.shared.turn().ends_before(cx) {
            return Poll::Pending;
        }
        let mut over = self.look(cx);
        if over.is_none() {
            // A completion gives the room, and the queue must be armed for it.
            let queue = self.shared.queue(rpma::CqKind::Main);
            let drained = queue.arm_and_drain(&self.shared);
            over = self.look(cx);
            if over.is_none() {
                let checked = drained
                    .map_err(|error| *error)
                    .and_then(|()| self.shared.check());
                over = checked.err().map(Err);
            }
        }
        match over {
            Some(result) => {
                self.leave();
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }

    fn leave(&mut self) {
        if !self.ticket.is_none() {
            self.shared.leave_room(self.wanted, &mut self.ticket);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave();
    }
}
