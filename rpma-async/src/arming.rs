//! The rule by which a completion queue gives events: only while a task sleeps.
//!
//! A sleeper leaves its waker, arms the queue unless it is armed, polls, and looks. The driver takes
//! the event, notes that the queue is not armed, and polls. It arms the queue if a waker is left,
//! and polls again. Both notes are exchanges: each reads the one before it. With a store in the
//! driver, a sleeper that finds the queue armed and a driver that finds no sleeper can miss each
//! other.
//!
//! This file calls no verbs. `tests/loom` includes it.

use crate::primitives::{AtomicBool, Ordering};

/// The arming of one completion queue.
#[derive(Debug, Default)]
pub(crate) struct Arming {
    /// The next completion gives an event, or an event is there that the driver will take.
    armed: AtomicBool,
}

impl Arming {
    /// A sleeper that has left its waker arms the queue, unless it is armed. Then it polls, and
    /// looks.
    #[inline]
    pub(crate) fn arm<E>(&self, arm: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.armed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        arm().inspect_err(|_| {
            self.armed.swap(false, Ordering::AcqRel);
        })
    }

    /// The driver has taken an event: it settles the completions that are there, and arms the
    /// queue again if a waker was left before the last poll. A sleeper that leaves its waker later
    /// finds the queue not armed.
    #[inline(always)]
    pub(crate) fn event<T, E>(
        &self,
        arm: impl FnOnce() -> Result<(), E>,
        drain: impl Fn() -> Result<T, E>,
        is_waited: impl FnOnce(T) -> bool,
    ) -> Result<(), E> {
        self.armed.swap(false, Ordering::AcqRel);
        if !is_waited(drain()?) {
            return Ok(());
        }
        self.arm(arm)?;
        drain().map(drop)
    }
}
