//! [`Cq`]: a completion queue (`struct rpma_cq`).
//!
//! It is made with its connection, or with its shared receive queue, and lives as long as that and
//! its other handles. It owns the verbs queue and a share of the completion channel. The queue is
//! destroyed after the queue pairs that use it and before the channel.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::compl_channel;
use crate::error::{Error, Result};
use crate::lock::Held;
use crate::slots::{ConnSlots, Kind, Pool};
use crate::verbs::{CompChannel, CompletionQueue, CqTag, Deadline, Notify, Wc, check_poll};

/// A completion queue. Clones are handles of the same queue, and may outlive its connection. So a
/// struct can own a handle together with an event-loop object that watches its descriptor, such as
/// tokio's `AsyncFd`. When the connection is gone no completion comes any more, and
/// [`wait`](Self::wait) is an error. Earlier completions may be gone with the connection:
/// [adapters](crate#terms) take them out of the queue.
///
/// The way to wait for completions: [`wait`](Self::wait), then [`get_wc`](Self::get_wc) until it
/// returns 0, then `wait` again. The queue is armed before `wait` returns. So a completion that
/// comes while the queue is being drained gives another event, and no completion is missed. To
/// wait for one operation, use [`Conn::wait_for`](crate::Conn::wait_for).
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpma::{Cq, Error, Result, Wc};
///
/// /// Handles completions until none has come for ten seconds.
/// fn handle_all(cq: &Cq) -> Result<()> {
///     let mut wcs = [Wc::default(); 16];
///     loop {
///         match cq.wait_timeout(Duration::from_secs(10)) {
///             Err(Error::NoCompletion) => return Ok(()),
///             waited => waited?,
///         }
///         loop {
///             let polled = cq.get_wc(&mut wcs)?;
///             if polled == 0 {
///                 break;
///             }
///             for wc in &wcs[..polled] {
///                 println!("operation {} completed: {:?}", wc.wr_id(), wc.status());
///             }
///         }
///     }
/// }
/// ```
///
/// # Threads
///
/// Threads may poll and arm the queue at the same time. A lock lets one thread poll after the
/// other. Each completion goes to one of them.
#[derive(Clone)]
pub struct Cq {
    polled: Polled,
    shared: bool,
    _handles: Arc<Handles>,
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("queue", &self.polled.queue)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

/// Is dropped with the last handle of a queue.
#[derive(Debug)]
struct Handles {
    polled: Polled,
}

/// A queue, and the owners of its completions. Clones are handles of the same queue.
#[derive(Clone, Debug)]
pub(crate) struct Polled {
    queue: Arc<CompletionQueue>,
    owners: Owners,
    /// Filled only if the queue is a shared receive queue's own.
    kept: Arc<LeftCompletions>,
}

/// Completions that were taken out of a queue before a queue pair was destroyed, as the device gave
/// them. For the holder of the queue's lock.
#[derive(Debug, Default)]
struct LeftCompletions {
    is_filled: AtomicBool,
    wcs: Mutex<VecDeque<Wc>>,
}

impl LeftCompletions {
    #[inline(always)]
    fn is_empty(&self) -> bool {
        !self.is_filled.load(Ordering::Relaxed)
    }

    /// Moves completions into `wcs`, and returns how many.
    fn take(&self, wcs: &mut [Wc]) -> usize {
        let mut kept = self.lock();
        let count = wcs.len().min(kept.len());
        let from = kept.drain(..count);
        wcs.iter_mut().zip(from).for_each(|(wc, kept)| *wc = kept);
        self.is_filled.store(!kept.is_empty(), Ordering::Relaxed);
        count
    }

    fn add(&self, wcs: &[Wc]) {
        self.lock().extend(wcs);
        self.is_filled.store(true, Ordering::Relaxed);
    }

