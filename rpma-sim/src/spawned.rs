//! Threads that a fabric has started.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, Thread};

use crate::state::Shared;

/// A thread that [`Host::spawn`](crate::Host::spawn) has started: as [`std::thread::JoinHandle`], but its fabric knows
/// of who waits for its end.
pub struct JoinHandle<T> {
    thread: thread::JoinHandle<T>,
    shared: Arc<Shared>,
    number: u64,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(thread: thread::JoinHandle<T>, shared: Arc<Shared>, number: u64) -> Self {
        Self {
            thread,
            shared,
            number,
        }
    }

    /// Waits for its end. The clock can jump meanwhile, and with a seed others have the turn.
    ///
    /// # Errors
    ///
    /// What it has panicked with.
    pub fn join(self) -> thread::Result<T> {
        self.shared.await_end(self.number);
        self.thread.join()
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// Whether it has ended, in real time: with a seed, what depends on that is not repeated.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}
