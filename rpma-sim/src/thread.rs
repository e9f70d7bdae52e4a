//! Threads of the program: as [`std::thread`], on the host of the thread that starts them.
//!
//! Such a thread is one of the fabric's, from the call that starts it until its end.
//! `rpma::thread` has an example.

use std::fmt;
use std::io;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::thread;

pub use std::thread::{
    AccessError, LocalKey, Result, Thread, ThreadId, available_parallelism, current, panicking,
};

use crate::here::{self, Birth};
use crate::power::is_checking;
use crate::state::Shared;
use crate::sync::begin;
use crate::wait::pause;
pub use crate::wait::sleep;

/// As [`std::thread::spawn`]. If the calling thread is on a host, the new thread is on the same
/// host.
///
/// # Panics
///
/// If the system cannot start a thread.
pub fn spawn<F, T>(run: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(run).expect(NO_THREAD)
}

/// As [`std::thread::scope`]: its threads are on the hosts of those that start them. At its end it
/// waits for them as [`JoinHandle::join`] does.
///
/// # Panics
///
/// As [`std::thread::scope`].
pub fn scope<'env, F, T>(run: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let mut joining = None;
    thread::scope(|scope| {
        // SAFETY: `Scope` is `repr(transparent)` over a `thread::Scope`, and the lifetimes are the
        // same.
        let scope = unsafe { &*ptr::from_ref(scope).cast::<Scope<'_, 'env>>() };
        let _ending = Ending(scope.number(), &mut joining);
        run(scope)
    })
}

/// As [`std::thread::yield_now`]. If there is a seed, another thread of the fabric may go on.
pub fn yield_now() {
    here::calls("rpma::thread::yield_now");
    if is_checking() || !pause() {
        thread::yield_now();
    }
}

const NO_THREAD: &str = "the system has a thread";

