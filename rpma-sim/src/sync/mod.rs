//! Locks, condition variables and channels of the program, as those of std. The fabric decides the
//! order of their waits.
//!
//! The fabric registers each wait of a thread that is on a host, and each wake-up. `rpma::sync`
//! has an example.
//!
//! A lock, condition variable or channel has a list of the threads that wait at it, each with a
//! flag. A thread that wakes another one takes it from the list and sets its flag, so the woken
//! thread counts as ready before the clock can jump.

// Locks: those here come after the state's and after order's `threads`. A thread that waits holds
// no lock of these.

mod condvar;
pub mod mpsc;
mod mutex;

use std::panic::Location;
use std::sync::{Arc, Condvar as StdCondvar, Mutex as StdMutex, MutexGuard as StdGuard};
use std::sync::{PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::choices::Kind;
use crate::explore::Meeting;
use crate::here;
use crate::order::Event;
use crate::power::{is_checking, refuse};
use crate::state::Shared;
use crate::wait::now;

pub use self::condvar::{Condvar, WaitTimeoutResult};
pub use self::mutex::{Mutex, MutexGuard};

/// The fabric and the number of the calling thread, if its waits are the fabric's matter.
fn ordered() -> Option<(Arc<Shared>, u64)> {
    here::place().filter(|(shared, _)| shared.order.is_on())
}

/// An operation begins: with a seed, another thread may go on first. A check keeps the turn.
pub(crate) fn begin(call: &'static str, at: &'static Location<'static>) {
    if is_checking() {
        return;
    }
    here::calls(call);
    if let Some((shared, _)) = here::place() {
        shared.before_sync(call);
        shared.point(at);
        let choices = &shared.order.choices;
        choices.with_script(|script| script.meet(Meeting::Shared, call));
    }
}

fn deadline(limit: Duration) -> Option<Instant> {
    now().checked_add(limit)
}

fn own<T>(lock: &StdMutex<T>) -> StdGuard<'_, T> {
    // It is consistent whenever something could panic.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that waits for another thread of the program.
#[derive(Debug)]
pub(crate) struct Waiter {
    woken: StdMutex<bool>,
    told: StdCondvar,
    /// The fabric in which it waits.
    fabric: Option<Weak<Shared>>,
}

impl Waiter {
    fn new() -> Self {
        Self {
            woken: StdMutex::new(false),
            told: StdCondvar::new(),
            fabric: ordered().map(|(shared, _)| Arc::downgrade(&shared)),
        }
    }

    pub(crate) fn is_woken(&self) -> bool {
        *own(&self.woken)
    }

    /// Waits in real time until it is woken, up to a limit.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        let woken = own(&self.woken);
        let sleeps = |woken: &mut bool| !*woken;
        // The lock is given back at once. It is not poisoned.
        match limit {
            Some(limit) => drop(self.told.wait_timeout_while(woken, limit, sleeps)),
            None => drop(self.told.wait_while(woken, sleeps)),
        }
    }

    fn wake(&self) {
        if let Some(shared) = self.fabric.as_ref().and_then(Weak::upgrade) {
            if here::thread_in(&shared).is_none() {
                shared.order.is_not_repeatable(|name| {
                    format!("thread {name} woke one of the fabric's, and was on none of its hosts")
                });
            }
        }
        *own(&self.woken) = true;
        self.told.notify_all();
    }
}

#[derive(Debug)]
struct Waiters {
    all: StdMutex<Vec<Arc<Waiter>>>,
}

impl Waiters {
    const fn new() -> Self {
        Self {
            all: StdMutex::new(Vec::new()),
        }
    }

    /// The calling thread waits here from now on: a thread that wakes it before it sleeps has woken
    /// it.
    fn enter(&self) -> Entry<'_> {
        let waiter = Arc::new(Waiter::new());
        own(&self.all).push(Arc::clone(&waiter));
        Entry {
            waiters: self,
            waiter,
        }
    }

    fn is_empty(&self) -> bool {
        own(&self.all).is_empty()
    }

    /// Wakes one of them: the seed chooses, and without one the first.
    fn wake_one(&self) {
        let mut all = own(&self.all);
        if all.is_empty() {
            return;
        }
        let seeded = here::place().filter(|(shared, _)| shared.order.seed().is_some());
        let chosen = seeded.map_or(0, |(shared, _)| {
            let what = || format!("a notification of {} waiting threads", all.len());
            shared
                .order
                .choices
                .choose(Kind::Notify, all.len() as u32, what)
        });
        let waiter = all.remove(chosen as usize);
        drop(all);
        waiter.wake();
    }

    fn wake_all(&self) {
        let all = std::mem::take(&mut *own(&self.all));
        all.iter().for_each(|waiter| waiter.wake());
    }
}

/// That a thread waits at an object.
struct Entry<'a> {
    waiters: &'a Waiters,
    waiter: Arc<Waiter>,
}

impl Entry<'_> {
    /// Waits until a thread wakes it; `false` after the deadline.
    fn wait(&self, deadline: Option<Instant>) -> bool {
        if is_checking() {
            refuse("a check of on_every_event waits for the program, which waits for the check");
        }
        match ordered() {
            Some((shared, thread)) => {
                let is_over = || deadline.is_some_and(|at| at <= shared.order.time.now());
                while !self.waiter.is_woken() && !is_over() {
                    let event = Event::Woken(Arc::clone(&self.waiter));
                    // Neither a signal nor a descriptor ends it.
                    let _ = shared.wait(thread, &mut [], deadline, event);
                }
            }
            None => self
                .waiter
                .park(deadline.map(|at| at.saturating_duration_since(now()))),
        }
        !self.leave()
    }

    /// Whether it was still there: a thread that wakes it takes it away first.
    fn leave(&self) -> bool {
        let mut all = own(&self.waiters.all);
        let at = all
            .iter()
            .position(|waiter| Arc::ptr_eq(waiter, &self.waiter));
        at.map(|at| all.remove(at)).is_some()
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
