//! The rule by which a completion queue gives events: only while a task sleeps.
//!
//! A sleeper counts itself, leaves its waker, arms the queue unless it is armed, polls, and looks.
//! The driver takes the event, notes that the queue is not armed, and polls. It arms the queue if a
//! task sleeps, and polls again. Both notes are exchanges: each reads the one before it. With a store
//! in the driver, a sleeper that finds the queue armed and a driver that finds no sleeper can miss
//! each other.
//!
//! This file calls no verbs. `tests/loom` includes it.

use crate::primitives::{AtomicBool, AtomicU32, Ordering};

/// Of one completion queue.
#[derive(Debug, Default)]
pub(crate) struct Arming {
    /// The number of owners that sleep, of abandoned operations, and of waits for room.
    asleep: AtomicU32,
    /// The next completion gives an event, or an event is there that the driver will take.
    armed: AtomicBool,
}

impl Arming {
    /// Counts one more sleeper, before it leaves its waker.
    pub(crate) fn sleep(&self) {
        self.asleep.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one less.
    pub(crate) fn wake(&self) {
        self.asleep.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether the caller, which has left its waker, must arm the queue. Then it polls.
    pub(crate) fn must_arm(&self) -> bool {
        !self.armed.swap(true, Ordering::AcqRel)
    }

    /// The queue could not be armed.
    pub(crate) fn is_not_armed(&self) {
        self.armed.swap(false, Ordering::AcqRel);
    }

    /// The driver has taken an event. Then it polls.
    pub(crate) fn event(&self) {
        self.armed.swap(false, Ordering::AcqRel);
    }

    /// Whether the driver, which has polled, must arm the queue and poll once more.
    pub(crate) fn must_arm_again(&self) -> bool {
        self.asleep.load(Ordering::Acquire) > 0 && self.must_arm()
    }
}
