//! Loom's atomics and locks, in the place of primitives.rs of rpma.

use loom::sync::Condvar;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
