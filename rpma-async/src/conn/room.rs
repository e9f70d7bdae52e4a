//! Waits for room in the send queue, and until nothing is in flight.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rpma::{Error, Result};

use super::{Conn, Shared};
use crate::error::invalid;
use crate::waiters::Ticket;

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
    pub fn ready(&self, n: u32) -> Ready {
        let depth = self.shared.depth();
        Ready {
            shared: Arc::clone(&self.shared),
            most: depth.checked_sub(n).ok_or(n),
            is_idle: false,
            ticket: Ticket::default(),
            counted: false,
        }
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
    pub fn idle(&self) -> Ready {
        Ready {
            shared: Arc::clone(&self.shared),
            most: Ok(0),
            is_idle: true,
            ticket: Ticket::default(),
            counted: false,
        }
    }
}

/// A wait for room: [`Conn::ready`], [`Conn::idle`].
#[derive(Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct Ready {
    shared: Arc<Shared>,
    /// The slots that may be taken, or the number that was asked for in vain.
    most: Result<u32, u32>,
    is_idle: bool,
    ticket: Ticket,
    /// It counts as a sleeper.
    counted: bool,
}

impl Ready {
    /// Whether it is over.
    fn look(&self, most: u32) -> Option<Result<()>> {
        let shared = &self.shared;
        if !self.is_idle {
            if let Some(event) = shared.end() {
                return Some(Err(Error::Ended(Box::new(event.clone()))));
            }
            if let Some(cause) = shared.cause_without_event() {
                return Some(Err(cause));
            }
        }
        if shared.used() <= most {
            return Some(Ok(()));
        }
        shared.given_up().map(Err)
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.shared.queue(rpma::CqKind::Main).arming().wake();
        }
        self.shared.room().leave(&mut self.ticket);
    }
}

impl Future for Ready {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let most = match this.most {
            Ok(most) => most,
            Err(asked) => {
                return Poll::Ready(Err(invalid(format!(
                    "room for {asked} operations in a send queue of {} slots: ask for more with \
                     ConnCfg::set_sq_size",
                    this.shared.depth()
                ))));
            }
        };
        if let Some(result) = this.look(most) {
            // It may be all that the task waits for, again and again.
            if !this.counted && this.shared.lets_others_run(cx) {
                return Poll::Pending;
            }
            this.leave();
            return Poll::Ready(result);
        }
        let shared = Arc::clone(&this.shared);
        let queue = shared.queue(rpma::CqKind::Main);
        let was_counted = std::mem::replace(&mut this.counted, true);
        if !was_counted {
            queue.arming().sleep();
        }
        shared.room().wait(&mut this.ticket, cx.waker());
        // A completion gives the room, and the queue must be armed for it.
        let drained = queue.arm_and_drain(&shared);
        let over = match (this.look(most), drained) {
            (Some(result), _) => Some(result),
            (None, Err(error)) => Some(Err(*error)),
            (None, Ok(())) => shared.check().err().map(Err),
        };
        match over {
            Some(Ok(())) if !was_counted && shared.lets_others_run(cx) => Poll::Pending,
            Some(result) => {
                this.leave();
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.leave();
    }
}
