//! The operations of one connection: the operations that are complete, the tasks that wait for one,
//! and the memory of operations that no task awaits any more.
//!
//! A device completes the requests of a send queue in the order of their posts, and after one that
//! fails all later ones fail. So an operation has the number of its last request
//! ([`Posted::number`](rpma::Posted::number)), and it needs no state of its own: all numbers below
//! `done` are complete, and those from the first failure on have failed.
//!
//! That holds if the completions are noted in their order. So a thread polls and notes under the
//! lock that has this object. It takes wakers and memory out there, and wakes and drops them without
//! the lock: they run code of the program.
//!
//! This file calls no verbs. `tests/loom` includes it.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use crate::primitives::{AtomicU64, Ordering};
use crate::tasks::{Tasks, Ticket, Walk};

/// `M` is the memory of an operation, and `F` the reason of a failure.
#[derive(Debug)]
pub(crate) struct Ops<M, F> {
    /// All requests below this number are complete.
    done: u64,
    /// The first request that failed. All later ones have failed as well, or will.
    failed: Option<(u64, F)>,
    tasks: Tasks,
    /// Tasks that wait for so many free slots, in the order of their first looks: otherwise those
    /// that want few could overtake one that wants many for ever.
    room: Tasks<u32>,
    /// The memory of operations that go on, by their numbers.
    held: VecDeque<(u64, M)>,
    /// Memory that a device may use as long as there is the queue pair.
    kept: Vec<M>,
}

/// How far the operations are, for a look without the lock: the number `done`, and in the highest
/// bit whether one has failed.
#[derive(Debug)]
pub(crate) struct Done(AtomicU64);

const FAILED: u64 = 1 << 63;

impl Done {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The caller has the lock, and has noted completions. Afterwards it takes everything that
    /// [goes](Ops::go).
    #[inline]
    pub(crate) fn publish<M, F>(&self, ops: &Ops<M, F>) {
        let failed = if ops.failed.is_some() { FAILED } else { 0 };
        self.0.store(ops.done | failed, Ordering::Release);
    }

    /// Whether the operation with this number is complete.
    #[inline]
    pub(crate) fn has(&self, number: u64) -> bool {
        number < self.0.load(Ordering::Acquire) & !FAILED
    }

    /// Whether it is complete, and none has failed.
    #[inline]
    pub(crate) fn has_succeeded(&self, number: u64) -> bool {
        let done = self.0.load(Ordering::Acquire);
        done & FAILED == 0 && number < done
    }
}

/// Something to be done without the lock.
#[derive(Debug)]
pub(crate) enum Go<M> {
    Wake(Waker),
    Free(M),
}

impl<M, F: Clone> Ops<M, F> {
    /// Room for so many operations in flight, which then allocate nothing.
    pub(crate) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Self {
            done: 0,
            failed: None,
            tasks: Tasks::with_capacity(depth),
            room: Tasks::default(),
            held: VecDeque::with_capacity(depth),
            kept: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn note(&mut self, number: u64, outcome: Result<(), F>) {
        self.done = self.done.max(number + 1);
        if let Err(failure) = outcome {
            self.failed.get_or_insert((number, failure));
        }
    }

    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The outcome of the operation with this number; `None` while it goes on. The failure is its
    /// own, or the earlier one after which it was flushed.
    #[inline]
    pub(crate) fn outcome(&self, number: u64) -> Option<Result<(), F>> {
        if number >= self.done {
            return None;
        }
        Some(match &self.failed {
            Some((first, failure)) if *first <= number => Err(failure.clone()),
            _ => Ok(()),
        })
    }

    /// The task of an operation that goes on leaves its waker. Returns an older one.
    pub(crate) fn park(
        &mut self,
        ticket: &mut Ticket,
        number: u64,
        waker: &Waker,
    ) -> Option<Waker> {
        self.tasks.wait(ticket, (number, ()), waker)
    }

    /// The task waits no longer. Returns its waker, unless it was woken.
    pub(crate) fn unpark(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        self.tasks.leave(ticket)
    }

    /// No task awaits the operation any more: its memory is kept until it is complete. Returns the
    /// memory if it is.
    pub(crate) fn abandon(&mut self, number: u64, memory: M) -> Option<M> {
        if number < self.done {
            return Some(memory);
        }
        let at = self.held.partition_point(|(of, _)| *of < number);
        self.held.insert(at, (number, memory));
        None
    }

    /// Keeps memory of which no completion is known.
    pub(crate) fn keep(&mut self, memory: M) {
        self.kept.push(memory);
    }

    /// A task that waits for `slots` free slots leaves its waker. Returns an older one.
    pub(crate) fn park_for_room(
        &mut self,
        ticket: &mut Ticket,
        slots: u32,
        waker: &Waker,
    ) -> Option<Waker> {
        self.room.wait(ticket, (0, slots), waker)
    }

    /// As [`unpark`](Self::unpark), of a task that waits for room.
    pub(crate) fn unpark_for_room(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        self.room.leave(ticket)
    }

    /// The first task for which there is room. If it leaves some, it calls this for the next one:
    /// so a free slot wakes few tasks.
    #[inline]
    pub(crate) fn go_for_room(&mut self, free: impl FnOnce() -> u32) -> Option<Waker> {
        if self.room.is_empty() {
            return None;
        }
        let (mut walk, free) = (self.room.walk(), free());
        self.room.take_next(&mut walk, |slots| *slots <= free)
    }

    /// Whether it keeps such memory.
    pub(crate) fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether a later completion has to be noticed: for a task, or for the memory of an operation.
    #[inline]
    pub(crate) fn is_waited(&self) -> bool {
        let goes_on = |number| number >= self.done;
        self.tasks.last().is_some_and(goes_on)
            || self.held.back().is_some_and(|(number, _)| goes_on(*number))
            || !self.room.is_empty()
    }

    /// The first task whose operation is complete.
    #[inline]
    pub(crate) fn go_task(&mut self) -> Option<Waker> {
        if self.tasks.first()? >= self.done {
            return None;
        }
        self.tasks.take_first()
    }

    /// Whether a completion has set something free, or may have.
    #[inline]
    pub(crate) fn goes(&self) -> bool {
        let is_done = |number| number < self.done;
        self.tasks.first().is_some_and(is_done)
            || self
                .held
                .front()
                .is_some_and(|(number, _)| is_done(*number))
            || !self.room.is_empty()
    }

    /// The next thing that a completion has set free.
    pub(crate) fn go(&mut self) -> Option<Go<M>> {
        if let Some(waker) = self.go_task() {
            return Some(Go::Wake(waker));
        }
        if self.held.front()?.0 >= self.done {
            return None;
        }
        self.held.pop_front().map(|(_, memory)| Go::Free(memory))
    }

    /// Something else has changed: the next of all tasks.
    pub(crate) fn go_all(&mut self, walk: &mut Option<[Walk; 2]>) -> Option<Waker> {
        let all = || [self.tasks.walk(), self.room.walk()];
        let [tasks, room] = walk.get_or_insert_with(all);
        let next = self.tasks.take_next(tasks, |()| true);
        next.or_else(|| self.room.take_next(room, |_| true))
    }

    /// Forgets all memory: a device may use it for ever.
    pub(crate) fn leak(&mut self) {
        mem::forget((mem::take(&mut self.held), mem::take(&mut self.kept)));
    }
}