    /// The queue pair is gone, and a new one may get its number.
    fn forget(&self, qp_num: u32) {
        let mut kept = self.lock();
        let of_it = kept.iter_mut().filter(|wc| wc.qp_num() == qp_num);
        of_it.for_each(Wc::set_gone);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Wc>> {
        // No code panics while it is locked.
        self.wcs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Got {
    /// It, and it has succeeded.
    Expected,
    /// Another one, or it has failed.
    Other,
    Nothing,
}

impl Got {
    fn of(polled: Result<usize>) -> Result<Self, Box<Error>> {
        match polled? {
            0 => Ok(Self::Nothing),
            _ => Ok(Self::Other),
        }
    }
}

/// The owners of slots that come back when completions are polled.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    /// The connection, unless the queue belongs to a shared receive queue.
    pub(crate) conn: Option<Arc<ConnSlots>>,
    /// The shared receive queue with receives that complete in this queue.
    pub(crate) srq: Option<Arc<Pool>>,
}

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
        let polled = Polled {
            queue,
            owners: attr.owners,
            kept: Arc::default(),
        };
        Ok(Self {
            _handles: Arc::new(Handles {
                polled: polled.clone(),
            }),
            polled,
            shared: attr.shared,
        })
    }

    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.polled.queue
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn polled(&self) -> &Polled {
        &self.polled
    }

    pub(crate) fn notify(&self) -> Notify {
        self.polled.queue.notify()
    }

    /// Refuses a wait, which would miss the completions without an event.
    pub(crate) fn refuse_solicited(&self, wait: &str) -> Result<()> {
        match self.notify() {
            Notify::Any => Ok(()),
            Notify::Solicited => Err(Error::invalid(format!(
                "a queue gives events for solicited completions only (Notify::Solicited), and {wait} would                  miss the others: wait with Cq::wait, Conn::wait or CompletionChannel::wait"
            ))),
        }
    }

    /// Returns the descriptor of the queue's completion channel, as [`AsRawFd`] does.
    ///
    /// For `poll`, `epoll` and `fcntl` only: a read from it steals an event, which can block the
    /// waits of other threads past their limits, and the drop of the queue for ever. The
    /// descriptor is readable when [`wait`](Self::wait) will not block. Queues that share a
    /// channel have the same descriptor.
    #[doc(alias = "rpma_cq_get_fd")]
    #[must_use]
    pub fn get_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    /// Waits for a completion event, without a limit. For other waits, see [which wait to
    /// use](crate::guide::completion_events#which-wait-to-use).
    ///
    /// The completion that caused the event may have been polled already. After an event, poll
    /// until the queue is empty ([other waits](crate::guide::completion_events#other-waits)).
    ///
    /// On a queue with [`Notify::Solicited`], the wait returns within one second.
    ///
    /// # Errors
    ///
    /// [`Error::SharedChannel`] if the queue has no channel of its own. [`Error::NoCompletion`] if
    /// the descriptor was made non-blocking and there is no event. [`Error::NotConnected`] if no
    /// event is left and no more completions may come: the device has reported an error of the
    /// connection's queue pair, or the connection was dropped. [`Error::Provider`] if
    /// `ibv_get_cq_event` or `ibv_req_notify_cq` fails.
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
        let Polled { queue, owners, .. } = &self.polled;
        compl_channel::wait(
            queue.channel(),
            owners.conn.as_deref(),
            self.notify(),
            deadline,
        )
        .map(drop)
    }

