//! [`Wait`]: a task waits until a look has a result. [`Told`]: the object of rpma at which it looks.
//!
//! rpma's own waits are loops: look, then sleep until the object's descriptor is readable or until
//! a time. A [`Wait`] is such a loop for a task: it leaves its waker in the place of the sleep.
//! The reactor watches the descriptor (edge-triggered). So a look takes all events at once.

use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rpma::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::alarm::Alarm;
use crate::driver::{Handle, Patience};
use crate::turn::Turn;
use crate::waiters::{Ticket, Waiters};

/// After so long without an event rpma's waits ask whether a peer's host is there. So do those
/// here.
pub(crate) const SILENCE: Duration = Duration::from_millis(50);

/// The result of a look.
pub(crate) enum Look<T> {
    Ready(T),
    /// It found no event, and the next look is due then. `None`: when the task is woken.
    Until(Option<Instant>),
}

impl<T> From<Option<T>> for Look<T> {
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Until(None), Self::Ready)
    }
}

/// The wait of one task.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    ticket: Ticket,
    alarm: Alarm,
    patience: Patience,
}

impl Wait {
    /// Looks. Without a result it has left the task's waker. The error is that of a driver that is
    /// gone or never ran.
    pub(crate) fn poll<T>(
        &mut self,
        (reactor, waiters): (&Arc<Handle>, &Waiters),
        cx: &Context<'_>,
        look: impl FnOnce() -> Look<T>,
    ) -> Poll<Result<T>> {
        // Before the look, so that later events wake the task.
        waiters.wait(&mut self.ticket, cx.waker());
        let result = match look() {
            Look::Ready(result) => Ok(result),
            Look::Until(at) => {
                self.alarm.set(reactor, at, cx);
                match self.patience.poll(reactor, cx) {
                    Poll::Ready(Err(error)) => Err(error),
                    _ => return Poll::Pending,
                }
            }
        };
        self.leave(waiters);
        Poll::Ready(result)
    }

    /// The wait is over, or given up.
    pub(crate) fn leave(&mut self, waiters: &Waiters) {
        self.alarm = Alarm::default();
        waiters.leave(&mut self.ticket);
    }

    fn has_slept(&self) -> bool {
        !self.ticket.is_none()
    }
}

/// A wait among these tasks, which it leaves at its end.
struct Place<'a> {
    waiters: &'a Waiters,
    wait: Wait,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.wait.leave(self.waiters);
    }
}

/// Waits until a look has a result: [`Wait::poll`] as a future.
pub(crate) async fn wait<T>(
    reactor: &Arc<Handle>,
    waiters: &Waiters,
    mut look: impl FnMut() -> Look<T>,
) -> Result<T> {
    let wait = Wait::default();
    let mut place = Place { waiters, wait };
    poll_fn(|cx| place.wait.poll((reactor, waiters), cx, &mut look)).await
}

/// An object of rpma as a member of a reactor, with the tasks that wait for it.
#[derive(Debug)]
pub(crate) struct Told {
    reactor: Arc<Handle>,
    key: u64,
    waiters: Arc<Waiters>,
    turn: Turn,
}

impl Told {
    /// A member of a reactor that watches this descriptor, until it is closed.
    pub(crate) fn new(reactor: &Arc<Handle>, fd: BorrowedFd<'_>) -> Result<Self> {
        let waiters = Arc::<Waiters>::default();
        let member: Weak<Waiters> = Arc::downgrade(&waiters);
        let told = Self {
            key: reactor.join(member),
            reactor: Arc::clone(reactor),
            waiters,
            turn: Turn::default(),
        };
        told.reactor.tell(told.key, fd)?;
        Ok(told)
    }

    pub(crate) fn reactor(&self) -> &Arc<Handle> {
        &self.reactor
    }

    /// [`Wait::poll`] for this object, whose task lets others run after some results.
    pub(crate) fn poll<T>(
        &self,
        wait: &mut Wait,
        cx: &Context<'_>,
        look: impl FnOnce() -> Look<T>,
    ) -> Poll<Result<T>> {
        if !wait.has_slept() && self.turn.ends_before(cx) {
            return Poll::Pending;
        }
        let polled = wait.poll((&self.reactor, &self.waiters), cx, look);
        if polled.is_pending() {
            self.turn.rest();
        }
        polled
    }

    /// Waits until a look has a result: [`poll`](Self::poll) as a future.
    pub(crate) fn wait<T>(
        &self,
        mut look: impl FnMut() -> Look<T>,
    ) -> impl Future<Output = Result<T>> {
        let (waiters, wait) = (&*self.waiters, Wait::default());
        let mut place = Place { waiters, wait };
        poll_fn(move |cx| self.poll(&mut place.wait, cx, &mut look))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
    }
}

/// Whether a look has left an event. Its edge is over, so the caller looks again.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // An error: the next look finds it.
    poll(&mut fds, Some(&Timespec::default())) != Ok(0)
}
