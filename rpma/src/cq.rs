//! [`Cq`]: a completion queue (`struct rpma_cq`).
//!
//! It is made with its connection, or with its shared receive queue, and lives as long as that and its other
//! handles. It owns the verbs queue and a share of the completion channel; the queue is destroyed after the queue
//! pairs that use it and before the channel.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::compl_channel;
use crate::error::{Error, Result};
use crate::slots::{ConnSlots, Held, Kind, Pool};
use crate::verbs::{
    CompChannel, CompletionQueue, CqTag, Deadline, Notify, Wc, WcFailure, WcStatus, check_poll,
};

const INCOMPLETE: &str = "the operation did not complete";

/// A completion queue. Clones are handles of the same queue, and may stay longer than its connection: so one can live
/// in a struct beside whatever watches its descriptor. When the connection is gone nothing comes any more. (What
/// had come
/// may be gone with it: adapters take it out of the queue.)
///
/// The way to wait for completions: [`wait`](Self::wait), then [`get_wc`](Self::get_wc) until it
/// returns 0, then `wait` again. The queue is armed before `wait` returns, so a completion that comes
/// while the queue is being drained gives another event, and none is missed.
///
/// # Threads
///
/// Threads may poll and arm it at the same time, and poll one after the other: a lock is held while one
/// does. Each completion goes to one of them. [`wait_for`](Self::wait_for) is for one thread at a time.
#[derive(Clone, Debug)]
pub struct Cq {
    polled: Polled,
    shared: bool,
    handles: Arc<Handles>,
}

/// What all handles of a queue have together.
#[derive(Debug)]
struct Handles {
    /// Held by [`Cq::wait_for`].
    waiting_for_one: Mutex<()>,
    polled: Polled,
}

/// A queue, and whose completions it has. Clones are handles of the same queue.
#[derive(Clone, Debug)]
pub(crate) struct Polled {
    queue: Arc<CompletionQueue>,
    owners: Owners,
    /// Of a shared receive queue's own queue: what was taken out of it before a queue pair was destroyed, as the
    /// device has told it.
    kept: Option<Arc<Mutex<VecDeque<Wc>>>>,
}

/// Whose slots come back when completions are polled.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    /// The connection, unless the queue belongs to a shared receive queue.
    pub(crate) conn: Option<Arc<ConnSlots>>,
    /// The shared receive queue whose receives complete in this queue.
    pub(crate) srq: Option<Arc<Pool>>,
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
    pub(crate) owners: Owners,
}

impl Cq {
    pub(crate) fn new(attr: CqAttr<'_>) -> Result<Self> {
        let queue = CompletionQueue::new(attr.channel, attr.entries, attr.tag, attr.notify)?;
        let kept = attr.owners.conn.is_none().then(Arc::default);
        let polled = Polled {
            queue,
            owners: attr.owners,
            kept,
        };
        Ok(Self {
            handles: Arc::new(Handles {
                waiting_for_one: Mutex::new(()),
                polled: polled.clone(),
            }),
            polled,
            shared: attr.shared,
        })
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.polled.queue
    }

