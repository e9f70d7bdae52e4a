//! Loom's locks, in the place of rpma's sync.rs, and the limits of rpma's deadline.rs.
//!
//! Loom has no time. A wait with a limit gives its lock up, takes it again, and has not been
//! notified. So its limit passes in every order with the calls of other threads. A deadline passes
//! when its thread asks it for the third time: once it has slept.

pub(crate) use std::sync::{Arc, LockResult, PoisonError};

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use loom::thread;

#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    guard: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let guard = Some(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(MutexGuard { lock: self, guard })
    }

    pub(crate) fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, mut held: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let guard = held.guard.take().unwrap();
        held.guard = Some(self.0.wait(guard).unwrap_or_else(PoisonError::into_inner));
        Ok(held)
    }

    /// The limit passes.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        held: MutexGuard<'a, T>,
        _: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let lock = held.lock;
        drop(held);
        thread::yield_now();
        let held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((held, true))
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

loom::thread_local! {
    static ASKED: Cell<u32> = Cell::new(0);
}

/// In the place of rpma's deadline.rs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    Never,
    #[allow(dead_code, reason = "the instant has no part in a model")]
    At(Instant),
}

impl Deadline {
    /// [`Duration::MAX`] is no limit.
    pub(crate) fn after(limit: Duration) -> Self {
        if limit == Duration::MAX {
            return Self::Never;
        }
        ASKED.with(|asked| asked.set(if limit.is_zero() { 3 } else { 0 }));
        Self::At(now())
    }

    pub(crate) fn has_passed(self) -> bool {
        let ask = |asked: &Cell<u32>| {
            asked.set(asked.get() + 1);
            asked.get() >= 3
        };
        matches!(self, Self::At(_)) && ASKED.with(ask)
    }

    pub(crate) fn left(self) -> Duration {
        Duration::ZERO
    }
}

/// In the place of rpma's clock.rs.
pub(crate) fn now() -> Instant {
    Instant::now()
}
