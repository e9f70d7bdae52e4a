//! [`Turn`]: after some results without a sleep, a task lets others run.
//!
//! Otherwise a loop over operations that are complete at once would keep a runtime's thread to
//! itself.

use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Context;

/// Results that one object gives without a sleep.
const RESULTS: u32 = 64;

/// The results of one object since a task has slept.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU32);

impl Turn {
    /// Counts a result that may come now. `false`: the turn is over, see [`ends`](Self::ends).
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        let results = self.0.load(Ordering::Relaxed);
        // A count that another thread has lost only makes the turn longer.
        self.0.store(results.wrapping_add(1), Ordering::Relaxed);
        results < RESULTS
    }

    /// Whether the turn is over: the task is polled again after others.
    pub(crate) fn ends(&self, cx: &Context<'_>) -> bool {
        if self.0.load(Ordering::Relaxed) < RESULTS {
            return false;
        }
        self.0.store(0, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        true
    }

    /// Counts a result, and returns whether the task lets others run before it gets it.
    #[inline]
    pub(crate) fn ends_before(&self, cx: &Context<'_>) -> bool {
        !self.goes_on() && self.ends(cx)
    }

    /// A task sleeps.
    pub(crate) fn rest(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
