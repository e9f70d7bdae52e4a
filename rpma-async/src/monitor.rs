//! [`Monitor`]: a value behind a lock, and the tasks that wait for its changes.
//!
//! It is for the state of a program: what is appended, committed, acknowledged. A task waits with a
//! look at the value, which is repeated after each change. It leaves its waker before the look, so
//! no change is missed. Wakers are called in the order in which the tasks began to wait, and
//! without the lock.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rpma::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::Handle;
use crate::reactor::Reactor;
use crate::timeout::timeout;
use crate::waiters::{Ticket, Waiters};

/// Holds a value behind a lock: the state that tasks of a program share. It wakes the tasks that
/// wait for a change of the value. A monitor needs no runtime, because a [`Reactor`] times the
/// limits of its waits.
///
/// On the simulated fabric a seed repeats the order in which tasks go on: they are woken in the
/// order in which they began to wait. The channels of some runtimes choose by chance.
///
/// ```
/// # #[cfg(feature = "sim")]
/// # async fn example(reactor: &rpma_async::Reactor) {
/// use std::time::Duration;
///
/// use rpma_async::Monitor;
///
/// let acknowledged = Monitor::new(reactor, 0_u64);
/// // One task acknowledges …
/// acknowledged.change(|end| *end = 4096);
/// // … and another one waits for that, for at most ten seconds.
/// let is_there = |end: &u64| (*end >= 4096).then_some(*end);
/// let end = acknowledged.until(Duration::from_secs(10), is_there).await;
/// # assert_eq!(end, Some(4096));
/// # }
/// ```
///
/// A look and a change run under the lock, on the thread that calls. They must not use the same
/// monitor, and should be short. They may call methods that post
/// ([`Replicas::commit`](crate::Replicas::commit), [`Writer::commit`](crate::Writer::commit),
/// [`Conn::write`](crate::Conn::write) and others), because these never wait. So the state and the
/// order of commits agree. If a look or a change panics, the value keeps the changes made so far,
/// and all tasks that wait look again.
pub struct Monitor<T> {
    reactor: Arc<Handle>,
    waiters: Waiters,
    value: Mutex<T>,
}

impl<T> Monitor<T> {
    /// Makes a monitor with this value. The reactor's driver times the limits of its waits
    /// ([`Reactor::timeout`]).
    #[must_use]
    pub fn new(reactor: &Reactor, value: T) -> Self {
        Self {
            reactor: Arc::clone(reactor.handle()),
            waiters: Waiters::default(),
            value: Mutex::new(value),
        }
    }

    /// Looks at the value. It wakes no task.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.value())
    }

    /// Changes the value. Then all tasks that wait look again.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        // Also if it panics: the value keeps the changes made so far.
        let _wake = WakeAll(&self.waiters);
        change(&mut self.value())
    }

    /// Waits until `look` returns `Some`, for at most `limit` (`Duration::MAX` is for ever). It
    /// calls `look` at once, and again after each change. `None` means that the limit has passed,
    /// or that the driver of the reactor is gone ([`Reactor::timeout`]). If the driver is gone,
    /// other calls of the reactor fail with that reason.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    pub async fn until<R>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        self.wait(limit, |value| (look(value), false)).await
    }

    /// Does the same as [`until`](Self::until), and can change the value: for example, it waits for
    /// a free place and takes it. `change` may change the value only in the call that returns
    /// `Some`. Then all tasks that wait look again.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time. The poll in which the value is changed returns
    /// the result.
    pub async fn change_when<R>(
        &self,
        limit: Duration,
        mut change: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        self.wait(limit, |value| (change(value), true)).await
    }

    async fn wait<R>(
        &self,
        limit: Duration,
        look: impl FnMut(&mut T) -> (Option<R>, bool),
    ) -> Option<R> {
        let until = Until {
            monitor: self,
            ticket: Ticket::default(),
            look,
        };
        timeout(&self.reactor, limit, until).await
    }

    fn value(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Monitor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the value: the caller may hold the lock.
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}

/// A wait for a change. Its look returns as well whether it changes the value.
struct Until<'a, T, F> {
    monitor: &'a Monitor<T>,
    ticket: Ticket,
    look: F,
}

/// The look is called, and never pinned.
impl<T, F> Unpin for Until<'_, T, F> {}

impl<T, R, F: FnMut(&mut T) -> (Option<R>, bool)> Future for Until<'_, T, F> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let Self {
            monitor,
            ticket,
            look,
        } = &mut *self;
        // Before the look, so that a later change wakes the task.
        monitor.waiters.wait(ticket, cx.waker());
        // If it panics, it may have changed the value.
        let wake = WakeAll(&monitor.waiters);
        let (found, changes) = look(&mut monitor.value());
        if found.is_none() || !changes {
            mem::forget(wake);
        }
        let Some(result) = found else {
            return Poll::Pending;
        };
        monitor.waiters.leave(ticket);
        Poll::Ready(result)
    }
}

/// Wakes all tasks when it is dropped.
struct WakeAll<'a>(&'a Waiters);

impl Drop for WakeAll<'_> {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

impl<T, F> Drop for Until<'_, T, F> {
    fn drop(&mut self) {
        self.monitor.waiters.leave(&mut self.ticket);
    }
}
