//! [`Reading`]: an awaited read on the connection of a writer.
//!
//! A [`Reading`] has the destination of its read, and a part of the connection, as an
//! [`Op`](crate::Op) has. If it is dropped, the writer keeps the block until the read is complete. If
//! it is forgotten, the connection stays. Each look at the connection settles the reads as well.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rpma::{Error, Flags, Offer, Queue, RemoteSlice, Result, Wc, WcFailure};

use super::state::{Wanted, WriterState};
use crate::conn::Held;
use crate::error::{Failed, Refused, reason};
use crate::ops::{Go, Ops};
use crate::pool::Lease;
use crate::watched::{Wait, Watched};

/// Waits for a read of [`Writer::read`](crate::Writer::read), and returns the block with the bytes.
/// It only waits: the read goes on whether it is awaited or not.
///
/// The connection stays open until two things are dropped: the last handle of its writer, and the
/// last `Reading` that has not returned.
///
/// # Cancel safety
///
/// It may be dropped after any poll. The read goes on. Its block goes back to the pool when the
/// device has finished with it, even if no task waits. The bytes are lost.
///
/// # Errors
///
/// [`Failed`] with the block, if the read has failed. The error is the reason for which the
/// connection is over ([`Error::Operation`], [`Error::Ended`]).
///
/// [`Failed`] without the block, if the device may still write to it. Then the connection is over
/// and the read has not completed, or the driver of the reactor never ran or is gone
/// ([`Error::InvalidArgument`]). The block goes back to its pool when no device can use it.
#[must_use = "the read goes on, and its bytes are lost: await it"]
pub struct Reading {
    number: u64,
    wait: Wait<Wanted>,
    /// `None` when it has returned.
    open: Option<Open>,
}

/// The part of a read that goes with its result.
struct Open {
    shared: Arc<Watched<WriterState>>,
    /// It counts as a handle of the writer.
    _handle: Arc<Offer>,
    dst: Lease,
}

impl Reading {
    pub(super) fn new(
        (shared, handle): (&Arc<Watched<WriterState>>, &Arc<Offer>),
        number: u64,
        dst: Lease,
    ) -> Self {
        Self {
            number,
            wait: Wait::new(Wanted::Read(number)),
            open: Some(Open {
                shared: Arc::clone(shared),
                _handle: Arc::clone(handle),
                dst,
            }),
        }
    }

    /// Gives the read up, if it has not returned.
    fn leave(&mut self) {
        if let Some(Open { shared, dst, .. }) = self.open.take() {
            self.wait.leave(&shared);
            let free = shared.with(|state| state.reads.abandon(self.number, dst));
            // Without the lock: tasks that wait for a block are woken.
            drop(free);
        }
    }
}

impl Future for Reading {
    type Output = Result<Lease, Failed<Lease>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(open) = &this.open else {
            panic!("a read that was awaited is polled again");
        };
        let number = this.number;
        let judge = |state: &mut WriterState| state.read_result(number);
        let (error, memory) = match ready!(this.wait.poll(&open.shared, cx, judge)) {
            Ok(result) => {
                let dst = this.open.take().expect("it is there").dst;
                match result {
                    Ok(()) => return Poll::Ready(Ok(dst.with_read())),
                    Err(error) => (error, Some(dst)),
                }
            }
            Err(error) => {
                // The device may still have it.
                this.leave();
                (error, None)
            }
        };
        Poll::Ready(Err(Failed { error, memory }))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading")
            .field("number", &self.number)
            .field("has_returned", &self.open.is_none())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Reads {
    /// The destinations of those that were given up, and how far the reads are.
    ops: Ops<Lease, WcFailure>,
    /// The most of them in flight. A commit finds its slots in any case.
    most: u32,
    /// The numbers of those in flight. Other completions come as well: of operations that the
    /// program has posted by itself, and of failed parts of commits.
    in_flight: VecDeque<u64>,
    completed: u64,
}

impl Reads {
    pub(super) fn new(most: u32) -> Self {
        Self {
            ops: Ops::new(most),
            most,
            in_flight: VecDeque::with_capacity(most as usize),
            completed: 0,
        }
    }

