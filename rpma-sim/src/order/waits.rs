//! Waits of threads: for a descriptor, a deadline or an event. The clock jumps when all threads
//! wait.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{LOOK, Order, Standing, Threads};
use crate::here;
use crate::state::Shared;
use crate::sync::Waiter;
use crate::wait::{left, look};

/// For how long every thread may wait for no event if the clock jumps: threads on no host may still
/// make one.
const VAIN: Duration = Duration::from_secs(5);

/// The conditions that a thread waits for: any of these.
#[derive(Debug)]
pub(crate) struct Wait {
    /// Open, as the thread that waits has borrowed them.
    readable: Vec<RawFd>,
    pub(super) deadline: Option<Instant>,
    pub(super) event: Event,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    None,
    /// No condition, and the thread serves others: it does not panic while they make no calls.
    Serves,
    /// A change that `Shared::changed` counts.
    Change(u64),
    End(u64),
    ScopeEnd(usize),
    /// A thread of the program wakes the waiter.
    Woken(Arc<Waiter>),
}

impl Shared {
    /// If every thread waits, and has no event to take, the clock jumps.
    fn jump(&self) -> Jump {
        self.run_due();
        // So that no other call comes meanwhile.
        let state = self.lock_quietly();
        let threads = self.order.lock();
        if !self.ready(&threads).is_empty() {
            return Jump::NotNow;
        }
        let Some(at) = earlier(threads.nearest(), state.clock.first()) else {
            return Jump::Nowhere;
        };
        self.order.time.jump_to(at);
        state.clock.set_alarm();
        Jump::Done
    }

