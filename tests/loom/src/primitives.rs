//! Loom's atomics and locks, in the place of primitives.rs of both libraries.

use std::task::Waker;

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, MutexGuard};

loom::lazy_static! {
    /// The kernel's side of a futex. There is one in a model.
    static ref FUTEX: (loom::sync::Mutex<()>, Condvar) = Default::default();
}

/// The kernel looks at the word and puts the thread to sleep at once.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    let guard = FUTEX.0.lock().unwrap();
    if word.load(Ordering::Relaxed) == value {
        drop(FUTEX.1.wait(guard).unwrap());
    }
}

pub(crate) fn wake_one(_: &AtomicU32) {
    let _guard = FUTEX.0.lock().unwrap();
    FUTEX.1.notify_one();
}

/// rpma-async's wake-up: no waker of a model panics.
pub(crate) fn wake(waker: Waker) {
    waker.wake();
}

/// rpma-async's lock.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}
