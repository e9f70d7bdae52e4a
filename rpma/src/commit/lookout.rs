//! [`Shared`]: a state that threads share, and the one thread that sleeps for all of them.
//!
//! The state is behind a short lock. A thread that posts takes the lock for the post. A thread that
//! waits takes the lock, polls, and judges. If its result is not there, it sleeps without the lock,
//! in one of two ways:
//!
//! * One thread is the *lookout*. It sleeps beside the descriptors, and takes their events, which
//!   arms the queues again. Then it takes the lock, polls until the queues are empty, and wakes each
//!   thread that has its result.
//! * All others sleep on their *seats*, until a thread has polled their result, or until they become
//!   the lookout.
//!
//! These rules lose no completion:
//!
//! 1. Only the lookout takes events. So the event of a completion wakes the lookout, also if another
//!    thread has polled that completion.
//! 2. A thread polls before it sits or sleeps, and the lookout polls until the queues are empty after
//!    each event that it has taken. So a completion that comes into a queue later has an event.
//! 3. The lookout judges for all seats after each sleep. Every other thread that has polled something
//!    does so as well, so that no thread sits longer than it must.
//! 4. While a thread sits on a seat without a call, there is a lookout. A lookout that leaves calls
//!    one of the seats, also if it panics.
//!
//! This file calls no verbs. `tests/loom` includes it, and runs it in every order of threads.

use std::fmt;
use std::mem;
use std::time::Duration;

use crate::clock;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use crate::verbs::Deadline;

/// A state for which one thread sleeps.
pub(super) trait Watched {
    /// The condition for which a thread waits.
    type Wanted: Copy + Send + fmt::Debug;
    type Found;
    /// The part of the state that a sleep needs, without the lock.
    type Sleep;
    type Slept;

    /// Polls the queues. Returns whether something has changed.
    fn poll(&mut self) -> bool;

    /// The result, as far as the state has it.
    fn judge(&mut self, wanted: &Self::Wanted) -> Option<Self::Found>;

    /// Whether [`judge`](Self::judge) has a result.
    fn has(&mut self, wanted: &Self::Wanted) -> bool {
        self.judge(wanted).is_some()
    }

    /// Whether a thread that has polled looks at the events as well. It asks once in each wait.
    fn is_look_due(&mut self) -> bool;

    /// A sleep begins, which lasts until the deadline at most. The queues were polled.
    fn before_sleep(&mut self, deadline: Deadline) -> Self::Sleep;

    /// Polls for a while before the sleep, without the lock. Returns whether `poll` returned true.
    fn spin(sleep: &Self::Sleep, poll: impl FnMut() -> bool) -> bool;

    /// Sleeps until something happens, and takes the events, without the lock.
    fn sleep(sleep: Self::Sleep) -> Self::Slept;

    /// Polls until the queues are empty.
    fn after_sleep(&mut self, slept: Self::Slept);
}

/// See the [module](self).
pub(super) struct Shared<S: Watched> {
    inner: Mutex<Inner<S>>,
}

/// The state, with the lock held.
pub(super) type Held<'a, S> = MutexGuard<'a, Inner<S>>;

pub(super) struct Inner<S: Watched> {
    pub(super) state: S,
    /// A thread is the lookout, or is called to be.
    has_lookout: bool,
    /// They are used again, so that a wait does not allocate.
    seats: Vec<Seat<S::Wanted>>,
}

/// A place for a thread that sleeps while another one is the lookout.
struct Seat<W> {
    /// `None`: no thread has it.
    wanted: Option<W>,
    call: Option<Call>,
    bell: Arc<Condvar>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The result is there.
    Found,
    /// The thread is the lookout from now on.
    Lookout,
}

impl<S: Watched> Inner<S> {
    /// The state has changed: wakes the threads that have their results.
    pub(super) fn tell(&mut self) {
        for seat in &mut self.seats {
            let Some(wanted) = &seat.wanted else {
                continue;
            };
            if seat.call.is_none() && self.state.has(wanted) {
                seat.call = Some(Call::Found);
                seat.bell.notify_one();
            }
        }
    }

    pub(super) fn poll(&mut self) {
        if self.state.poll() {
            self.tell();
        }
    }

    /// The lookout leaves, and calls another thread.
    fn hand_on(&mut self) {
        let mut seats = self.seats.iter_mut();
        let next = seats.find(|seat| seat.wanted.is_some() && seat.call.is_none());
        self.has_lookout = next.is_some();
        if let Some(seat) = next {
            seat.call = Some(Call::Lookout);
            seat.bell.notify_one();
        }
    }

    fn sit(&mut self, wanted: S::Wanted) -> usize {
        let is_free = |seat: &Seat<_>| seat.wanted.is_none();
        let at = self.seats.iter().position(is_free);
        let at = at.unwrap_or_else(|| {
            self.seats.push(Seat {
                wanted: None,
                call: None,
                bell: Arc::new(Condvar::new()),
            });
            self.seats.len() - 1
        });
        self.seats[at].wanted = Some(wanted);
        at
    }

    /// Gives a seat back. Returns the call that it got.
    fn rise(&mut self, at: usize) -> Option<Call> {
        let seat = &mut self.seats[at];
        seat.wanted = None;
        seat.call.take()
    }
}