    /// Waits as a thread of the fabric, until a descriptor can be read, the deadline has come, or
    /// the event.
    pub(crate) fn wait(
        &self,
        thread: u64,
        fds: &mut [PollFd<'_>],
        deadline: Option<Instant>,
        event: Event,
    ) -> Result<usize, Errno> {
        let wait = |fds: &[PollFd<'_>]| Wait {
            readable: fds.iter().map(|fd| fd.as_fd().as_raw_fd()).collect(),
            deadline,
            event: event.clone(),
        };
        self.order.calls_and_waits.fetch_add(1, Ordering::Relaxed);
        let effects = &self.order.effects;
        effects.happens(|| "a wait for an event".to_owned());
        // A look, which does not wait, is no progress of a loop.
        if deadline.is_none_or(|deadline| deadline > self.order.time.now()) {
            effects.add();
        }
        let at = Location::caller();
        let is_over = || {
            deadline.is_some_and(|deadline| deadline <= self.order.time.now())
                || self.has_come(&event, &self.order.lock())
        };
        let _waiting = Waiting {
            order: &self.order,
            thread,
        };
        if self.order.takes_turns() {
            loop {
                if !self.pass(thread, at, Standing::Waits(wait(fds))) {
                    return rest(fds, left(deadline, self.order.time.now()), &event);
                }
                let found = look(fds)?;
                if self.order.is_over() {
                    let all = self.order.lock().describe();
                    panic!("the run is over its longest time, as a wait has no limit: {all}");
                }
                if found > 0 || is_over() {
                    return Ok(found);
                }
            }
        }
        self.order.lock().set(thread, Standing::Waits(wait(fds)));
        // Since when every thread waits for no event, without a call.
        let (mut vain, mut calls) = (None, 0);
        loop {
            let found = look(fds)?;
            if found > 0 || is_over() {
                return Ok(found);
            }
            let jump = self.jump();
            vain = match jump {
                Jump::Nowhere => vain.or_else(|| Some(Instant::now())),
                _ => None,
            };
            let called = self.order.calls.load(Ordering::Relaxed);
            if called != calls {
                (vain, calls) = (None, called);
            }
            if vain.is_some_and(|since| since.elapsed() > VAIN) {
                let threads = self.order.lock();
                if threads.may_panic(thread) {
                    let mut all = threads.describe();
                    drop(threads);
                    if self.order.time.follows() {
                        all += ". A call that blocks keeps the executor of its thread from running other tasks: await \
                                its descriptor instead";
                    }
                    panic_in_vain(all);
                }
            }
            if jump != Jump::Done {
                let limit = Timespec::try_from(LOOK).expect("a short time");
                rest(fds, Some(limit), &event)?;
            }
        }
    }

    fn has_come(&self, event: &Event, threads: &Threads) -> bool {
        match event {
            Event::None | Event::Serves => false,
            Event::Change(seen) => *seen != self.changed.count(),
            Event::End(other) => !threads.all.contains_key(other),
            Event::ScopeEnd(scope) => threads.all.values().all(|it| it.scope != Some(*scope)),
            Event::Woken(waiter) => waiter.is_woken(),
        }
    }

    /// Those that can go on.
    pub(super) fn ready(&self, threads: &Threads) -> Vec<u64> {
        let now = self.order.time.now();
        let mut ready = Vec::new();
        let (mut fds, mut owners) = (Vec::new(), Vec::new());
        for (number, thread) in &threads.all {
            let is_ready = match &thread.standing {
                Standing::Busy => true,
                Standing::Away => false,
                Standing::Waits(wait) => {
                    fds.extend(&wait.readable);
                    owners.resize(fds.len(), *number);
                    wait.deadline.is_some_and(|deadline| deadline <= now)
                        || self.has_come(&wait.event, threads)
                }
            };
            if is_ready {
                ready.push(*number);
            }
        }
        // One call for all of them.
        let readable = which_readable(&fds).into_iter().zip(owners);
        ready.extend(readable.filter_map(|(is_readable, owner)| is_readable.then_some(owner)));
        // The seed chooses by the position.
        ready.sort_unstable();
        ready.dedup();
        ready
    }

    /// Returns the calling thread, if other threads have to see that it waits.
    pub(crate) fn waits_in_order(&self) -> Option<u64> {
        here::thread_in(self).filter(|_| self.order.is_on())
    }

    /// Waits until `changed` has counted more than it had, or for less, with the state unlocked.
    pub(crate) fn await_change(&self, thread: u64, seen: u64) {
        // Who waits looks again after a signal, too.
        let _ = self.wait(thread, &mut [], None, Event::Change(seen));
    }

    pub(crate) fn await_end(&self, other: u64) {
        if let Some(thread) = self.waits_in_order() {
            // A signal is no end.
            while self.wait(thread, &mut [], None, Event::End(other)) == Err(Errno::INTR) {}
        }
    }

    pub(crate) fn await_scope(&self, scope: usize) {
        if let Some(thread) = self.waits_in_order() {
            let event = Event::ScopeEnd(scope);
            while !self.has_come(&event, &self.order.lock()) {
                // A signal is no end.
                let _ = self.wait(thread, &mut [], None, event.clone());
            }
        }
    }
}

/// That a thread may have a [`Wait`], with descriptors that are borrowed for as long.
struct Waiting<'a> {
    order: &'a Order,
    thread: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.order.lock().set(self.thread, Standing::Busy);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    Done,
    /// Some thread can go on.
    NotNow,
    /// Every thread waits, and no event can come.
    Nowhere,
}

/// Sleeps in real time: until a descriptor can be read, the limit has passed, or a thread wakes the
/// waiter.
fn rest(fds: &mut [PollFd<'_>], limit: Option<Timespec>, event: &Event) -> Result<usize, Errno> {
    match event {
        Event::Woken(waiter) if fds.is_empty() => {
            waiter.park(limit.and_then(|limit| Duration::try_from(limit).ok()));
            Ok(0)
        }
        _ => poll(fds, limit.as_ref()),
    }
}

pub(super) fn panic_in_vain(all: String) -> ! {
    panic!("every thread of the fabric waits, and nothing is to come: {all}");
}

pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Whether each can be read, under the lock of the threads.
fn which_readable(fds: &[RawFd]) -> Vec<bool> {
    if fds.is_empty() {
        return Vec::new();
    }
    let mut fds: Vec<_> = fds
        .iter()
        .map(|fd| {
            // SAFETY: the thread that waits has borrowed it for as long as it has a `Waiting`,
            // which takes the `Wait` away under the lock of the threads; that is held here.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            PollFd::from_borrowed_fd(fd, PollFlags::IN)
        })
        .collect();
    let found = look(&mut fds).is_ok_and(|ready| ready > 0);
    let is_readable = |fd: &PollFd<'_>| found && !fd.revents().is_empty();
    fds.iter().map(is_readable).collect()
}
