//! [`Monitor`]: a value behind a lock, and the tasks that wait for its changes.
//!
//! It is for the state of a program, such as the end of the acknowledged records. A task waits with
//! a look at the value, which is repeated after each change. After a look in vain it leaves its
//! waker under the lock of the value, so no change is missed. Wakers are called in the order in
//! which the tasks began to wait, and not under the lock. Tasks that wait for a number come after
//! those that look at each change, in the order of their numbers.
//!
//! A value that has a progress, a number that mostly grows, wakes the tasks that wait for a number
//! when that is reached. Otherwise a thousand tasks that wait for a thousand records would look a
//! million times.

use std::fmt;
use std::future::poll_fn;
use std::mem;
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
    /// By the number for which they wait: 0 is each change.
    waiters: Waiters,
    progress: fn(&T) -> u64,
    value: Mutex<T>,
}

impl<T> Monitor<T> {
    /// Makes a monitor with this value. The reactor's driver times the limits of its waits
    /// ([`Reactor::timeout`]).
    #[must_use]
    pub fn new(reactor: &Reactor, value: T) -> Self {
        Self::with_progress(reactor, value, |_| u64::MAX)
    }

    /// Makes a monitor of a value that has a progress, for
    /// [`until_reached`](Self::until_reached): the position up to which a log is durable, for
    /// example. The progress of a value that has ended is `u64::MAX`, so that all tasks look.
    ///
    /// `progress` is called under the lock, after each change and each look.
    ///
    /// ```
    /// # #[cfg(feature = "sim")]
    /// # async fn example(reactor: &rpma_async::Reactor) {
    /// use std::time::Duration;
    ///
    /// use rpma_async::Monitor;
    ///
    /// const LIMIT: Duration = Duration::from_secs(10);
    ///
    /// /// A log of which so many bytes are durable, if it has not ended.
    /// type Durable = Option<u64>;
    ///
    /// let durable = Monitor::with_progress(reactor, Some(0), |durable: &Durable| {
    ///     durable.unwrap_or(u64::MAX)
    /// });
    /// durable.change(|durable| *durable = Some(4096));
    /// // A record that ends at 4096. Records after it do not wake this task.
    /// let is_there = |durable: &Durable| match durable {
    ///     Some(durable) => (*durable >= 4096).then_some(Ok(())),
    ///     None => Some(Err("the log has ended")),
    /// };
    /// let appended = durable.until_reached(4096, LIMIT, is_there).await;
    /// # assert_eq!(appended, Some(Ok(())));
    /// # }
    /// ```
    #[must_use]
    pub fn with_progress(reactor: &Reactor, value: T, progress: fn(&T) -> u64) -> Self {
        Self {
            reactor: Arc::clone(reactor.handle()),
            waiters: Waiters::default(),
            progress,
            value: Mutex::new(value),
        }
    }

    /// Looks at the value. It wakes no task.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.value())
    }

    /// Changes the value. Then the tasks that wait look again: those of
    /// [`until_reached`](Self::until_reached) if their number is reached.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        // Also if it panics: the value keeps the changes made so far.
        let mut wake = WakeReached {
            monitor: self,
            reached: u64::MAX,
        };
        let mut value = self.value();
        let result = change(&mut value);
        wake.reached = (self.progress)(&value);
        result
    }

    /// Waits until `look` returns `Some`, for at most `limit` (`Duration::MAX` is for ever). It
    /// calls `look` at once, and again after each change. `None` means that the limit has passed,
    /// or that the driver of the reactor is gone ([`Reactor::timeout`]).
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    pub async fn until<R>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        self.wait(0, limit, |value| (look(value), false)).await
    }

    /// Waits as [`until`](Self::until) does, and looks again only after changes with which the
    /// [progress](Self::with_progress) is at least `number`. So of many tasks that wait, each
    /// change wakes those that it is for.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    pub async fn until_reached<R>(
        &self,
        number: u64,
        limit: Duration,
        mut look: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        let look = |value: &mut T| (look(value), false);
        self.wait(number, limit, look).await
    }

    /// Does the same as [`until`](Self::until), and can change the value: for example, it waits for
    /// a free place and takes it. `change` may change the value only in the call that returns
    /// `Some`. Then the tasks that wait look again, as after [`change`](Self::change).
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
        self.wait(0, limit, |value| (change(value), true)).await
    }

    async fn wait<R>(
        &self,
        number: u64,
        limit: Duration,
        mut look: impl FnMut(&mut T) -> (Option<R>, bool),
    ) -> Option<R> {
        let mut place = Place {
            monitor: self,
            number,
            ticket: Ticket::default(),
        };
        let until = poll_fn(|cx| place.poll(cx, &mut look));
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

/// The place of a task that waits for a change.
struct Place<'a, T> {
    monitor: &'a Monitor<T>,
    /// It looks when this is reached.
    number: u64,
    ticket: Ticket,
}

impl<T> Place<'_, T> {
    /// The look returns as well whether it changes the value.
    fn poll<R>(
        &mut self,
        cx: &Context<'_>,
        look: impl FnOnce(&mut T) -> (Option<R>, bool),
    ) -> Poll<R> {
        let Self {
            monitor,
            number,
            ticket,
        } = self;
        // If it panics, it may have changed the value.
        let mut wake = WakeReached {
            monitor,
            reached: u64::MAX,
        };
        let mut value = monitor.value();
        let (found, changes) = look(&mut value);
        let Some(result) = found else {
            mem::forget(wake);
            // Before the lock goes, so that the next change wakes the task.
            let old = monitor.waiters.wait_for(*number, ticket, cx.waker());
            drop(value);
            drop(old);
            return Poll::Pending;
        };
        wake.reached = (monitor.progress)(&value);
        drop(value);
        if !changes {
            mem::forget(wake);
        }
        self.leave();
        Poll::Ready(result)
    }

    fn leave(&mut self) {
        self.monitor.waiters.leave(&mut self.ticket);
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Wakes the tasks whose number is reached when it is dropped.
struct WakeReached<'a, T> {
    monitor: &'a Monitor<T>,
    reached: u64,
}

impl<T> Drop for WakeReached<'_, T> {
    fn drop(&mut self) {
        // The lock of the value orders this and the looks of the tasks.
        if self.monitor.waiters.any_up_to(self.reached) {
            self.monitor.waiters.wake_up_to(self.reached);
        }
    }
}
