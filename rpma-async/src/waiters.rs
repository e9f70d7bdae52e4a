//! [`Waiters`]: tasks that wait for a change of something that has a lock of its own, or none: a
//! block, a message, a value, an end. A task that waits for a number is woken when that is reached.
//!
//! Each has a ticket. A task that is woken is taken out; if its future is dropped before it has
//! looked, another one is woken in its place ([`Waiters::leave`]).

use std::task::Waker;

use crate::primitives::{AtomicU64, Mutex, Ordering, wake};
use crate::tasks::Tasks;
pub(crate) use crate::tasks::Ticket;

/// The tasks, in the order of their first look.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// One more than the number for which the first one waits. 0: there is none.
    first: AtomicU64,
    tasks: Mutex<Tasks>,
}

impl Waiters {
    /// Whether a task waits. The caller has made its change before, by an exchange or under a lock
    /// with which the task looks again. After a plain store only [`wake_all`](Self::wake_all) is
    /// safe.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any_up_to(u64::MAX)
    }

    /// As [`any`](Self::any), for a task that waits for at most this number.
    #[inline]
    pub(crate) fn any_up_to(&self, number: u64) -> bool {
        let first = self.first.load(Ordering::Relaxed).checked_sub(1);
        first.is_some_and(|first| first <= number)
    }

    /// Changes the tasks, and notes the first one. The step by which both sides look, an
    /// exchange or a lock, orders this store and the load of [`any`](Self::any).
    fn with<T>(&self, change: impl FnOnce(&mut Tasks) -> T) -> T {
        let mut tasks = self.tasks.lock();
        let result = change(&mut tasks);
        let first = tasks.first().map_or(0, |first| first.saturating_add(1));
        self.first.store(first, Ordering::Relaxed);
        result
    }

    /// Leaves a waker. Then the task looks again, by an exchange: it sees earlier changes, and a
    /// later one wakes it.
    pub(crate) fn wait(&self, ticket: &mut Ticket, waker: &Waker) {
        let old = self.wait_for(0, ticket, waker);
        drop(old);
    }

    /// As [`wait`](Self::wait), of a task that waits for a number. Returns an older waker of the
    /// task, for a caller that has a lock.
    pub(crate) fn wait_for(
        &self,
        number: u64,
        ticket: &mut Ticket,
        waker: &Waker,
    ) -> Option<Waker> {
        self.with(|tasks| tasks.wait(ticket, (number, ()), waker))
    }

    /// The task goes on, or its future is dropped. `true` if it had been woken.
    pub(crate) fn leave(&self, ticket: &mut Ticket) -> bool {
        if ticket.is_none() {
            return false;
        }
        let left = self.with(|tasks| tasks.leave(ticket));
        left.is_none()
    }

    pub(crate) fn wake_one(&self) {
        let first = self.with(Tasks::take_first);
        if let Some(waker) = first {
            wake(waker);
        }
    }

    pub(crate) fn wake_all(&self) {
        self.wake_up_to(u64::MAX);
    }

    /// Wakes the tasks that wait for at most this number. It keeps the room of the queue, so that a
    /// task that waits again allocates nothing.
    pub(crate) fn wake_up_to(&self, number: u64) {
        let mut walk = None;
        let mut take = |tasks: &mut Tasks| {
            let walk = walk.get_or_insert_with(|| tasks.walk());
            tasks.take_up_to(number, walk)
        };
        while let Some(waker) = self.with(&mut take) {
            wake(waker);
        }
    }
}
