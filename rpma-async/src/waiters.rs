//! Tasks that wait for something that a connection or a pool has: room, a block, a message.
//!
//! Each has a ticket. A task that is woken is taken out of the queue; if its future is dropped
//! before it has looked, another one is woken in its place ([`Waiters::leave`]).

use std::collections::VecDeque;
use std::task::Waker;

use crate::primitives::{AtomicU32, Mutex, Ordering, wake};

/// The tasks, in the order of their first look.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// How many there are.
    count: AtomicU32,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    tasks: VecDeque<(u64, Waker)>,
}

/// The place of a future in the queue, once it has one.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<u64>);

impl Waiters {
    /// Whether a task waits. The caller has made its change before, by an exchange or under a lock
    /// with which the task looks again. After a plain store only [`wake_all`](Self::wake_all) is
    /// safe.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Leaves a waker. Then the task looks again, by an exchange: it sees earlier changes, and a
    /// later one wakes it.
    pub(crate) fn wait(&self, ticket: &mut Ticket, waker: &Waker) {
        let mut queue = self.queue.lock();
        let left = ticket.0.and_then(|number| {
            let mut tasks = queue.tasks.iter_mut();
            tasks.find(|(of, _)| *of == number)
        });
        let old = match left {
            Some((_, left)) if left.will_wake(waker) => None,
            Some((_, left)) => Some(std::mem::replace(left, waker.clone())),
            None => {
                let waker = waker.clone();
                queue.next += 1;
                let number = queue.next;
                ticket.0 = Some(number);
                queue.tasks.push_back((number, waker));
                None
            }
        };
        self.set_count(&queue);
        drop(queue);
        drop(old);
    }

    /// Under the lock. The step by which both sides look, an exchange or a lock, orders this store
    /// and the load of [`any`](Self::any).
    fn set_count(&self, queue: &Queue) {
        self.count
            .store(queue.tasks.len() as u32, Ordering::Relaxed);
    }

    /// The task goes on, or its future is dropped. `true` if it had been woken.
    pub(crate) fn leave(&self, ticket: &mut Ticket) -> bool {
        let Some(number) = ticket.0.take() else {
            return false;
        };
        let mut queue = self.queue.lock();
        let place = queue.tasks.iter().position(|(of, _)| *of == number);
        let left = place.and_then(|place| queue.tasks.remove(place));
        self.set_count(&queue);
        drop(queue);
        left.is_none()
    }

    /// Wakes the first task.
    pub(crate) fn wake_one(&self) {
        let mut queue = self.queue.lock();
        let first = queue.tasks.pop_front();
        self.set_count(&queue);
        drop(queue);
        if let Some((_, waker)) = first {
            wake(waker);
        }
    }

    /// Wakes all tasks. It keeps the room of the queue, so that a task that waits again allocates
    /// nothing.
    pub(crate) fn wake_all(&self) {
        let mut last = None;
        loop {
            let mut queue = self.queue.lock();
            // A task that waits again has a later number.
            let last = *last.get_or_insert(queue.next);
            let first = queue.tasks.pop_front();
            let is_more = queue.tasks.front().is_some_and(|(of, _)| *of <= last);
            self.set_count(&queue);
            drop(queue);
            if let Some((_, waker)) = first {
                wake(waker);
            }
            if !is_more {
                return;
            }
        }
    }
}