    /// Arms the queue: the next completion of the kind `notify` gives one event. Every later arming
    /// of the queue, by a wait, is for the same kind.
    ///
    /// [`wait`](Self::wait) and the other waits do this by themselves, even in programs that use
    /// `poll` or `epoll`. Use this method to change the kind of completions that give events, or
    /// after a wait has failed in `ibv_req_notify_cq`. The last call counts, even while another
    /// thread waits. A completion that is in the queue before the call gives no event.
    /// [`Notify::Solicited`] lists the completions that it misses.
    ///
    /// On soft-RoCE a change from [`Notify::Any`] to [`Notify::Solicited`] is late by one event.
    /// The earlier call stays in force until a completion of any kind has given an event.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_req_notify_cq` fails.
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        self.polled.queue.req_notify(notify)
    }

    /// Makes the descriptor of the queue's completion channel non-blocking, or blocking again. In
    /// non-blocking mode waits on the channel return [`Error::NoCompletion`] at once if there is
    /// no event. [`Conn::next`](crate::Conn::next) still waits until its limit. Where queues share
    /// a channel, the mode is that of all these queues. Other threads may wait meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `fcntl` fails.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.polled.queue.channel().set_nonblocking(on)
    }

    /// Moves completions from the queue into `wcs`, as many as fit. Returns their number, or 0 if
    /// the queue is empty. It never waits.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_poll_cq` fails.
    #[doc(alias = "rpma_cq_get_wc")]
    #[inline]
    pub fn get_wc(&self, wcs: &mut [Wc]) -> Result<usize> {
        self.polled.get_wc(wcs)
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
    pub(crate) fn get_wc(&self, wcs: &mut [Wc]) -> Result<usize> {
        let Some(conn) = &self.owners.conn else {
            return self.get_shared(wcs);
        };
        // Until the entries of the completions have been read.
        let held = self.queue.lock_polling();
        let polled = self.queue.poll(wcs);
        self.settle_polled(conn, held, wcs, polled)
    }

    /// Polls once, for the completion of the send queue's request with this number.
    #[inline(always)]
    pub(crate) fn get_one(&self, number: u64, wc: &mut Wc) -> Result<Got, Box<Error>> {
        let Some(conn) = &self.owners.conn else {
            return Got::of(self.get_shared(slice::from_mut(wc)));
        };
        let held = self.queue.lock_polling();
        let polled = self.queue.poll(slice::from_mut(wc));
        if polled == 1 && conn.settle_expected(number, wc) {
            drop(held);
            return Ok(Got::Expected);
        }
        self.settle_another(conn, held, wc, polled)
    }

    #[cold]
    #[inline(never)]
    fn settle_another(
        &self,
        conn: &ConnSlots,
        held: Held<'_>,
        wc: &mut Wc,
        polled: c_int,
    ) -> Result<Got, Box<Error>> {
        Got::of(self.settle_polled(conn, held, slice::from_mut(wc), polled))
    }

    #[inline(always)]
    fn settle_polled(
        &self,
        conn: &ConnSlots,
        held: Held<'_>,
        wcs: &mut [Wc],
        polled: c_int,
    ) -> Result<usize> {
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

    /// Settles the last `left` of the polled completions: failed, or markers.
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
        let kept = self.settle_each(&mut wcs[..count], count - left);
        drop(held);
        if kept == count || count < wcs.len() && kept > 0 {
            return Ok(kept);
        }
        // There were markers, and there may be more: less than fits is an empty queue.
        match self.get_wc_again(&mut wcs[kept..]) {
            Ok(more) => Ok(kept + more),
            // It comes again.
            Err(error) if kept > 0 => {
                log::warn!("{error}");
                Ok(kept)
            }
            error => error,
        }
    }

    #[inline(never)]
    fn get_wc_again(&self, wcs: &mut [Wc]) -> Result<usize> {
        self.get_wc(wcs)
    }

    /// As [`get_wc`](Self::get_wc), of a shared receive queue's own queue.
    #[inline(never)]
    fn get_shared(&self, wcs: &mut [Wc]) -> Result<usize> {
        let held = self.queue.lock_polling();
        if !self.kept.is_empty() {
            return self.get_kept(held, wcs);
        }
        let polled = self.queue.poll(wcs);
        if polled != 0 {
            let left = match (wcs.get_mut(..polled as usize), &self.owners.srq) {
                (Some(wcs), Some(pool)) => pool.settle(wcs),
                _ => polled as usize,
            };
            if left != 0 {
                return self.settle_rest(held, wcs, polled, left);
            }
        }
        drop(held);
        Ok(polled as usize)
    }

    /// As [`get_shared`](Self::get_shared), where completions are kept: they came first.
    #[cold]
    #[inline(never)]
    fn get_kept(&self, _held: Held<'_>, wcs: &mut [Wc]) -> Result<usize> {
        let mut count = self.kept.take(wcs);
        if count < wcs.len() {
            match check_poll(self.queue.poll(&mut wcs[count..])) {
                Ok(polled) => count += polled,
                // The kept completions have been taken, and are returned; the failure will come
                // again.
                Err(error) if count == 0 => return Err(error),
                Err(error) => log::warn!("{error}"),
            }
        }
        Ok(self.settle_each(&mut wcs[..count], 0))
    }

    /// A queue pair with receives that complete here is destroyed next: adapters take its
    /// completions out of the queue then. The completions of a connection's queue are not polled
    /// any more, and the slots of shared receives come back. Those of a shared receive queue's own
    /// queue are kept, with their slots, for its poller.
    pub(crate) fn before_destroy(&self, qp_num: u32) {
        if self.owners.conn.is_some() {
            return self.drain();
        }
        let _held = self.queue.lock_polling();
        let mut wcs = [Wc::default(); 16];
        loop {
            match check_poll(self.queue.poll(&mut wcs)) {
                Ok(0) => break,
                Ok(count) => self.kept.add(&wcs[..count]),
                Err(error) => {
                    not_drained(&error);
                    break;
                }
            }
        }
        self.kept.forget(qp_num);
    }

    /// Gives the slots of polled completions back and labels them; the first ones are `settled`
    /// already. Takes the markers out, and returns how many are left.
    fn settle_each(&self, wcs: &mut [Wc], settled: usize) -> usize {
        let mut kept = settled;
        for next in settled..wcs.len() {
            if self.settle(&mut wcs[next]) {
                if kept != next {
                    wcs[kept] = wcs[next];
                }
                kept += 1;
            }
        }
        kept
    }

    /// Gives the slot of a request back and labels its completion. `false` if that is a marker,
    /// which no program gets.
    fn settle(&self, wc: &mut Wc) -> bool {
        let Owners { conn, srq } = &self.owners;
        let kind = match (Kind::of(wc.wr_id()), conn, srq) {
            (Some((Kind::SharedReceive, number)), _, Some(srq)) => {
                srq.complete(wc, number).then_some(Kind::SharedReceive)
            }
            (Some((Kind::Probe, number)), Some(conn), _) => {
                conn.probe_came(number, wc.status());
                return false;
            }
            (Some((kind, number)), Some(conn), _) => {
                conn.complete(wc, kind, number).then_some(kind)
            }
            _ => None,
        };
        match (kind, conn) {
            (None, _) => {
                wc.set_any_receive(wc.wr_id());
                log::error!("{wc:?}: the device completes what was not posted");
            }
            (Some(kind), Some(conn)) if kind.is_marker() => {
                conn.marker_came(kind, wc.status());
                return false;
            }
            (_, Some(conn)) => {
                if let Err(failure) = wc.result() {
                    conn.count_failed(failure.status);
                    conn.fail(failure);
                }
            }
            _ => {}
        }
        true
    }

    /// Whether receives of a shared receive queue complete here, on a connection's queue.
    pub(crate) fn takes_shared_receives(&self) -> bool {
        self.owners.srq.is_some() && self.owners.conn.is_some()
    }

    /// Takes the remaining completions: the slots of shared receives come back.
    fn drain(&self) {
        let mut wcs = [Wc::default(); 16];
        loop {
            match self.get_wc(&mut wcs) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return not_drained(&error),
            }
        }
    }
}

/// Logs a failed poll where no caller can get the error.
#[cold]
fn not_drained(error: &Error) {
    log::error!("{error}; messages that have arrived may be lost, and the slots of their receives");
}

impl Drop for Handles {
    /// With the last handle: takes the completions since its queue pair was about to be destroyed.
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
