//! [`Op`]: an operation that was posted, and is awaited.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rpma::Error;

use super::Shared;
use super::memory::{self, Memory};
use super::shared::{Awaited, Awaiting};
use crate::block_on;
use crate::error::Failed;

/// Waits for the completion of a posted operation. It is a future that only waits: the operation
/// goes on whether it is awaited or not. Operations of one connection are executed in the order of
/// their posts.
///
/// The result is the operation's memory. [`Failed`] is the error of an operation that failed.
///
/// # Cancel safety
///
/// It may be dropped after any poll. [`detach`](Self::detach) only drops it. The operation goes
/// on, and its memory goes back to the pool when it is complete, even if no task waits. Its
/// outcome is lost, but a failure ends the connection.
///
/// # Errors
///
/// [`Error::Operation`] or the first failure of the connection if the operation failed, and
/// [`Error::Ended`] if the peer ended the connection before the operation completed.
///
/// After the driver was dropped, an `Op` returns its result if the operation is complete.
/// Otherwise it returns [`Error::InvalidArgument`] with a text about the driver, and the outcome of
/// the operation is unknown.
#[must_use = "the operation goes on, and its outcome is lost: await it, or detach it"]
pub struct Op<B: Memory> {
    shared: Arc<Shared>,
    awaiting: Awaiting,
    /// `None` when it has returned.
    memory: Option<B>,
}

impl<B: Memory> Op<B> {
    #[inline]
    pub(super) fn new(shared: Arc<Shared>, number: u64, memory: B) -> Self {
        Self {
            shared,
            awaiting: Awaiting::new(number),
            memory: Some(memory),
        }
    }

    /// Lets the operation go on, and does not wait for it.
    pub fn detach(self) {}

    /// Waits for at most `limit`, on this thread: for programs without a runtime
    /// ([`Reactor::on_thread`](crate::Reactor::on_thread)).
    ///
    /// # Errors
    ///
    /// [`Failed`] with [`Error::TimedOut`] when the limit has passed: the operation goes on, and
    /// its memory goes back to its pool. Otherwise as the future.
    pub fn wait(self, limit: Duration) -> Result<B, Failed<B>> {
        block_on(self, limit).unwrap_or(Err(Failed {
            error: Error::TimedOut("the operation did not complete, and goes on"),
            memory: None,
        }))
    }
}

impl<B: Memory> Op<B> {
    /// It is complete, but has not come by itself, or it has failed.
    #[cold]
    #[inline(never)]
    fn finish(&mut self, failed: Option<Box<Error>>) -> Result<B, Failed<B>> {
        let awaited = match failed {
            Some(error) => Awaited::Unknown(*error),
            None => self.shared.finish(&mut self.awaiting),
        };
        let memory = self.memory.take();
        match awaited {
            Awaited::Succeeded => {
                let memory = memory.map(memory::succeeded);
                memory.ok_or_else(|| unreachable!("it was there"))
            }
            Awaited::Failed(error) => Err(Failed { error, memory }),
            Awaited::Unknown(error) => {
                let held = memory.and_then(memory::into_held);
                self.shared.abandon(&mut self.awaiting, held);
                Err(Failed {
                    error,
                    memory: None,
                })
            }
        }
    }
}

impl<B: Memory> Future for Op<B> {
    type Output = Result<B, Failed<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        assert!(
            this.memory.is_some(),
            "an operation that was awaited is polled again"
        );
        let has_succeeded = if this.awaiting.has_slept() {
            this.shared.poll_woken(&this.awaiting)
        } else {
            this.shared.poll_own(&mut this.awaiting, cx)
        };
        if has_succeeded {
            if let Some(memory) = this.memory.take() {
                return Poll::Ready(Ok(memory::succeeded(memory)));
            }
        }
        match this.shared.look(&mut this.awaiting, cx) {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(this.finish(None)),
            Err(error) => Poll::Ready(this.finish(Some(error))),
        }
    }
}

impl<B: Memory> Drop for Op<B> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let held = memory::into_held(memory);
            self.shared.abandon(&mut self.awaiting, held);
        }
    }
}

impl<B: Memory> fmt::Debug for Op<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op")
            .field("number", &self.awaiting.number)
            .field("has_returned", &self.memory.is_none())
            .finish_non_exhaustive()
    }
}
