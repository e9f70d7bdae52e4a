//! [`Conn::wait_for`]: a wait that only one operation's completion satisfies.
//!
//! The usual case is that the completion is there: one poll, and no look at the clock. Otherwise
//! the wait sleeps as [`Conn::next`] does. It polls before each sleep and after it, and no sleep is
//! longer than [`BOUND`], so that it finds completions that other threads leave.
//!
//! It also watches the connection's events, because an operation may not complete for a long time
//! if its peer is gone. An event that it takes is kept for [`Conn::next_event`]. While another
//! thread sleeps there it takes no event: that thread would not be woken.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::Conn;
use crate::clock;
use crate::cq::Got;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::failure::Failure;
use crate::looking::{self, BOUND, Took};
use crate::posted::Posted;
use crate::verbs::{Deadline, Wc};

const INCOMPLETE: &str = "the operation did not complete and goes on; before you change its memory, wait for it again \
                          or drop the connection";

/// The time between the flush of the queues and the event of the end.
const END_LIMIT_OF_IWARP: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(1);

/// Events that a wait for an operation took, and the threads that sleep for events.
#[derive(Debug, Default)]
pub(super) struct Events {
    kept: VecDeque<ConnEvent>,
    sleepers: usize,
}

impl Conn {
    /// Waits for the completion of the operation that `posted` names, for at most `limit`. No
    /// other completion satisfies it. Completions of other operations that it polls meanwhile go
    /// to `other`.
    ///
    /// Later completions stay in the queue, and may have no event left: poll until the queue is
    /// empty before [`Cq::wait`](crate::Cq::wait). Another `wait_for` and [`next`](Self::next) do
    /// that by themselves.
    ///
    /// It also watches for the end of the connection. A completion may still come for a second
    /// after the end ([`quiet_from`](Self::quiet_from)). After that second the wait fails with the
    /// [`reason`](Self::reason) of the end. The event is kept:
    /// [`next_event`](Self::next_event) and [`next`](Self::next) return it without waiting, but
    /// the descriptor of events is not readable for it.
    ///
    /// If several threads post operations, let one thread poll and notify the others. For other
    /// waits, see [which wait to use](crate::guide::completion_events#which-wait-to-use).
    ///
    /// ```no_run
    /// # use rpma::{Conn, Flags, FlushType, RemoteSlice, Result};
    /// # use std::time::Duration;
    /// # fn flush(conn: &Conn, log: RemoteSlice) -> Result<()> {
    /// let flushed = conn.flush(log, FlushType::Persistent, Flags::COMPLETION_ALWAYS, 0)?;
    /// conn.wait_for(flushed, Duration::from_secs(10), |_other| {})?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when the limit has passed. The operation goes on, and the device
    ///   still uses its memory: wait for it again, or drop the connection.
    /// * [`Error::Operation`] if the operation failed. If it was only flushed, the error is the
    ///   [`reason`](Self::reason) of the connection's end. It is [`Error::Operation`] of another
    ///   operation, [`Error::Provider`] after a failed post, [`Error::NotConnected`] after an error
    ///   of the queue pair or the end by a keep-alive, or [`Error::Ended`].
    /// * The same reason, if the connection ended and the completion did not come.
    /// * [`Error::NotConnected`] if the device has reported an error of the queue pair, and the
    ///   completion did not come.
    /// * [`Error::PolledElsewhere`] if another call polled the completion, for example an earlier
    ///   call of this method. That call returned the outcome. An earlier call that returned
    ///   [`Error::TimedOut`] has not polled it.
    /// * [`Error::InvalidArgument`] for an operation of another connection or without
    ///   [`Flags::COMPLETION_ALWAYS`](crate::Flags::COMPLETION_ALWAYS), and while another thread
    ///   is in this call.
    /// * [`Error::SharedChannel`] if the connection is on a
    ///   [`CompletionChannel`](crate::CompletionChannel): the wait could take the events of
    ///   others.
    /// * [`Error::Provider`] as [`next`](Self::next).
    #[inline]
    pub fn wait_for(
        &self,
        posted: Posted,
        limit: Duration,
        mut other: impl FnMut(Wc),
    ) -> Result<Wc> {
        let mut wc = Wc::default();
        match self.look_for(posted, &mut wc) {
            Ok(Looked::Found) => Ok(wc),
            Err(error) => Err(*error),
            Ok(looked) => self.wait_for_later(looked, posted, wc, limit, &mut other),
        }
    }

