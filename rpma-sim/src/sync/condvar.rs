//! A condition variable.

use std::panic::Location;
use std::sync::{LockResult, PoisonError};
use std::time::{Duration, Instant};

use super::{MutexGuard, Waiters, begin, deadline};
use crate::wait::now;

/// A [`std::sync::Condvar`] for threads of a fabric. Its locks are [`Mutex`](super::Mutex)es.
///
/// On a host of a fabric with a seed, the seed chooses which thread
/// [`notify_one`](Self::notify_one) wakes, and limits are virtual. Where the clock jumps, limits
/// are virtual too. Everywhere else it waits in real time. It never wakes a thread without a
/// notification.
#[derive(Debug)]
pub struct Condvar {
    waiters: Waiters,
}

impl Condvar {
    /// As [`std::sync::Condvar::new`].
    #[must_use]
    pub const fn new() -> Self {
        Self {
            waiters: Waiters::new(),
        }
    }

    /// As [`std::sync::Condvar::wait`].
    ///
    /// # Errors
    ///
    /// The guard, if the lock is poisoned.
    ///
    /// # Panics
    ///
    /// If every thread of the fabric waits and no event can come.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let waited = self.wait_until(guard, None, "Condvar::wait");
        split(waited).0
    }

    /// As [`std::sync::Condvar::wait_while`].
    ///
    /// # Errors
    ///
    /// The guard, if the lock is poisoned.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_while<'a, T, F>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: F,
    ) -> LockResult<MutexGuard<'a, T>>
    where
        F: FnMut(&mut T) -> bool,
    {
        while condition(&mut *guard) {
            guard = split(self.wait_until(guard, None, "Condvar::wait_while")).0?;
        }
        Ok(guard)
    }

    /// As [`std::sync::Condvar::wait_timeout`].
    ///
    /// # Errors
    ///
    /// The guard and the result, if the lock is poisoned.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait), if the limit is so long that no `Instant` is its end: then the wait
    /// has no limit.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.wait_until(guard, deadline(limit), "Condvar::wait_timeout")
    }

    /// As [`std::sync::Condvar::wait_timeout_while`].
    ///
    /// # Errors
    ///
    /// The guard and the result, if the lock is poisoned.
    ///
    /// # Panics
    ///
    /// As [`wait_timeout`](Self::wait_timeout).
    #[track_caller]
    pub fn wait_timeout_while<'a, T, F>(
        &self,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
        mut condition: F,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>
    where
        F: FnMut(&mut T) -> bool,
    {
        let deadline = deadline(limit);
        loop {
            if !condition(&mut *guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            if deadline.is_some_and(|at| at <= now()) {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = self
                .wait_until(guard, deadline, "Condvar::wait_timeout_while")?
                .0;
        }
    }

    /// As [`std::sync::Condvar::notify_one`].
    #[track_caller]
    pub fn notify_one(&self) {
        begin("Condvar::notify_one", Location::caller());
        self.waiters.wake_one();
    }

    /// As [`std::sync::Condvar::notify_all`].
    #[track_caller]
    pub fn notify_all(&self) {
        begin("Condvar::notify_all", Location::caller());
        self.waiters.wake_all();
    }

    #[track_caller]
    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
        call: &'static str,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        // The lock is held: a thread that changes the condition first would not have to notify.
        begin(call, Location::caller());
        let lock = guard.lock;
        let entry = self.waiters.enter();
        drop(guard);
        let result = WaitTimeoutResult(!entry.wait(deadline));
        match lock.acquire() {
            Ok(guard) => Ok((guard, result)),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), result))),
        }
    }
}

/// A result without its time-out, and the time-out.
fn split<T>(waited: LockResult<(T, WaitTimeoutResult)>) -> (LockResult<T>, WaitTimeoutResult) {
    match waited {
        Ok((guard, result)) => (Ok(guard), result),
        Err(poisoned) => {
            let (guard, result) = poisoned.into_inner();
            (Err(PoisonError::new(guard)), result)
        }
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a wait has ended by its limit. It replaces [`std::sync::WaitTimeoutResult`], which has
/// no constructor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the limit has passed without a notification.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