    /// How many have completed: it only grows.
    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether a device may use a destination.
    pub(super) fn is_one_in_flight(&self) -> bool {
        !self.in_flight.is_empty() || self.ops.keeps()
    }

    pub(super) fn is_complete(&self, number: u64) -> bool {
        number < self.ops.done()
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() < self.most as usize
    }

    /// Takes a completion that is not the writer's.
    pub(super) fn settle(&mut self, wc: &Wc) {
        if let Some(posted) = wc.posted() {
            self.note(posted.number(), wc.result().map(drop));
        }
    }

    fn note(&mut self, number: u64, outcome: Result<(), WcFailure>) {
        self.ops.note(number, outcome);
        while self.in_flight.front().is_some_and(|of| *of <= number) {
            self.in_flight.pop_front();
            self.completed += 1;
        }
    }

    /// A destination that no device uses, and for which no future waits.
    pub(super) fn free(&mut self) -> Option<Held> {
        match self.ops.go()? {
            Go::Free(dst) => Some(Held::Lease(dst)),
            Go::Wake(_) => None,
        }
    }

    /// Whether there is one.
    pub(super) fn is_one_free(&self) -> bool {
        self.ops.goes()
    }

    /// No future waits for it any more. Returns the destination if it is complete.
    fn abandon(&mut self, number: u64, dst: Lease) -> Option<Lease> {
        self.ops.abandon(number, dst)
    }
}

impl WriterState {
    /// Posts a read, and returns its number.
    pub(super) fn read(
        &mut self,
        dst: Lease,
        src: RemoteSlice,
    ) -> Result<(u64, Lease), Refused<Lease>> {
        let refused = |error, memory| Err(Refused { error, memory });
        if let Err(error) = dst.prepare_read() {
            return refused(error, Some(dst));
        }
        if !self.reads.has_room() {
            let (queue, depth) = (Queue::Send, self.reads.most);
            return refused(Error::QueueFull { queue, depth }, Some(dst));
        }
        let conn = self.writer().conn();
        let post = |region| conn.read(region, src, Flags::COMPLETION_ALWAYS, 0);
        match dst.destination().and_then(post) {
            Ok(posted) => {
                self.reads.in_flight.push_back(posted.number());
                Ok((posted.number(), dst))
            }
            // The device may have it.
            Err(error @ Error::Provider { .. }) => {
                self.reads.ops.keep(dst);
                refused(error, None)
            }
            Err(error) => refused(error, Some(dst)),
        }
    }

    fn read_result(&mut self, number: u64) -> Option<Result<Result<()>>> {
        match self.reads.ops.outcome(number) {
            Some(Ok(())) => Some(Ok(Ok(()))),
            Some(Err(failure)) => Some(Ok(Err(reason(failure, self.writer().conn())))),
            // The last completion comes after the end.
            None if self.was_quiet => Some(Err(self.why_over())),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The completion of an operation that the program has posted by itself, or of a failed part of
    /// a commit, is not that of a read: the device still has the block.
    #[test]
    fn an_earlier_operation_is_no_read() {
        let mut reads = Reads::new(2);
        reads.in_flight.extend([6, 8]);
        for number in [3, 5] {
            reads.note(number, Ok(()));
            assert_eq!((reads.in_flight.len(), reads.completed()), (2, 0));
            assert!(!reads.has_room());
        }
        reads.note(7, Ok(()));
        assert_eq!((reads.in_flight.len(), reads.completed()), (1, 1));
        assert!(reads.is_complete(6) && !reads.is_complete(8));
        reads.note(8, Ok(()));
        assert!(!reads.is_one_in_flight() && reads.has_room());
    }
}