    /// The usual case: polls once, and the completion is there.
    #[inline(never)]
    fn look_for(&self, posted: Posted, wc: &mut Wc) -> Result<Looked, Box<Error>> {
        let slots = &self.queues.slots;
        let number = slots.number_of(posted).filter(|_| posted.completes());
        let Some(number) = number.filter(|_| self.has_own_channels) else {
            return Ok(Looked::Refused);
        };
        let Some(alone) = Alone::of(self) else {
            return Ok(Looked::Refused);
        };
        // One at a time: later completions stay in the queue.
        let looked = match self.queues.cq.polled().get_one(number, wc)? {
            Got::Expected => return Ok(Looked::Found),
            Got::Other => Looked::Other,
            Got::Nothing => Looked::Nothing,
        };
        // The caller takes it over.
        mem::forget(alone);
        Ok(looked)
    }

    /// As [`wait_for`](Self::wait_for), where the completion was not there at once.
    #[cold]
    #[inline(never)]
    fn wait_for_later(
        &self,
        looked: Looked,
        posted: Posted,
        wc: Wc,
        limit: Duration,
        other: &mut dyn FnMut(Wc),
    ) -> Result<Wc> {
        let slots = &self.queues.slots;
        let Some(number) = slots.number_of(posted).filter(|_| posted.completes()) else {
            return Err(self.not_awaited(posted));
        };
        if !self.has_own_channels {
            return Err(Error::SharedChannel);
        }
        let _alone = match looked {
            Looked::Nothing | Looked::Other => Alone(&self.waits_for_one),
            _ => Alone::of(self).ok_or_else(not_alone)?,
        };
        if looked == Looked::Other {
            if wc.posted() == Some(posted) {
                return self.outcome(&wc);
            }
            other(wc);
        }
        if slots.was_polled(number) {
            return Err(Error::PolledElsewhere);
        }
        self.wait_longer(posted, number, limit, other)
    }

    fn wait_longer(
        &self,
        posted: Posted,
        number: u64,
        limit: Duration,
        other: &mut dyn FnMut(Wc),
    ) -> Result<Wc> {
        let mut search = Search {
            conn: self,
            posted,
            number,
            other,
            found: None,
            has_more: false,
            due: None,
        };
        let (take, sleep) = (Search::take, Search::sleep);
        looking::wait(&mut search, limit, |of| of.found.take(), take, sleep)?
            .ok_or(Error::TimedOut(INCOMPLETE))
            .and_then(|wc| self.outcome(&wc))
    }

    fn outcome(&self, wc: &Wc) -> Result<Wc> {
        let slots = &self.queues.slots;
        wc.result().map_err(|failure| {
            if Failure::from(failure).is_flushed() && self.queues.peer.is_iwarp() {
                self.keep_the_end();
            }
            slots.reason_of(failure)
        })?;
        Ok(*wc)
    }

    /// Takes the event of the end, which has the reason for a flushed operation. On iWARP the kernel
    /// flushes the queues first, and reports the end a moment later.
    #[cold]
    fn keep_the_end(&self) {
        let until = Deadline::after(END_LIMIT_OF_IWARP);
        // Without the event, the error is that of the flushed operation.
        while self.keep_event().is_ok()
            && self.queues.slots.cause_or_event().is_none()
            && !until.has_passed()
        {
            clock::sleep(PAUSE);
        }
    }

    #[cold]
    #[inline(never)]
    fn not_awaited(&self, posted: Posted) -> Error {
        Error::invalid(match self.queues.slots.number_of(posted) {
            None => {
                "the operation was posted on another connection: wait for it there. If that connection was \
                 dropped, the outcome of the operation is unknown"
            }
            Some(_) => {
                "the operation was posted without Flags::COMPLETION_ALWAYS, and has no completion if it \
                 succeeds: wait for a later operation that has the flag"
            }
        })
    }

    /// The next event that a wait for an operation has taken.
    pub(super) fn kept_event(&self) -> Option<ConnEvent> {
        self.lock_events().kept.pop_front()
    }