impl<S: Watched> Shared<S> {
    pub(super) fn new(state: S) -> Self {
        Self {
            inner: Mutex::new(Inner {
                state,
                has_lookout: false,
                seats: Vec::new(),
            }),
        }
    }

    /// Takes the lock, for something short.
    pub(super) fn lock(&self) -> Held<'_, S> {
        // A panic under it is a fault of the library. The seats are whole at each call.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn into_inner(self) -> S {
        let inner = self.inner.into_inner();
        inner.unwrap_or_else(PoisonError::into_inner).state
    }

    /// Waits for a result, for at most `limit`. With a limit of 0 it polls, and looks once. `None`:
    /// the limit has passed.
    pub(super) fn wait(&self, wanted: S::Wanted, limit: Duration) -> Option<S::Found> {
        // Its drop takes the lock: it is there before the lock is held.
        let mut turn = Turn::new(self);
        let mut held = self.lock();
        if let Some(found) = held.state.judge(&wanted) {
            return Some(found);
        }
        held.poll();
        if let Some(found) = held.state.judge(&wanted) {
            if !held.has_lookout && held.state.is_look_due() {
                held = turn.watch(held, None, Deadline::At(clock::now()));
                turn.end(&mut held);
            }
            return Some(found);
        }
        let deadline = Deadline::after(limit);
        let found = loop {
            // The last look comes after the limit.
            let is_last = deadline.has_passed();
            if turn.is_lookout || !held.has_lookout {
                held = turn.watch(held, Some(&wanted), deadline);
            } else {
                held = turn.sit(held, wanted, deadline);
                if is_last || turn.is_lookout {
                    held.poll();
                }
            }
            let found = held.state.judge(&wanted);
            if found.is_some() || is_last {
                break found;
            }
        };
        turn.end(&mut held);
        found
    }

    /// Looks once, without a sleep: takes the completions, and the events if there is no lookout.
    pub(super) fn look(&self) {
        let mut turn = Turn::new(self);
        let mut held = self.lock();
        held.poll();
        if !held.has_lookout {
            held = turn.watch(held, None, Deadline::At(clock::now()));
            turn.end(&mut held);
        }
    }
}

/// A thread that waits, until its result is there or its limit has passed, or until it panics.
struct Turn<'a, S: Watched> {
    shared: &'a Shared<S>,
    is_lookout: bool,
    seat: Option<usize>,
}

impl<'a, S: Watched> Turn<'a, S> {
    fn new(shared: &'a Shared<S>) -> Self {
        Self {
            shared,
            is_lookout: false,
            seat: None,
        }
    }

    /// Sits while another thread is the lookout, until a call or the deadline.
    fn sit(&mut self, mut held: Held<'a, S>, wanted: S::Wanted, deadline: Deadline) -> Held<'a, S> {
        let at = held.sit(wanted);
        self.seat = Some(at);
        let bell = Arc::clone(&held.seats[at].bell);
        while held.seats[at].call.is_none() && !deadline.has_passed() {
            held = match deadline {
                Deadline::Never => bell.wait(held).unwrap_or_else(PoisonError::into_inner),
                Deadline::At(_) => {
                    let waited = bell.wait_timeout(held, deadline.left());
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        self.rise(&mut held);
        held
    }

    /// Is the lookout: sleeps until something happens or the deadline has passed, and takes it. It
    /// polls for a while before that, if it `wanted` something.
    fn watch(
        &mut self,
        mut held: Held<'a, S>,
        wanted: Option<&S::Wanted>,
        deadline: Deadline,
    ) -> Held<'a, S> {
        self.is_lookout = true;
        held.has_lookout = true;
        let sleep = held.state.before_sleep(deadline);
        drop(held);
        let shared = self.shared;
        if let Some(wanted) = wanted {
            let found = S::spin(&sleep, || {
                let mut held = shared.lock();
                held.poll();
                held.state.has(wanted)
            });
            if found {
                return shared.lock();
            }
        }
        let slept = S::sleep(sleep);
        let mut held = shared.lock();
        held.state.after_sleep(slept);
        held.tell();
        held
    }

    fn rise(&mut self, held: &mut Held<'a, S>) {
        if let Some(at) = self.seat.take() {
            self.is_lookout |= held.rise(at) == Some(Call::Lookout);
        }
    }

    /// The thread goes. If it was the lookout, it calls another one.
    fn end(&mut self, held: &mut Held<'a, S>) {
        self.rise(held);
        if mem::take(&mut self.is_lookout) {
            held.hand_on();
        }
    }
}

impl<S: Watched> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        // It panicked: the others go on.
        if self.is_lookout || self.seat.is_some() {
            let mut held = self.shared.lock();
            self.end(&mut held);
        }
    }
}

#[cfg(test)]
impl<S: Watched> Shared<S> {
    #[allow(dead_code, reason = "loom's models do not ask")]
    pub(super) fn sitting(&self) -> usize {
        let held = self.lock();
        let taken = |seat: &&Seat<_>| seat.wanted.is_some();
        held.seats.iter().filter(taken).count()
    }
}

impl<S: Watched> fmt::Debug for Shared<S>
where
    S: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.lock().state).finish()
    }
}
