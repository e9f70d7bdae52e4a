//! [`Cq`]: a completion queue (`struct rpma_cq`).
//!
//! It is made with its connection, or with its shared receive queue, and lives as long as that. It owns
//! the verbs queue and a share of the completion channel; the queue is destroyed after the queue pairs
//! that use it and before the channel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::compl_channel;
use crate::credits::{Credits, RecvSlots, State};
use crate::error::{Error, Result};
use crate::verbs::{
    CompChannel, CompletionQueue, CqKind, CqTag, Deadline, Notify, Wc, WcFailure, WcStatus,
};

/// A completion queue.
///
/// The way to wait for completions: [`wait`](Self::wait), then [`get_wc`](Self::get_wc) until it
/// returns 0, then `wait` again. The queue is armed before `wait` returns, so a completion that comes
/// while the queue is being drained gives another event, and none is missed.
///
/// # Threads
///
/// Threads may poll and arm it at the same time, which the provider locks: each completion goes to one of
/// them.
#[derive(Debug)]
pub struct Cq {
    queue: Arc<CompletionQueue>,
    kind: CqKind,
    shared: bool,
    slots: Slots,
    /// Whether a failure has been counted as a shared receive queue's: see `may_be_a_receive`.
    receive_failed: AtomicBool,
}

/// Whose slots come back when completions are polled.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    /// The connection's, unless the queue belongs to a shared receive queue.
    pub(crate) conn: Option<Arc<Credits>>,
    /// Those of the shared receive queue whose receives complete in this queue.
    pub(crate) srq: Option<Arc<RecvSlots>>,
}

/// How a queue is made.
#[derive(Debug)]
pub(crate) struct CqAttr<'a> {
    pub(crate) channel: &'a Arc<CompChannel>,
    /// Whether other queues use the channel.
    pub(crate) shared: bool,
    pub(crate) entries: u32,
    pub(crate) tag: CqTag,
    pub(crate) notify: Notify,
    pub(crate) slots: Slots,
}

