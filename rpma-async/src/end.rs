//! [`End`]: an end that comes once, and wakes the futures that wait for it.

use std::task::Waker;

use crate::primitives::{AtomicBool, Ordering};
use crate::waiters::{Ticket, Waiters};

/// An end, which may come at any time, from any thread.
#[derive(Default)]
pub(crate) struct End {
    has_come: AtomicBool,
    waiters: Waiters,
}

impl End {
    pub(crate) fn come(&self) {
        self.has_come.store(true, Ordering::Release);
        self.waiters.wake_all();
    }

    /// Whether it has come. If not, it wakes this task when it comes.
    pub(crate) fn has_come(&self, ticket: &mut Ticket, waker: &Waker) -> bool {
        // Before the look. Then either the look sees the end, or the end finds the waker: both
        // take the lock of the waiters.
        self.waiters.wait(ticket, waker);
        self.has_come.load(Ordering::Acquire)
    }
}
