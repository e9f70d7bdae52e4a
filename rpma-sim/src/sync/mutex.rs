//! A lock.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, LockResult, Mutex as StdMutex, MutexGuard as StdGuard, PoisonError, TryLockError,
    TryLockResult,
};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::{Waiters, begin, ordered, own};
use crate::here;
use crate::power::{is_checking, leave_out, refuse};
use crate::state::Shared;

/// The real time between two attempts of a thread, while a thread outside of its fabric holds the
/// lock.
const LOOK: Duration = Duration::from_millis(1);

/// For how long a check waits for a lock, in real time, on a fabric on which other threads run.
const PATIENCE: Duration = Duration::from_secs(1);

/// A [`std::sync::Mutex`] for threads of a fabric.
///
/// A thread on a host of a fabric with a seed gives the turn away while it waits for the lock, and
/// the seed chooses which thread gets the lock next. Where the clock jumps, it can jump while a
/// thread holds the lock and others wait for it. Everywhere else this is a `std::sync::Mutex`,
/// with its poisoning.
pub struct Mutex<T: ?Sized> {
    owner: StdMutex<Option<Owner>>,
    waiters: Waiters,
    /// A check has waited for it in vain.
    is_refused: AtomicBool,
    inner: StdMutex<T>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    thread: ThreadId,
    /// The address of its fabric, and its number there.
    place: Option<(usize, u64)>,
}

impl Owner {
    fn current() -> Self {
        Self {
            thread: thread::current().id(),
            place: here::place().map(|(shared, number)| (address(&shared), number)),
        }
    }

    /// Whether it is a thread of this fabric, and still there.
    fn is_in(&self, shared: &Arc<Shared>) -> bool {
        self.place
            .is_some_and(|(of, number)| of == address(shared) && shared.order.has(number))
    }
}

/// Only to compare it: a lock may outlive the fabric.
fn address(shared: &Arc<Shared>) -> usize {
    Arc::as_ptr(shared).addr()
}

impl<T> Mutex<T> {
    /// As [`std::sync::Mutex::new`].
    pub const fn new(value: T) -> Self {
        Self {
            owner: StdMutex::new(None),
            waiters: Waiters::new(),
            is_refused: AtomicBool::new(false),
            inner: StdMutex::new(value),
        }
    }

    /// As [`std::sync::Mutex::into_inner`].
    ///
    /// # Errors
    ///
    /// The value, if the lock is poisoned.
    pub fn into_inner(self) -> LockResult<T> {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// As [`std::sync::Mutex::lock`].
    ///
    /// # Errors
    ///
    /// The guard, if the lock is poisoned.
    ///
    /// # Panics
    ///
    /// If every thread of the fabric waits and no event can come. In a check of
    /// [`Fabric::on_every_event`](crate::Fabric::on_every_event), if the program holds the lock
    /// while it calls `rpma`.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        begin("Mutex::lock", Location::caller());
        self.acquire()
    }

    /// As [`std::sync::Mutex::try_lock`].
    ///
    /// # Errors
    ///
    /// The guard, if the lock is poisoned; `WouldBlock`, if another thread holds it.
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        begin("Mutex::try_lock", Location::caller());
        self.try_acquire()
    }

    /// As [`std::sync::Mutex::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    /// As [`std::sync::Mutex::clear_poison`].
    pub fn clear_poison(&self) {
        self.inner.clear_poison();
    }

    /// As [`std::sync::Mutex::get_mut`].
    ///
    /// # Errors
    ///
    /// The value, if the lock is poisoned.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }

    /// Takes the lock, and waits for it if it must: without another thread's turn before.
    pub(super) fn acquire(&self) -> LockResult<MutexGuard<'_, T>> {
        let began = Instant::now();
        loop {
            match self.try_acquire() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => {}
            }
            if is_checking() {
                self.refuse_after(began);
                thread::sleep(LOOK);
                continue;
            }
            let Some((shared, _)) = ordered() else {
                let locked = self.inner.lock();
                return match locked {
                    Ok(inner) => Ok(self.guard(inner)),
                    Err(poisoned) => Err(PoisonError::new(self.guard(poisoned.into_inner()))),
                };
            };
            let owner = *own(&self.owner);
            if owner.is_some_and(|owner| owner.is_in(&shared)) {
                let entry = self.waiters.enter();
                // Its owner may have gone before it could see the entry.
                if *own(&self.owner) == owner {
                    entry.wait(None);
                }
                continue;
            }
            if owner.is_some() {
                shared.order.is_not_repeatable(|name| {
                    format!(
                        "thread {name} waited for an rpma::sync::Mutex whose owner is on none of the fabric's hosts"
                    )
                });
            }
            thread::sleep(LOOK);
        }
    }

    fn try_acquire(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(inner) => Ok(self.guard(inner)),
            Err(TryLockError::Poisoned(poisoned)) => {
                let guard = self.guard(poisoned.into_inner());
                Err(TryLockError::Poisoned(PoisonError::new(guard)))
            }
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        }
    }

    fn guard<'a>(&'a self, inner: StdGuard<'a, T>) -> MutexGuard<'a, T> {
        let owner = Owner::current();
        *own(&self.owner) = Some(owner);
        MutexGuard {
            lock: self,
            inner: Some(inner),
        }
    }

    /// Ends a check that waits for a thread that waits for the check.
    fn refuse_after(&self, began: Instant) {
        if leave_out() {
            panic!("the program holds a lock of the check");
        }
        let owner = *own(&self.owner);
        let is_own = owner.is_some_and(|owner| owner.thread == thread::current().id());
        // No other thread runs then.
        let seeded = here::place().filter(|(shared, _)| shared.order.takes_turns());
        let stands = seeded.is_some_and(|(shared, _)| owner.is_some_and(|it| it.is_in(&shared)));
        let is_refused = self.is_refused.load(Ordering::Relaxed);
        if is_own || stands || is_refused || began.elapsed() > PATIENCE {
            self.is_refused.store(true, Ordering::Relaxed);
            refuse(
                "a check of on_every_event locks an rpma::sync::Mutex that the program holds while it calls rpma: \
                 unlock it before the call, or give the promise that the check reads a lock of its own",
            );
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// A held [`Mutex`], as [`std::sync::MutexGuard`].
#[must_use = "if unused the Mutex will immediately unlock"]
#[clippy::has_significant_drop]
pub struct MutexGuard<'a, T: ?Sized + 'a> {
    pub(super) lock: &'a Mutex<T>,
    /// `None` at the end of its drop.
    inner: Option<StdGuard<'a, T>>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

const HELD: &str = "a guard holds the lock";

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // While it is held: afterwards another thread may be the owner.
        *own(&self.lock.owner) = None;
        self.inner = None;
        self.lock.waiters.wake_all();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
