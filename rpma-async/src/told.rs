//! [`Told`]: the wait of the one owner of an object of rpma.
//!
//! rpma's own waits are loops: look, then sleep until the object's descriptor is readable or until
//! a time. [`Told::wait`] is such a loop for a task: it leaves its waker in the place of the sleep.
//! The reactor watches the descriptor (edge-triggered). So a look takes all events at once.

use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::task::Poll;
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

/// A member of a reactor, with the tasks that wait for it.
#[derive(Debug)]
pub(crate) struct Told {
    reactor: Arc<Handle>,
    key: u64,
    waiters: Arc<Waiters>,
    turn: Turn,
}

/// The result of a look.
pub(crate) enum Look<T> {
    Ready(T),
    /// It found no event, and the next look is due then. `None`: when the descriptor is readable.
    Until(Option<Instant>),
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

    /// Waits until a look has a result. The error is that of a driver that is gone or never ran.
    pub(crate) fn wait<T>(
        &self,
        mut look: impl FnMut() -> Look<T>,
    ) -> impl Future<Output = Result<T>> {
        let mut place = Place {
            told: self,
            ticket: Ticket::default(),
        };
        let (mut alarm, mut patience) = (Alarm::default(), Patience::default());
        let mut has_slept = false;
        poll_fn(move |cx| {
            if !has_slept && self.turn.ends_before(cx) {
                return Poll::Pending;
            }
            // Before the look, so that later events wake the task.
            self.waiters.wait(&mut place.ticket, cx.waker());
            let at = match look() {
                Look::Ready(result) => return Poll::Ready(Ok(result)),
                Look::Until(at) => at,
            };
            self.reactor.check_driver()?;
            has_slept = true;
            self.turn.rest();
            alarm.set(&self.reactor, at, cx);
            match patience.poll(&self.reactor, cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Pending,
            }
        })
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
    }
}

/// The place of a task, which it leaves at the end of its wait.
struct Place<'a> {
    told: &'a Told,
    ticket: Ticket,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.told.waiters.leave(&mut self.ticket);
    }
}

/// Whether a look has left an event. Its edge is over, so the caller looks again.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // An error: the next look finds it.
    poll(&mut fds, Some(&Timespec::default())) != Ok(0)
}