    /// Whether its channel is also that of other queues.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn polled(&self) -> &Polled {
        &self.polled
    }

    /// Which completions the queue gives events for.
    pub(crate) fn notify(&self) -> Notify {
        self.polled.queue.notify()
    }

    /// The descriptor of the queue's completion channel, as [`AsRawFd`] gives it.
    ///
    /// For `poll`, `epoll` and `fcntl` only: whoever reads from it steals an event, which can stop other
    /// threads' waits on the channel, whatever their limits, and makes the drop of the queue wait for ever. It
    /// is readable when [`wait`](Self::wait) will not block. Where queues share a channel, this is that channel's.
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
        compl_channel::wait(self.polled.queue.channel(), self.notify(), deadline).map(drop)
    }

    /// Asks for one event when the next completion of that kind arrives, and again after each event.
    ///
    /// [`wait`](Self::wait) and its relatives do this by themselves, also in programs that learn from `poll`
    /// or `epoll` that there is something to wait for. This is to change what the queue gives events for,
    /// and to arm it after a wait has failed to. An earlier request
    /// that has not given its event yet stays in force: a queue that was made for every completion
    /// gives one such event more. What is in the queue already gives no event.
    /// [`Notify::Solicited`] says what it misses.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_req_notify_cq` fails.
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        self.polled.queue.req_notify(notify)
    }

    /// Makes the descriptor of the queue's completion channel non-blocking, or blocking again: waits on the channel
    /// then return [`Error::NoCompletion`] at once if there is no event ([`Conn::next`](crate::Conn::next) has its
    /// limit in any case). Where queues share a channel, this is of all of them. Other threads may wait meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `fcntl` fails.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.polled.queue.channel().set_nonblocking(on)
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
        self.polled.get_wc(wcs)
    }

    /// Waits for the completion of the operation that was posted with `op_context`, for at most
    /// `limit`. Completions of other operations that come before it are handed to `other`.
    ///
    /// What comes after it stays in the queue, and may have no event left: poll until the queue is empty
    /// before you [`wait`](Self::wait). Another `wait_for` does that by itself.
    ///
    /// It does not look at the connection's events: a peer whose program was killed is known by its operations, after
    /// [`ConnCfg::set_ack_timeout`](crate::ConnCfg::set_ack_timeout) and its retries, where
    /// [`Conn::next`](crate::Conn::next) has [`ConnEvent::Closed`](crate::ConnEvent::Closed) at once.
    ///
    /// One thread at a time: it would be handed what another one waits for. Where several threads post, let
    /// one of them poll, and tell the others.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] while another thread is in this call.
    /// [`Error::Operation`] if the operation failed, with the reason: if an earlier failure ended the
    /// connection and this operation was only flushed, that is the earlier one
    /// ([`Conn::failure`](crate::Conn::failure)), also if `other` has had it. [`Error::TimedOut`] when the
    /// limit has passed. Otherwise as [`wait`](Self::wait) and [`get_wc`](Self::get_wc).
    pub fn wait_for(
        &self,
        op_context: u64,
        limit: Duration,
        mut other: impl FnMut(Wc),
    ) -> Result<Wc> {
        let _alone = match self.handles.waiting_for_one.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Error::invalid(
                    "another thread is in Cq::wait_for of this queue, and would be handed the completion \
                     that this one waits for: let one thread wait and tell the others",
                ));
            }
            locked => locked,
        };
        let deadline = Deadline::after(limit);
        loop {
            // One at a time: what comes after it stays in the queue.
            let mut wcs = [Wc::default()];
            while self.get_wc(&mut wcs)? > 0 {
                if wcs[0].wr_id() == op_context {
                    return match wcs[0].result() {
                        Ok(_) => Ok(wcs[0]),
                        Err(failure) => Err(self.reason(failure).into()),
                    };
                }
                other(wcs[0]);
                if deadline.has_passed() {
                    return Err(Error::TimedOut(INCOMPLETE));
                }
            }
            self.wait_until(deadline).map_err(|error| match error {
                Error::NoCompletion if deadline.has_passed() => Error::TimedOut(INCOMPLETE),
                error => error,
            })?;
        }
    }

    /// Why an operation failed: a flushed one because of another.
    fn reason(&self, failure: WcFailure) -> WcFailure {
        let flushed = failure.status == WcStatus::WR_FLUSH_ERR;
        let first = self
            .polled
            .owners
            .conn
            .as_ref()
            .and_then(|conn| conn.failure());
        first.filter(|_| flushed).unwrap_or(failure)
    }

    /// Destroys the queue, if this is its last handle, and, if it is the last user, its channel.
    pub(crate) fn destroy(self) -> Result<()> {
        let queue = Arc::clone(&self.polled.queue);
        drop(self);
        queue.destroy()
    }
}

impl Polled {
    /// See [`Cq::get_wc`].
    #[inline(always)]
    fn get_wc(&self, wcs: &mut [Wc]) -> Result<usize> {
        let Some(conn) = &self.owners.conn else {
            return self.get_shared(wcs);
        };
        // Until the entries of the completions have been read.
        let held = self.queue.lock_polling();
        let polled = self.queue.poll(wcs);
        if polled != 0 {
            let left = match wcs.get_mut(..polled as usize) {
                Some(wcs) => conn.settle(wcs),
                _ => polled as usize,
            };
            if left != 0 {
                return self.settle_rest(held, wcs, polled, left);
            }
        }
        drop(held);
        Ok(polled as usize)
    }

    /// Settles what was polled, of which so many are left.
    #[cold]
    #[inline(never)]
    fn settle_rest(
        &self,
        held: Held<'_>,
        wcs: &mut [Wc],
        polled: c_int,
        left: usize,
    ) -> Result<usize> {
        let count = check_poll(polled)?;
        let kept = self.settle_each(&mut wcs[..count], count - left, |_, _| {});
        drop(held);
        Ok(kept)
    }

    /// As [`get_wc`](Self::get_wc), of a shared receive queue's own queue.
    #[inline(never)]
    fn get_shared(&self, wcs: &mut [Wc]) -> Result<usize> {
        self.poll(wcs, |_, _| {})
    }

