//! [`Cq`]: a completion queue (`struct rpma_cq`).
//!
//! It is made with its connection and lives as long as that. It owns the verbs queue and a share of the
//! completion channel; the queue is destroyed after the queue pair that uses it and before the channel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::credits::{Credits, State};
use crate::error::{Error, Result};
use crate::verbs::{CompChannel, CompletionQueue, Context, Deadline, Wc};

/// A completion queue of a connection.
///
/// The way to wait for completions: [`wait`](Self::wait), then [`get_wc`](Self::get_wc) until it
/// returns 0, then `wait` again. The queue is armed before `wait` returns, so a completion that comes
/// while the queue is being drained gives another event, and none is missed.
#[derive(Debug)]
pub struct Cq {
    queue: Arc<CompletionQueue>,
    credits: Arc<Credits>,
}

impl Cq {
    pub(crate) fn new(
        context: &Arc<Context>,
        entries: u32,
        credits: &Arc<Credits>,
    ) -> Result<Self> {
        let channel = CompChannel::new(context)?;
        let queue = CompletionQueue::new(&channel, entries, 0)?;
        Ok(Self {
            queue,
            credits: Arc::clone(credits),
        })
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// The descriptor of the queue's completion channel, as [`AsRawFd`] gives it.
    ///
    /// For `poll`, `epoll` and `fcntl` only: whoever reads from it steals an event. It is readable when
    /// [`wait`](Self::wait) will not block.
    #[doc(alias = "rpma_cq_get_fd")]
    #[must_use]
    pub fn get_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    /// Waits for a completion event, without a limit.
    ///
    /// An event does not promise a completion: the one that caused it may have been polled already.
    /// After an event, poll until the queue is empty: what came before the queue was armed again gives
    /// no further event.
    ///
    /// # Errors
    ///
    /// [`Error::NoCompletion`] if the descriptor was made non-blocking and there is no event.
    /// [`Error::Provider`] if `ibv_get_cq_event` or `ibv_req_notify_cq` fails.
    #[doc(alias = "rpma_cq_wait")]
    pub fn wait(&self) -> Result<()> {
        match self.queue.channel().wait(Deadline::Never)? {
            Some(_key) => Ok(()),
            None => Err(Error::NoCompletion),
        }
    }

    /// Moves completions from the queue into `wcs`, as many as there are and fit, and returns how
    /// many; 0 if there are none. It never waits.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_poll_cq` fails.
    #[doc(alias = "rpma_cq_get_wc")]
    #[inline]
    pub fn get_wc(&self, wcs: &mut [Wc]) -> Result<usize> {
        let count = self.queue.poll(wcs)?;
        if count > 0 {
            self.settle(&wcs[..count]);
        }
        Ok(count)
    }

    /// Gives the slots of polled operations back, or ends the connection on a failure.
    #[inline]
    fn settle(&self, wcs: &[Wc]) {
        let mut sends = 0;
        for wc in wcs {
            match wc.result() {
                Ok(success) => sends += u32::from(!success.opcode().is_receive()),
                // The queue pair is in the error state. What kind of operation failed cannot be told,
                // and no slot is needed any more.
                Err(_failure) => self.credits.end(State::Failed),
            }
        }
        if sends > 0 {
            self.credits.polled_sends(sends);
        }
    }

    /// Destroys the queue and, if it is the last user, its channel.
    pub(crate) fn destroy(self) -> Result<()> {
        self.queue.destroy()
    }
}

impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.channel().as_fd()
    }
}

impl AsRawFd for Cq {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
