//! The lock of the data path: one word, and the kernel's futex for threads that have to wait.
//!
//! `std::sync::Mutex` looks for panics on both ways. And a lock that may wait in the middle of a
//! post makes the compiler keep the post's arguments in memory. A poster tries this one, and takes
//! another way without it. It guards no data by itself: it protects atomics, or the device's
//! queues.
//!
//! Two bits, so that taking it and letting it go are two instructions each (`lock bts`, `lock dec`,
//! and a branch). Otherwise it is like the third mutex of Ulrich Drepper's "Futexes Are Tricky", as
//! libc's and std's are. The package tests/loom searches for orders of threads in which it fails.

use crate::primitives::{AtomicU32, Ordering, sleep_while, wake_one};

const HELD: u32 = 1;
/// A thread sleeps, or may sleep, until it is free.
const AWAITED: u32 = 2;

#[derive(Debug)]
pub(crate) struct Lock(AtomicU32);

/// The lock, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock);

impl Lock {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline(always)]
    pub(crate) fn try_acquire(&self) -> Option<Held<'_>> {
        match self.0.fetch_or(HELD, Ordering::Acquire) & HELD {
            0 => Some(Held(self)),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn acquire(&self) -> Held<'_> {
        match self.try_acquire() {
            Some(held) => held,
            None => self.wait(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Held<'_> {
        // Who gets it here leaves it as awaited: others may sleep as well.
        while self.0.fetch_or(HELD | AWAITED, Ordering::Acquire) & HELD != 0 {
            sleep_while(&self.0, HELD | AWAITED);
        }
        Held(self)
    }

    /// A woken thread tries again, and sets again that the lock is awaited.
    #[cold]
    #[inline(never)]
    fn wake(&self) {
        self.0.fetch_and(!AWAITED, Ordering::Relaxed);
        wake_one(&self.0);
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.0.fetch_sub(HELD, Ordering::Release) != HELD {
            self.0.wake();
        }
    }
}
