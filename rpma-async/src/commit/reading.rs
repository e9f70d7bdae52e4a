//! [`Reading`]: an awaited read on the connection of a writer.
//!
//! The writer owns the destinations of its reads, as it owns the sources of its commits
//! ([`Reads`]). A [`Reading`] has only the name of its read. So it may be dropped or forgotten at
//! any time, and the block is torn down with the writer. Who looks at the connection settles the
//! reads as well.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rpma::{Error, Flags, Posted, Queue, RemoteSlice, Result, Wc, WcFailure};

use super::lock;
use super::state::{WriterShared, WriterState};
use crate::error::{Failed, Refused, reason};
use crate::pool::Lease;
use crate::watched::{Look, Sleeper};

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
    /// `None` when it has returned.
    read: Option<(Arc<WriterShared>, Posted)>,
    sleeper: Sleeper,
}

impl Reading {
    pub(super) fn new(shared: Arc<WriterShared>, posted: Posted) -> Self {
        Self {
            sleeper: Sleeper::new(shared.watched()),
            read: Some((shared, posted)),
        }
    }

    /// Gives the read up, if it has not returned.
    fn leave(&mut self) {
        if let Some((shared, posted)) = self.read.take() {
            self.sleeper.leave(shared.watched());
            let dst = lock(shared.state()).reads.abandon(posted);
            // Without the lock: tasks that wait for a block are woken.
            drop(dst);
        }
    }
}

impl Future for Reading {
    type Output = Result<Lease, Failed<Lease>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { read, sleeper } = &mut *self;
        let (shared, posted) = read
            .as_ref()
            .expect("a read that was awaited is polled again");
        let look = || {
            shared.with(|state| match state.read_result(*posted) {
                Some(result) => Look::Ready(result),
                None => Look::Until(state.wait()),
            })
        };
        let polled = ready!(sleeper.poll(shared.watched(), cx, look));
        // The device may still have it, if the wait has failed.
        self.leave();
        Poll::Ready(polled.unwrap_or_else(|error| {
            Err(Failed {
                error,
                memory: None,
            })
        }))
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
            .field("posted", &self.read.as_ref().map(|(_, posted)| posted))
            .finish_non_exhaustive()
    }
}

/// The reads of a writer, with their destinations.
#[derive(Debug)]
pub(super) struct Reads {
    /// In the order of their posts, until their futures have returned.
    reads: VecDeque<Read>,
    /// The most of them. A commit finds its slots in any case.
    most: u32,
    /// How many have completed.
    completed: u64,
    /// Destinations of abandoned reads, which are complete.
    free: Vec<Lease>,
}

#[derive(Debug)]
struct Read {
    /// `None`: the post failed, and the device may have the request.
    posted: Option<Posted>,
    dst: Lease,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    InFlight,
    /// In flight, and its future is gone.
    Abandoned,
    Complete(Result<(), WcFailure>),
}

impl Reads {
    /// Room for `most` reads.
    pub(super) fn new(most: u32) -> Self {
        let room = most as usize;
        Self {
            reads: VecDeque::with_capacity(room),
            most,
            completed: 0,
            free: Vec::with_capacity(room),
        }
    }

    /// How many have completed: it only grows.
    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether a device may use a destination, or a future waits for one.
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    fn has_room(&self) -> bool {
        self.reads.len() < self.most as usize
    }

    fn push(&mut self, posted: Option<Posted>, dst: Lease) {
        self.reads.push_back(Read {
            posted,
            dst,
            progress: Progress::InFlight,
        });
    }

    /// Takes a completion that is not the writer's.
    pub(super) fn settle(&mut self, wc: &Wc) {
        let Some(at) = wc.posted().and_then(|posted| self.position(posted)) else {
            return;
        };
        self.completed += 1;
        match self.reads[at].progress {
            Progress::Abandoned => self.free.extend(self.reads.remove(at).map(|read| read.dst)),
            _ => self.reads[at].progress = Progress::Complete(wc.result().map(drop)),
        }
    }

    /// A destination that no device uses, and for which no future waits.
    pub(super) fn free(&mut self) -> Option<Lease> {
        self.free.pop()
    }

    fn position(&self, posted: Posted) -> Option<usize> {
        // Completions come in the order of posts: it is among the first ones.
        self.reads.iter().position(|of| of.posted == Some(posted))
    }

    fn take(&mut self, posted: Posted) -> Option<(Lease, Result<(), WcFailure>)> {
        let at = self.position(posted)?;
        let Progress::Complete(result) = self.reads[at].progress else {
            return None;
        };
        self.reads.remove(at).map(|read| (read.dst, result))
    }

    /// No future waits for it any more. Returns the destination if it is complete.
    fn abandon(&mut self, posted: Posted) -> Option<Lease> {
        let at = self.position(posted)?;
        match self.reads[at].progress {
            Progress::Complete(_) => self.reads.remove(at).map(|read| read.dst),
            _ => {
                self.reads[at].progress = Progress::Abandoned;
                None
            }
        }
    }
}

impl WriterState {
    /// Posts a read.
    pub(super) fn read(&mut self, dst: Lease, src: RemoteSlice) -> Result<Posted, Refused<Lease>> {
        let refused = |error, memory| Err(Refused { error, memory });
        if let Err(error) = dst.prepare_read() {
            return refused(error, Some(dst));
        }
        // Completions that no task has waited for give room.
        if !self.reads.has_room() {
            self.look();
        }
        if !self.reads.has_room() {
            let (queue, depth) = (Queue::Send, self.reads.most);
            return refused(Error::QueueFull { queue, depth }, Some(dst));
        }
        let conn = self.writer().conn();
        let post = |region| conn.read(region, src, Flags::COMPLETION_ALWAYS, 0);
        match dst.destination().and_then(post) {
            Ok(posted) => {
                self.reads.push(Some(posted), dst);
                Ok(posted)
            }
            // The device may have it.
            Err(error @ Error::Provider { .. }) => {
                self.reads.push(None, dst);
                refused(error, None)
            }
            Err(error) => refused(error, Some(dst)),
        }
    }

    /// The result of a read, after a look at the connection.
    fn read_result(&mut self, posted: Posted) -> Option<Result<Lease, Failed<Lease>>> {
        let mut taken = self.reads.take(posted);
        // Before the look: the last one comes after the end.
        let nothing_comes = self.is_quiet();
        if taken.is_none() {
            self.look();
            taken = self.reads.take(posted);
        }
        match taken {
            Some((mut dst, Ok(()))) => {
                dst.take_read();
                Some(Ok(dst))
            }
            Some((dst, Err(failure))) => Some(Err(Failed {
                error: reason(failure, self.writer().conn()),
                memory: Some(dst),
            })),
            None if nothing_comes => Some(Err(Failed {
                error: self.why_over(),
                memory: None,
            })),
            None => None,
        }
    }
}