    /// As [`Cq::get_wc`], and tells which markers have come.
    pub(crate) fn poll(&self, wcs: &mut [Wc], marker: impl FnMut(Kind, WcStatus)) -> Result<usize> {
        let _held = self.queue.lock_polling();
        // What was kept came first.
        let mut count = self.kept().map_or(0, |mut kept| {
            let count = wcs.len().min(kept.len());
            let from = kept.drain(..count);
            wcs.iter_mut().zip(from).for_each(|(wc, kept)| *wc = kept);
            count
        });
        if count < wcs.len() {
            match check_poll(self.queue.poll(&mut wcs[count..])) {
                Ok(polled) => count += polled,
                // What was kept has been taken, and is told; the failure will come again.
                Err(error) if count == 0 => return Err(error),
                Err(error) => log::warn!("{error}"),
            }
        }
        Ok(self.settle_each(&mut wcs[..count], 0, marker))
    }

    fn kept(&self) -> Option<MutexGuard<'_, VecDeque<Wc>>> {
        // Nothing panics while it is locked.
        let kept = self.kept.as_ref()?;
        Some(kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A queue pair whose receives complete here is destroyed next: adapters take its completions out of the queue
    /// then. Of a connection's queue nobody polls them any more, and the slots of shared receives come back; of a
    /// shared receive queue's own they are kept, with their slots, for who polls it.
    pub(crate) fn before_destroy(&self) {
        if self.kept.is_none() {
            return self.drain();
        }
        // In this order, as where both are polled.
        let _held = self.queue.lock_polling();
        let Some(mut kept) = self.kept() else {
            return;
        };
        let mut wcs = [Wc::default(); 16];
        loop {
            match check_poll(self.queue.poll(&mut wcs)) {
                Ok(0) => return,
                Ok(count) => kept.extend(&wcs[..count]),
                Err(error) => return not_drained(&error),
            }
        }
    }

    /// Gives the slots back of what was polled, and puts the program's numbers into it; the first ones are
    /// `settled` already. Takes the markers out, and returns how many are left.
    fn settle_each(
        &self,
        wcs: &mut [Wc],
        settled: usize,
        mut marker: impl FnMut(Kind, WcStatus),
    ) -> usize {
        let mut kept = settled;
        for next in settled..wcs.len() {
            match self.settle(&mut wcs[next]) {
                None => {
                    wcs[kept] = wcs[next];
                    kept += 1;
                }
                Some(kind) => marker(kind, wcs[next].status()),
            }
        }
        kept
    }

    /// Gives the slots of a request back and the program's number to its completion. Returns its kind if
    /// it is a marker, which is not the program's.
    #[inline]
    fn settle(&self, wc: &mut Wc) -> Option<Kind> {
        let Some((kind, op_context)) = self.complete(wc.wr_id()) else {
            log::error!("{wc:?}: the device completes what was not posted");
            return None;
        };
        wc.set_wr_id(op_context);
        if !matches!(kind, Kind::Send | Kind::Receive | Kind::SharedReceive) {
            return Some(kind);
        }
        if let (Err(failure), Some(conn)) = (wc.result(), &self.owners.conn) {
            conn.fail(failure);
        }
        None
    }

    /// The kind of a request and its `op_context`.
    #[inline]
    fn complete(&self, wr_id: u64) -> Option<(Kind, u64)> {
        let (kind, number) = Kind::of(wr_id)?;
        let op_context = match kind {
            Kind::SharedReceive => self.owners.srq.as_ref()?.complete(number)?,
            _ => self.owners.conn.as_ref()?.complete(kind, number)?,
        };
        Some((kind, op_context))
    }

    /// Whether receives of a shared receive queue complete here, on a connection's queue.
    pub(crate) fn takes_shared_receives(&self) -> bool {
        self.owners.srq.is_some() && self.owners.conn.is_some()
    }

    /// Takes what nobody has polled: the slots of shared receives come back.
    fn drain(&self) {
        let (mut wcs, mut markers) = ([Wc::default(); 16], 0);
        loop {
            let before = markers;
            match self.poll(&mut wcs, |_, _| markers += 1) {
                Ok(count) if count > 0 || markers > before => {}
                Ok(_) => return,
                Err(error) => return not_drained(&error),
            }
        }
    }
}

/// Of a queue that is polled where nobody can be told.
#[cold]
fn not_drained(error: &Error) {
    log::error!("{error}; messages that have arrived may be lost, and the slots of their receives");
}

impl Drop for Handles {
    /// With the last handle: what has come since its queue pair was about to be destroyed.
    fn drop(&mut self) {
        if self.polled.takes_shared_receives() {
            self.polled.drain();
        }
    }
}

impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.polled.queue.channel().as_fd()
    }
}

impl AsRawFd for Cq {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
