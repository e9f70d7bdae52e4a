//! The atomics, the locks and the wake-ups of the modules that call no verbs: `tests/loom` puts
//! its own in their place.

use std::panic::{AssertUnwindSafe, catch_unwind};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::task::Waker;

/// Wakes a task. A waker runs code of the program. If that panics, the caller goes on: other tasks
/// are woken, other completions are settled, and the counts are right.
pub(crate) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        log::error!("the waker of a task panicked");
    }
}

/// A lock. A panic under it, in the clone of a waker, leaves its value whole.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
