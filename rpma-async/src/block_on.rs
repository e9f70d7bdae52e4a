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
    let parker = parker::take();
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    let output = loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            break Some(output);
        }
        let left = until.map(|until| until.saturating_duration_since(clock::now()));
        if left == Some(Duration::ZERO) {
            break None;
        }
        parker.park(left);
    };
    drop(waker);
    parker::give_back(parker);
    output
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

/// The system's: a wake-up without a sleep is two exchanges, and no system call. A thread keeps its
/// parker for its next wait, so that waits allocate nothing. A wait inside of another one's poll has
/// its own.
#[cfg(not(feature = "sim"))]
mod parker {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, Thread};
    use std::time::Duration;

    thread_local! {
        static SPARE: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
    }

    pub(super) struct Parker {
        thread: Thread,
        /// The token of the thread is not enough: other code parks as well, inside of a poll, and
        /// takes it.
        is_woken: AtomicBool,
    }

    /// The waker of the calling thread.
    pub(super) fn take() -> Arc<Parker> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        // A waker that a future has left may still wake the last wait.
        let spare = spare.and_then(|mut spare| {
            *Arc::get_mut(&mut spare)?.is_woken.get_mut() = false;
            Some(spare)
        });
        let new = || Parker {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        };
        spare.unwrap_or_else(|| Arc::new(new()))
    }

    pub(super) fn give_back(parker: Arc<Parker>) {
        // At the end of the thread there is no place for it.
        let _at_end = SPARE.try_with(|spare| spare.set(Some(parker)));
    }

    impl Parker {
        /// Sleeps until it is woken, for at most so long. It may also return without a reason.
        pub(super) fn park(&self, limit: Option<Duration>) {
            if !self.is_woken.swap(false, Ordering::Acquire) {
                match limit {
                    Some(limit) => thread::park_timeout(limit),
                    None => thread::park(),
                }
                self.is_woken.swap(false, Ordering::Acquire);
            }
        }

        pub(super) fn unpark(&self) {
            self.is_woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }
}

/// In the fabric's time and order.
#[cfg(feature = "sim")]
mod parker {
    use std::sync::Arc;
    use std::time::Duration;

    use rpma::sync::{Condvar, Mutex, MutexGuard, PoisonError};

    pub(super) struct Parker {
        is_woken: Mutex<bool>,
        changed: Condvar,
    }

    pub(super) fn take() -> Arc<Parker> {
        Arc::new(Parker {
            is_woken: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    pub(super) fn give_back(_: Arc<Parker>) {}

    impl Parker {
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

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::task::Poll;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::block_on;

    /// A wake-up that comes while the future is polled is not lost to other code that parks the thread
    /// there, or that waits there itself.
    #[test]
    fn a_wait_keeps_its_wake_ups() {
        for polls_inside in [true, false] {
            let mut was_polled = false;
            let future = poll_fn(|cx| {
                if was_polled {
                    return Poll::Ready(());
                }
                was_polled = true;
                cx.waker().wake_by_ref();
                if polls_inside {
                    let inside = block_on(pending::<()>(), Duration::from_millis(1));
                    assert!(inside.is_none());
                } else {
                    thread::park_timeout(Duration::from_millis(1));
                }
                Poll::Pending
            });
            let began = Instant::now();
            let waited = block_on(future, Duration::from_secs(20));
            assert!(
                waited.is_some() && began.elapsed() < Duration::from_secs(10),
                "{polls_inside}"
            );
        }
    }
}
