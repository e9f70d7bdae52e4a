//! [`block_on`]: a thread that awaits a future.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use self::parker::Parker;
use crate::clock;

/// Awaits a future on this thread, for at most `limit` (`Duration::MAX` is for ever): for programs
/// without a runtime. After the limit it drops the future and returns `None`.
///
/// With the feature `sim`, on a host of a fabric, the fabric controls the wait. Its clock can jump
/// over the wait (`rpma::sim::Fabric::jump_over_waits`), and a seed can repeat it
/// (`rpma::sim::repeatable`). Any thread may wake this one. Only wake-ups by threads of
/// [`rpma::thread`] are repeated with the seed. On a thread without a host, the limit counts real
/// time.
///
/// # Panics
///
/// With the feature `sim`, on a host: if every thread of the fabric waits and no event can come.
pub fn block_on<F: Future>(future: F, limit: Duration) -> Option<F::Output> {
    let mut future = pin!(future);
    let until = clock::after(limit);
    let parker = Arc::new(Parker::new());
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        let left = until.map(|until| until.saturating_duration_since(clock::now()));
        if left == Some(Duration::ZERO) {
            return None;
        }
        parker.park(left);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

/// The system's: a wake-up without a sleep is one exchange, and no system call.
#[cfg(not(feature = "sim"))]
mod parker {
    use std::thread::{self, Thread};
    use std::time::Duration;

    pub(super) struct Parker(Thread);

    impl Parker {
        /// The waker of the calling thread.
        pub(super) fn new() -> Self {
            Self(thread::current())
        }

        /// Sleeps until it is woken, for at most so long. It may also return without a reason.
        pub(super) fn park(&self, limit: Option<Duration>) {
            match limit {
                Some(limit) => thread::park_timeout(limit),
                None => thread::park(),
            }
        }

        pub(super) fn unpark(&self) {
            self.0.unpark();
        }
    }
}

/// In the fabric's time and order.
#[cfg(feature = "sim")]
mod parker {
    use std::time::Duration;

    use rpma::sync::{Condvar, Mutex, MutexGuard, PoisonError};

    pub(super) struct Parker {
        is_woken: Mutex<bool>,
        changed: Condvar,
    }

    impl Parker {
        pub(super) fn new() -> Self {
            Self {
                is_woken: Mutex::new(false),
                changed: Condvar::new(),
            }
        }

        pub(super) fn park(&self, limit: Option<Duration>) {
            let mut is_woken = self.is_woken();
            if !*is_woken {
                // A panic under the lock leaves it whole.
                is_woken = match limit {
                    Some(limit) => {
                        let waited = self.changed.wait_timeout(is_woken, limit);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => {
                        let waited = self.changed.wait(is_woken);
                        waited.unwrap_or_else(PoisonError::into_inner)
                    }
                };
            }
            *is_woken = false;
        }

        pub(super) fn unpark(&self) {
            *self.is_woken() = true;
            self.changed.notify_one();
        }

        fn is_woken(&self) -> MutexGuard<'_, bool> {
            self.is_woken.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