impl Cq {
    pub(crate) fn new(attr: CqAttr<'_>) -> Result<Self> {
        let queue = CompletionQueue::new(attr.channel, attr.entries, attr.tag, attr.notify)?;
        Ok(Self {
            queue,
            kind: attr.tag.kind,
            shared: attr.shared,
            slots: attr.slots,
            receive_failed: AtomicBool::new(false),
        })
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Which completions the queue gives events for.
    pub(crate) fn notify(&self) -> Notify {
        self.queue.notify()
    }

    /// The descriptor of the queue's completion channel, as [`AsRawFd`] gives it.
    ///
    /// For `poll`, `epoll` and `fcntl` only: whoever reads from it steals an event. It is readable when
    /// [`wait`](Self::wait) will not block. Where queues share a channel, this is that channel's.
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
    /// If the queue gives events for solicited completions only, the wait returns after a second at the
    /// latest: see [`Notify::Solicited`].
    ///
    /// # Errors
    ///
    /// [`Error::SharedChannel`] if the queue does not have its channel for itself.
    /// [`Error::NoCompletion`] if the descriptor was made non-blocking and there is no event.
    /// [`Error::Provider`] if `ibv_get_cq_event` or `ibv_req_notify_cq` fails.
    #[doc(alias = "rpma_cq_wait")]
    pub fn wait(&self) -> Result<()> {
        self.wait_until(Deadline::Never)
    }

    /// As [`wait`](Self::wait), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`Error::NoCompletion`] when the limit has passed.
    pub fn wait_timeout(&self, limit: Duration) -> Result<()> {
        self.wait_until(Deadline::after(limit))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<()> {
        if self.shared {
            return Err(Error::SharedChannel);
        }
        compl_channel::wait(self.queue.channel(), self.notify(), deadline).map(drop)
    }

    /// Asks for one event when the next completion of that kind arrives, and again after each event.
    ///
    /// [`wait`](Self::wait) and its relatives do this by themselves; it is for programs that wait in
    /// another way (`poll`, `epoll`), and to change what the queue gives events for. An earlier request
    /// that has not given its event yet stays in force: a queue that was made for every completion
    /// gives one such event more. What is in the queue already gives no event.
    /// [`Notify::Solicited`] says what it misses.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_req_notify_cq` fails.
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        self.queue.req_notify(notify)
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

    /// Waits for the completion of the operation that was posted with `op_context`, for at most
    /// `limit`. Completions of other operations that come before it are handed to `other`.
    ///
    /// What comes after it stays in the queue, and may have no event left: poll until the queue is empty
    /// before you [`wait`](Self::wait). Another `wait_for` does that by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Operation`] if the operation failed. [`Error::NoCompletion`] when the limit has passed.
    /// Otherwise as [`wait`](Self::wait) and [`get_wc`](Self::get_wc).
    pub fn wait_for(
        &self,
        op_context: u64,
        limit: Duration,
        mut other: impl FnMut(Wc),
    ) -> Result<Wc> {
        let deadline = Deadline::after(limit);
        loop {
            // One at a time: what comes after it stays in the queue.
            let mut wcs = [Wc::default()];
            while self.get_wc(&mut wcs)? > 0 {
                if wcs[0].wr_id() == op_context {
                    wcs[0].result()?;
                    return Ok(wcs[0]);
                }
                other(wcs[0]);
                if deadline.has_passed() {
                    return Err(Error::NoCompletion);
                }
            }
            self.wait_until(deadline)?;
        }
    }

    /// Gives the slots of polled operations back, or ends the connection on a failure.
    #[inline]
    fn settle(&self, wcs: &[Wc]) {
        let (mut sends, mut receives, mut failed) = (0, 0, false);
        for wc in wcs {
            match wc.result() {
                Ok(success) if success.opcode().is_receive() => receives += 1,
                Ok(_) => sends += 1,
                Err(failure) => {
                    failed = true;
                    let receive = self.kind == CqKind::Receive || self.may_be_a_receive(&failure);
                    receives += u32::from(receive);
                }
            }
        }
        if let Some(conn) = &self.slots.conn {
            if sends > 0 {
                conn.polled_sends(sends);
            }
            if failed {
                conn.end(State::Failed);
            }
        }
        if receives > 0 {
            match (&self.slots.srq, &self.slots.conn) {
                (Some(srq), _) => srq.give_back(receives),
                (None, Some(conn)) => conn.receive().give_back(receives),
                (None, None) => {}
            }
        }
    }

    /// Whether a failure in a queue of sends and receives is counted as a receive's. It does not say what
    /// it is, so the first counts that can be one. A connection that fails takes at most one receive
    /// from a shared receive queue with it. One slot too many is made good when that queue is empty; one
    /// too few would be lost for ever.
    #[cold]
    fn may_be_a_receive(&self, failure: &WcFailure) -> bool {
        let only_sends = [
            WcStatus::RETRY_EXC_ERR,
            WcStatus::RNR_RETRY_EXC_ERR,
            // Sends are flushed whenever a connection ends, receives of a shared receive queue hardly ever.
            WcStatus::WR_FLUSH_ERR,
        ];
        self.slots.srq.is_some()
            && !only_sends.contains(&failure.status)
            && !self.receive_failed.swap(true, Ordering::Relaxed)
    }

    /// Destroys the queue and, if it is the last user, its channel.
    pub(crate) fn destroy(self) -> Result<()> {
        let queue = Arc::clone(&self.queue);
        drop(self);
        queue.destroy()
    }
}

impl Drop for Cq {
    /// Receives of a shared receive queue whose completions nobody has polled: their slots come back.
    fn drop(&mut self) {
        if self.slots.srq.is_none() || self.slots.conn.is_none() {
            return;
        }
        let mut wcs = [Wc::default(); 16];
        while let Ok(1..) = self.get_wc(&mut wcs) {}
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