/// Runs something on a thread of its own, which ends by itself. A fabric that
/// [follows](crate::Fabric::follow) the program's clock knows the time of no other thread: there it
/// runs here, and its waits are jumped over.
///
/// # Errors
///
/// If the system cannot start a thread.
#[doc(hidden)]
pub fn aside(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if here::place().is_some_and(|(shared, _)| shared.order.time.follows()) {
        run();
        return Ok(());
    }
    Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// As [`std::thread::Builder`], for [`spawn`] and [`Scope::spawn`].
#[derive(Debug)]
#[must_use = "must eventually spawn the thread"]
pub struct Builder {
    inner: thread::Builder,
    name: Option<String>,
}

impl Builder {
    /// As [`std::thread::Builder::new`].
    pub fn new() -> Self {
        Self {
            inner: thread::Builder::new(),
            name: None,
        }
    }

    /// As [`std::thread::Builder::name`]. The name is also that of the thread in a fabric's
    /// reports. Without one, the thread has the name of its host.
    pub fn name(self, name: String) -> Self {
        Self {
            inner: self.inner.name(name.clone()),
            name: Some(name),
        }
    }

    /// As [`std::thread::Builder::stack_size`].
    pub fn stack_size(self, size: usize) -> Self {
        Self {
            inner: self.inner.stack_size(size),
            name: self.name,
        }
    }

    /// As [`std::thread::Builder::spawn`].
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    ///
    /// # Panics
    ///
    /// If the name has a NUL byte.
    pub fn spawn<F, T>(self, run: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let birth = here::birth(self.name, None);
        let of = birth.as_ref().map(Birth::of);
        let thread = self.inner.spawn(move || {
            let _entered = birth.map(Birth::enter);
            run()
        })?;
        Ok(JoinHandle { thread, of })
    }

    /// As [`std::thread::Builder::spawn_scoped`].
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    ///
    /// # Panics
    ///
    /// If the name has a NUL byte.
    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        run: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let birth = here::birth(self.name, Some(scope.number()));
        let of = birth.as_ref().map(Birth::of);
        let run = move || {
            let _entered = birth.map(Birth::enter);
            run()
        };
        let thread = self.inner.spawn_scoped(&scope.0, run)?;
        Ok(ScopedJoinHandle { thread, of })
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

/// As [`std::thread::Scope`]: see [`scope`].
#[repr(transparent)]
pub struct Scope<'scope, 'env: 'scope>(thread::Scope<'scope, 'env>);

impl<'scope, 'env> Scope<'scope, 'env> {
    /// As [`std::thread::Scope::spawn`]. If the calling thread is on a host, the new thread is on
    /// the same host.
    ///
    /// # Panics
    ///
    /// If the system cannot start a thread.
    pub fn spawn<F, T>(&'scope self, run: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let thread = Builder::new().spawn_scoped(self, run);
        thread.expect(NO_THREAD)
    }

    /// No other scope has it meanwhile.
    fn number(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

/// A scope, which ends with the last of its threads. It joins them after its own end.
struct Ending<'a>(usize, &'a mut Option<Joining>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some((shared, _)) = here::place() {
            here::calls("the end of thread::scope");
            shared.await_scope(self.0);
            *self.1 = Joining::begin(&shared);
        }
    }
}

/// The calling thread waits in the system for threads that are at their ends here.
struct Joining(Arc<Shared>, u64);

impl Joining {
    /// For the join of a thread, if it was one of the same fabric.
    fn of(joined: &ThreadOfFabric) -> Option<Self> {
        Self::begin(&joined.shared)
    }

    fn begin(shared: &Arc<Shared>) -> Option<Self> {
        let thread = here::thread_in(shared)?;
        shared.order.joins(thread, true);
        Some(Self(Arc::clone(shared), thread))
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.order.joins(self.1, false);
    }
}

/// Waits for a thread that [`spawn`] or [`Host::spawn`](crate::Host::spawn) has started: as
/// [`std::thread::JoinHandle`]. The fabric controls the wait for its end.
pub struct JoinHandle<T> {
    thread: thread::JoinHandle<T>,
    of: Option<ThreadOfFabric>,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(thread: thread::JoinHandle<T>, of: Option<ThreadOfFabric>) -> Self {
        Self { thread, of }
    }

    /// Waits for the end of the thread. Meanwhile the clock can jump, and with a seed other
    /// threads have the turn.
    ///
    /// # Errors
    ///
    /// The value of its panic.
    pub fn join(self) -> Result<T> {
        await_end(self.of.as_ref());
        let _joining = self.of.as_ref().and_then(Joining::of);
        self.thread.join()
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// Returns whether the thread has ended. Without a seed, that depends on real time.
    #[must_use]
    #[track_caller]
    pub fn is_finished(&self) -> bool {
        match ended(self.of.as_ref(), Location::caller()) {
            Some(ended) => ended,
            None => self.thread.is_finished(),
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// A thread of a [`Scope`]: as [`JoinHandle`].
pub struct ScopedJoinHandle<'scope, T> {
    thread: thread::ScopedJoinHandle<'scope, T>,
    of: Option<ThreadOfFabric>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// As [`JoinHandle::join`].
    ///
    /// # Errors
    ///
    /// The value of its panic.
    pub fn join(self) -> Result<T> {
        await_end(self.of.as_ref());
        let _joining = self.of.as_ref().and_then(Joining::of);
        self.thread.join()
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// As [`JoinHandle::is_finished`].
    #[must_use]
    #[track_caller]
    pub fn is_finished(&self) -> bool {
        match ended(self.of.as_ref(), Location::caller()) {
            Some(ended) => ended,
            None => self.thread.is_finished(),
        }
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedJoinHandle").finish_non_exhaustive()
    }
}

pub(crate) struct ThreadOfFabric {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u64,
}

fn await_end(of: Option<&ThreadOfFabric>) {
    if let Some(of) = of {
        here::calls("JoinHandle::join");
        of.shared.await_end(of.number);
    }
}

/// Whether a thread has ended, as far as the seed repeats it.
fn ended(of: Option<&ThreadOfFabric>, at: &'static Location<'static>) -> Option<bool> {
    let of = of.filter(|of| of.shared.order.takes_turns())?;
    begin("JoinHandle::is_finished", at);
    Some(!of.shared.order.has(of.number))
}
