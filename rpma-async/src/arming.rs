//! When a completion queue gives an event: while somebody sleeps, and not otherwise.
//!
//! A sleeper counts itself, leaves its waker, arms the queue unless it is armed, polls, and looks.
//! The driver takes the event, notes that the queue is not armed, polls, and arms it if somebody
//! sleeps; then it polls again. Both notes are exchanges: each reads the one before it. With a store
//! in the driver, a sleeper that finds the queue armed and a driver that finds no sleeper can miss
//! each other.
//!
//! This file knows no verbs. `tests/loom` includes it.

use crate::primitives::{AtomicBool, AtomicU32, Ordering};

/// Of one completion queue.
#[derive(Debug, Default)]
pub(crate) struct Arming {
    /// Who waits for a completion: owners that sleep, abandoned operations, and waits for room.
    asleep: AtomicU32,
    /// The next completion gives an event, or an event is there that the driver will take.
    armed: AtomicBool,
}

impl Arming {
    /// One more waits. Before it leaves its waker.
    pub(crate) fn sleep(&self) {
        self.asleep.fetch_add(1, Ordering::AcqRel);
    }

    /// One less.
    pub(crate) fn wake(&self) {
        self.asleep.fetch_sub(1, Ordering::AcqRel);
    }

    /// After the waker was left: whether the caller must arm the queue. Then it polls.
    pub(crate) fn must_arm(&self) -> bool {
        !self.armed.swap(true, Ordering::AcqRel)
    }

    /// The queue could not be armed.
    pub(crate) fn is_not_armed(&self) {
        self.armed.swap(false, Ordering::AcqRel);
    }

    /// Of the driver, which has taken an event. Then it polls.
    pub(crate) fn event(&self) {
        self.armed.swap(false, Ordering::AcqRel);
    }

    /// Of the driver, which has polled: whether it must arm the queue, and poll once more.
    pub(crate) fn must_arm_again(&self) -> bool {
        self.asleep.load(Ordering::Acquire) > 0 && self.must_arm()
    }
}
