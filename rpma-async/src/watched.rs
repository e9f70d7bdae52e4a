//! [`Watched`]: an object of rpma for which tasks wait.
//!
//! rpma's own waits are loops: look, then sleep until the object's descriptor is readable or until
//! a time. [`Waiting`] is such a loop for a task: it leaves its waker in the place of the sleep.
//! The reactor watches the descriptor (edge-triggered), and wakes all tasks when it has become
//! readable. So a look takes all events at once.

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rpma::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::alarm::Alarm;
use crate::driver::{Handle, Member, Patience};
use crate::waiters::{Ticket, Waiters};

/// Results without a sleep, before a task lets others run.
const TURN: u32 = 64;

/// After so long without an event rpma's waits ask whether a peer's host is there. So do those
/// here.
pub(crate) const SILENCE: Duration = Duration::from_millis(50);

/// A member of a reactor, with the tasks that wait for it.
#[derive(Debug)]
pub(crate) struct Watched {
    reactor: Arc<Handle>,
    key: u64,
    waiters: Arc<Waiters>,
    /// Results since a task has slept.
    streak: AtomicU32,
}

/// The result of a look.
pub(crate) enum Look<T> {
    Ready(T),
    /// It found no event, and the next look is due then. `None`: when the descriptor is readable.
    Until(Option<Instant>),
}

impl Watched {
    /// A member of a reactor, which only wakes tasks.
    pub(crate) fn new(reactor: &Arc<Handle>) -> Self {
        let waiters = Arc::<Waiters>::default();
        let member: Weak<Waiters> = Arc::downgrade(&waiters);
        Self {
            key: reactor.join(member),
            reactor: Arc::clone(reactor),
            waiters,
            streak: AtomicU32::new(0),
        }
    }

    /// As [`new`](Self::new), for an object that has things to do also while no task waits: from
    /// now on the driver tells it of events.
    pub(crate) fn tell_also(&self, member: Weak<dyn Member>) {
        self.reactor.replace(self.key, member);
    }

    /// Watches a descriptor, until it is closed.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.reactor.tell(self.key, fd)
    }

    /// Watches it no more.
    pub(crate) fn watch_no_more(&self, fd: BorrowedFd<'_>) {
        self.reactor.tell_no_more(fd);
    }

    pub(crate) fn reactor(&self) -> &Arc<Handle> {
        &self.reactor
    }

    pub(crate) fn wake_all(&self) {
        if self.waiters.any() {
            self.waiters.wake_all();
        }
    }

    /// A wait. The error is that of a driver that is gone or never ran.
    pub(crate) fn wait<T, F>(&self, look: F) -> Waiting<'_, F>
    where
        F: FnMut() -> Look<T> + Unpin,
    {
        Waiting {
            watched: self,
            sleeper: Sleeper::new(self),
            look,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
    }
}

/// A wait for a [`Watched`].
pub(crate) struct Waiting<'a, F> {
    watched: &'a Watched,
    sleeper: Sleeper,
    look: F,
}

impl<T, F: FnMut() -> Look<T> + Unpin> Future for Waiting<'_, F> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let Self {
            watched,
            sleeper,
            look,
        } = &mut *self;
        sleeper.poll(watched, cx, look)
    }
}

impl<F> Drop for Waiting<'_, F> {
    fn drop(&mut self) {
        self.sleeper.leave(self.watched);
    }
}

/// A task that waits for a [`Watched`]. Its owner calls [`leave`](Self::leave) at the end.
#[derive(Debug)]
pub(crate) struct Sleeper {
    ticket: Ticket,
    alarm: Alarm,
    patience: Patience,
    has_slept: bool,
}

impl Sleeper {
    pub(crate) fn new(watched: &Watched) -> Self {
        Self {
            ticket: Ticket::default(),
            alarm: Alarm::new(&watched.reactor),
            patience: Patience::default(),
            has_slept: false,
        }
    }

    /// A poll of the wait. The error is that of a driver that is gone or never ran.
    pub(crate) fn poll<T>(
        &mut self,
        watched: &Watched,
        cx: &mut Context<'_>,
        look: impl FnOnce() -> Look<T>,
    ) -> Poll<Result<T>> {
        let streak = &watched.streak;
        if !self.has_slept && streak.fetch_add(1, Ordering::Relaxed) >= TURN {
            streak.store(0, Ordering::Relaxed);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Before the look, so that later events wake the task.
        watched.waiters.wait(&mut self.ticket, cx.waker());
        let at = match look() {
            Look::Ready(result) => return Poll::Ready(Ok(result)),
            Look::Until(at) => at,
        };
        watched.reactor.check_driver()?;
        self.has_slept = true;
        streak.store(0, Ordering::Relaxed);
        self.alarm.set(at, cx);
        match self.patience.poll(&watched.reactor, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }

    /// The wait is over, or is given up.
    pub(crate) fn leave(&mut self, watched: &Watched) {
        watched.waiters.leave(&mut self.ticket);
    }
}

/// Whether a look has left an event. Its edge is over, so the caller looks again.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // An error: the next look finds it.
    poll(&mut fds, Some(&Timespec::default())) != Ok(0)
}

/// `None` for the error of a look that found no event: its caller waits, and looks again.
pub(crate) fn unless_pending<T>(result: Result<T>) -> Option<Result<T>> {
    match result {
        Err(Error::TimedOut(_)) => None,
        result => Some(result),
    }
}