    /// As [`kept_event`](Self::kept_event). If there is none, the caller sleeps for events from
    /// here on, until it drops the returned sleeper.
    pub(super) fn kept_event_or_sleep(&self) -> Result<ConnEvent, Sleeper<'_>> {
        let mut events = self.lock_events();
        match events.kept.pop_front() {
            Some(event) => Ok(event),
            None => {
                events.sleepers += 1;
                Err(Sleeper(self))
            }
        }
    }

    /// Keeps an event that is the library's own.
    pub(super) fn push_event(&self, event: ConnEvent) {
        self.lock_events().kept.push_back(event);
    }

    pub(crate) fn has_kept_event(&self) -> bool {
        !self.lock_events().kept.is_empty()
    }

    fn has_event_sleepers(&self) -> bool {
        self.lock_events().sleepers > 0
    }

    /// Takes an event, if there is one, and keeps it for [`Conn::next_event`].
    fn keep_event(&self) -> Result<()> {
        // Locked meanwhile: a thread that begins to sleep for events must find it.
        let mut events = self.lock_events();
        if events.sleepers > 0 {
            return Ok(());
        }
        let now = Deadline::after(Duration::ZERO);
        let event = self.queues.qp.next_event(None, now);
        let Some(event) = event.map_err(|error| self.cannot_take(error))? else {
            return Ok(());
        };
        if let Some(event) = self.note(event)? {
            events.kept.push_back(event.clone());
            drop(events);
            self.log(&event);
        }
        Ok(())
    }

    fn lock_events(&self) -> MutexGuard<'_, Events> {
        // A panic cannot leave it half changed.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// It is there, and has succeeded.
    Found,
    /// No completion is there. The caller is the only one that waits for an operation, until it
    /// drops its [`Alone`].
    Nothing,
    /// As `Nothing`, but there was another completion, or the operation has failed.
    Other,
    /// It did not look: it may not, or another thread waits.
    Refused,
}

/// A wait for the completion of one operation.
struct Search<'conn, 'other> {
    conn: &'conn Conn,
    posted: Posted,
    number: u64,
    other: &'other mut dyn FnMut(Wc),
    found: Option<Wc>,
    /// The last look has left completions.
    has_more: bool,
    /// The next step of the keep-alive.
    due: Option<Instant>,
}

impl Search<'_, '_> {
    fn take(&mut self) -> Result<()> {
        let (conn, slots) = (self.conn, &self.conn.queues.slots);
        // After a failure the device flushes every operation: that is waited for.
        let is_quiet = slots.event().is_some() && slots.is_quiet();
        let mut budget = conn.budget();
        self.has_more = false;
        while self.poll()? {
            if self.found.is_some() {
                return Ok(());
            }
            if !budget.goes_on(Took::Completions(1)) {
                self.has_more = true;
                return Ok(());
            }
        }
        // The queue is empty.
        self.due = conn.watch_peer();
        if slots.was_polled(self.number) {
            return Err(Error::PolledElsewhere);
        }
        let reason = || is_quiet.then(|| slots.reason()).flatten();
        slots.end_of_waits().or_else(reason).map_or(Ok(()), Err)
    }

    /// Takes one completion, if one is there.
    fn poll(&mut self) -> Result<bool> {
        let mut wcs = [Wc::default()];
        if self.conn.queues.cq.get_wc(&mut wcs)? == 0 {
            return Ok(false);
        }
        if wcs[0].posted() == Some(self.posted) {
            self.found = Some(wcs[0]);
        } else {
            (self.other)(wcs[0]);
        }
        Ok(true)
    }

    fn sleep(&mut self, deadline: Deadline) -> Result<()> {
        if self.has_more {
            return Ok(());
        }
        let conn = self.conn;
        let main = conn.queues.cq.queue().channel();
        let bound = deadline.earlier(Deadline::after(BOUND));
        let slots = &conn.queues.slots;
        let quiet = slots.event().and(slots.quiet_from());
        let due = [self.due.map(Deadline::At), quiet];
        let until = due.into_iter().flatten().fold(bound, Deadline::earlier);
        let polled = looking::spin(conn.spin_time(), until, || match self.poll() {
            Ok(false) => None,
            polled => Some(polled.map(drop)),
        });
        if let Some(polled) = polled {
            return polled;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(main.device_fd(), PollFlags::IN),
            PollFd::new(main, PollFlags::IN),
            PollFd::from_borrowed_fd(conn.as_fd(), PollFlags::IN),
        ];
        let watched = 2 + usize::from(slots.event().is_none() && !conn.has_event_sleepers());
        let gone = main.gone();
        main.sleep(&mut fds[..watched], until)?;
        if !fds[1].revents().is_empty() {
            main.take_seen(gone)?;
        }
        if watched == 3 && !fds[2].revents().is_empty() {
            conn.keep_event()?;
        }
        Ok(())
    }
}

/// The only thread that waits for an operation.
struct Alone<'conn>(&'conn AtomicBool);

impl<'conn> Alone<'conn> {
    #[inline(always)]
    fn of(conn: &'conn Conn) -> Option<Self> {
        let taken = conn.waits_for_one.swap(true, Ordering::Acquire);
        (!taken).then(|| Self(&conn.waits_for_one))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A thread that sleeps for events of the connection.
pub(super) struct Sleeper<'conn>(&'conn Conn);

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.lock_events().sleepers -= 1;
    }
}

#[cold]
#[inline(never)]
fn not_alone() -> Error {
    Error::invalid(
        "another thread is in Conn::wait_for of this connection, and would be handed the completion \
         that this one waits for: let one thread wait and tell the others",
    )
}
