//! The primitives under the lock and the slots: atomics, std's mutex, and the kernel's futex.
//!
//! They have a module of their own because the package tests/loom replaces it: there the same
//! files (lock.rs and those of slots/) run with loom's atomics and mutexes.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::futex::{Flags, wait, wake};

use crate::clock::pause;

/// Sleeps if the word has this value, until another thread wakes this one. It may also return
/// without a reason.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    if pause() {
        return;
    }
    // The word has another value, or there was a signal: the caller looks again in any case.
    let _ = wait(word, Flags::PRIVATE, value, None);
}

/// Wakes one of the threads that sleep because of the word.
pub(crate) fn wake_one(word: &AtomicU32) {
    let woken = wake(word, Flags::PRIVATE, 1);
    debug_assert!(woken.is_ok(), "{woken:?}");
}
