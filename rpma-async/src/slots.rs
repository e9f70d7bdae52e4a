//! The operations of one connection that are in flight, or complete and not awaited yet.
//!
//! Each has a slot, and its `op_context` leads there: the index of the slot, and a generation that
//! no earlier operation of the slot had. An [`Op`](crate::Op) owns its slot. Threads that poll
//! settle it. The state is one atomic word:
//!
//! ```text
//! FREE ──begin──▶ PENDING ──settle──▶ DONE or FAILED ──finish──▶ FREE
//!                   │  │                  ▲
//!                   │  └─park─▶ PARKED ───┤ settle, which wakes the owner
//!                   └──────────┬──┘       │
//!                           abandon ─▶ ABANDONED ──settle, which drops the memory──▶ FREE
//! ```
//!
//! The rules of wakers:
//!
//! * A thread that takes a waker out of a slot of another owner wakes it. So it does no harm if
//!   the slot has another owner by then: that one polls again, and leaves its waker again.
//! * An owner takes its own waker out before it changes the state to `ABANDONED`. Later it could
//!   take the next owner's.
//! * Wakers are woken and dropped without a lock: they run code of the program.
//!
//! Several requests of one post may have the same number (a commit). Then a failed request only
//! notes its failure, until the last one of the post has failed too: the device may read the
//! sources of the others.
//!
//! This file calls no verbs. `tests/loom` includes it.

use std::fmt;
use std::mem;
use std::task::Waker;

use crate::free::FreeList;
use crate::primitives::{AtomicU64, Mutex, Ordering, wake};

/// Bits of a number, beside the generation in its upper half. The index has the others of the
/// lower half.
pub(crate) const RECEIVE: u64 = 1 << 31;
/// An operation of a batch that is not the last one.
pub(crate) const PART: u64 = 1 << 30;
/// Indices are below this.
pub(crate) const MOST: u32 = 1 << 24;
/// No operation is heavier.
pub(crate) const MOST_WEIGHT: u32 = 0xFF_FFFF;

const INDEX: u64 = MOST as u64 - 1;

// The states, in the lowest bits of a slot's word. Above are the weight and the generation.
const FREE: u64 = 0;
const PENDING: u64 = 1;
const PARKED: u64 = 2;
const ABANDONED: u64 = 3;
const DONE: u64 = 4;
const FAILED: u64 = 5;

const STATES: u64 = 7;
/// Beside the state: several requests have the operation's number.
const PARTS: u64 = 8;
const WEIGHT_SHIFT: u32 = 8;
const WEIGHT: u64 = MOST_WEIGHT as u64;

/// The slots of a connection. `M` is the memory of an operation, `F` the reason of a failure, and
/// `R` the name of a request.
pub(crate) struct Slots<M, F, R = ()> {
    slots: Box<[Slot<M, F, R>]>,
    free: FreeList,
}

struct Slot<M, F, R> {
    /// Generation (32 bits), weight (24 bits), state.
    state: AtomicU64,
    rest: Mutex<Rest<M, F, R>>,
}

struct Rest<M, F, R> {
    waker: Option<Waker>,
    memory: Option<M>,
    failure: Option<F>,
    /// The last request with the operation's number, as soon as the post has returned it.
    last: Option<R>,
    /// Requests with the operation's number that have failed.
    failed: Vec<R>,
}

impl<M, F, R> Default for Rest<M, F, R> {
    fn default() -> Self {
        Self {
            waker: None,
            memory: None,
            failure: None,
            last: None,
            failed: Vec::new(),
        }
    }
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Pending,
    /// It is complete: [`Slots::finish`].
    Complete,
}

/// The last completion of an operation was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// How many slots of the send queue it gives back.
    pub(crate) weight: u32,
    /// Its owner slept, or had abandoned it: a sleeper less.
    pub(crate) slept: bool,
}

/// The state of an operation that its owner no longer awaits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Abandoned<M> {
    /// It goes on, and its slot has the memory.
    GoesOn {
        /// Its owner slept.
        slept: bool,
    },
    /// It was complete.
    Complete(Option<M>),
}

impl<M, F, R: Copy + PartialEq> Slots<M, F, R> {
    pub(crate) fn new(count: u32) -> Self {
        let count = count.min(MOST);
        let slot = |_| Slot {
            state: AtomicU64::new(FREE),
            rest: Mutex::new(Rest::default()),
        };
        Self {
            slots: (0..count).map(slot).collect(),
            free: FreeList::new(count),
        }
    }

    /// Takes a slot for an operation that takes `weight` slots of the send queue, and returns the
    /// operation's number.
    #[inline]
    pub(crate) fn begin(&self, weight: u32) -> Option<u64> {
        let index = self.free.take()?;
        let state = &self.slots[index as usize].state;
        let generation = state.load(Ordering::Relaxed) >> 32 << 32;
        let weight = u64::from(weight.min(MOST_WEIGHT));
        let begun = generation | weight << WEIGHT_SHIFT | PENDING;
        state.store(begun, Ordering::Release);
        Some(generation | u64::from(index))
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Slot<M, F, R>> {
        self.slots.get((number & INDEX) as usize)
    }

    /// The state of an operation, for its owner.
    #[inline]
    pub(crate) fn look(&self, number: u64) -> Look {
        let state = self
            .slot(number)
            .map(|slot| slot.state.load(Ordering::Acquire));
        match state.map_or(DONE, |state| state & STATES) {
            PENDING | PARKED | ABANDONED => Look::Pending,
            _ => Look::Complete,
        }
    }

    /// The operation of the owner is complete. Frees its slot.
    #[inline]
    pub(crate) fn finish(&self, number: u64, has_parked: bool) -> Result<(), F> {
        let Some(slot) = self.slot(number) else {
            return Ok(());
        };
        let state = slot.state.load(Ordering::Acquire) & STATES;
        if has_parked || state == FAILED {
            return self.finish_parked(slot, number, state);
        }
        self.release(slot, number);
        Ok(())
    }

    /// The owner, which has slept, asks whether the operation has succeeded. Frees its slot then. It
    /// was settled when it was parked, so the settlement takes its waker.
    #[inline]
    pub(crate) fn finish_woken(&self, number: u64) -> bool {
        let Some(slot) = self.slot(number) else {
            return false;
        };
        let has_succeeded = slot.state.load(Ordering::Acquire) & STATES == DONE;
        if has_succeeded {
            self.release(slot, number);
        }
        has_succeeded
    }

    #[cold]
    #[inline(never)]
    fn finish_parked(&self, slot: &Slot<M, F, R>, number: u64, state: u64) -> Result<(), F> {
        let rest = mem::take(&mut *slot.rest.lock());
        self.release(slot, number);
        match rest.failure {
            Some(failure) if state == FAILED => Err(failure),
            _ => Ok(()),
        }
    }

    /// The owner has polled its own completion, and settles it: it is not parked.
    #[inline]
    pub(crate) fn finish_own(&self, number: u64) -> u32 {
        let Some(slot) = self.slot(number) else {
            return 0;
        };
        let state = slot.state.load(Ordering::Relaxed);
        self.release(slot, number);
        weight(state)
    }

    /// A slot gets another generation and is free.
    #[inline]
    fn release(&self, slot: &Slot<M, F, R>, number: u64) {
        let next = (number >> 32).wrapping_add(1) << 32;
        slot.state.store(next | FREE, Ordering::Release);
        self.free.give_back((number & INDEX) as u32);
    }

    /// Notes the last completion of an operation. `None`: its number is not of an operation in
    /// flight. (A native flush of several requests that fails has as many completions.)
    #[inline]
    pub(crate) fn settle(&self, number: u64, outcome: Result<(), F>) -> Option<Settled> {
        let slot = self.slot(number)?;
        let to = match outcome {
            Ok(()) => DONE,
            Err(failure) => {
                self.note_failure(number, failure)?;
                FAILED
            }
        };
        self.settle_as(slot, number, to)
    }

    #[inline]
    fn settle_as(&self, slot: &Slot<M, F, R>, number: u64, to: u64) -> Option<Settled> {
        let mut state = slot.state.load(Ordering::Acquire);
        loop {
            if !is_in_flight(state, number) {
                return None;
            }
            let settled = state & !STATES | to;
            let exchanged = slot.state.compare_exchange_weak(
                state,
                settled,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match exchanged {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        let (weight, slept) = (weight(state), state & STATES != PENDING);
        if slept {
            self.settle_slept(slot, number, state & STATES);
        }
        Some(Settled { weight, slept })
    }

    #[inline(never)]
    fn settle_slept(&self, slot: &Slot<M, F, R>, number: u64, was: u64) {
        if was == PARKED {
            let waker = slot.rest.lock().waker.take();
            if let Some(waker) = waker {
                wake(waker);
            }
            return;
        }
        let rest = mem::take(&mut *slot.rest.lock());
        self.release(slot, number);
        // A task may wait for this memory.
        drop(rest);
    }

    /// Notes why a request of an operation failed. The first failure counts.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_failure(&self, number: u64, failure: F) -> Option<()> {
        let slot = self.slot(number)?;
        let mut rest = slot.rest.lock();
        // Under the lock, which the owner takes after the settlement, when it takes a failure out:
        // so none is left for the next owner.
        if !is_in_flight(slot.state.load(Ordering::Acquire), number) {
            return None;
        }
        rest.failure.get_or_insert(failure);
        Some(())
    }

    /// The owner calls it before the post: several requests will have the operation's number. After it
    /// the owner calls [`note_last`](Self::note_last).
    pub(crate) fn has_parts(&self, number: u64) {
        if let Some(slot) = self.slot(number) {
            slot.state.fetch_or(PARTS, Ordering::AcqRel);
        }
    }

    /// The owner calls it after the post: notes which request is the last one. If that has failed
    /// already, the operation is settled.
    pub(crate) fn note_last(&self, number: u64, last: R) -> Option<Settled> {
        let slot = self.slot(number)?;
        {
            let mut rest = slot.rest.lock();
            rest.last = Some(last);
            if !rest.failed.contains(&last) {
                return None;
            }
        }
        self.settle_as(slot, number, FAILED)
    }

    /// Notes that a request failed. It settles the operation, except if another request with its
    /// number follows.
    #[cold]
    pub(crate) fn settle_failed(&self, number: u64, failure: F, request: R) -> Option<Settled> {
        self.note_failure(number, failure)?;
        let slot = self.slot(number)?;
        {
            let mut rest = slot.rest.lock();
            let state = slot.state.load(Ordering::Acquire);
            if is_in_flight(state, number) && state & PARTS != 0 && rest.last != Some(request) {
                rest.failed.push(request);
                return None;
            }
        }
        self.settle_as(slot, number, FAILED)
    }

    /// The owner leaves `waker`, which the settlement wakes. `false` if the operation is
    /// complete. The owner polls again and again: it leaves its waker each time.
    pub(crate) fn park(&self, number: u64, waker: &Waker) -> bool {
        let Some(slot) = self.slot(number) else {
            return false;
        };
        let old = {
            let mut rest = slot.rest.lock();
            match &rest.waker {
                Some(left) if left.will_wake(waker) => None,
                _ => rest.waker.replace(waker.clone()),
            }
        };
        drop(old);
        let mut state = slot.state.load(Ordering::Acquire);
        loop {
            match state & STATES {
                PARKED => return true,
                PENDING => {}
                _ => return false,
            }
            let parked = state & !STATES | PARKED;
            let exchanged = slot.state.compare_exchange_weak(
                state,
                parked,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match exchanged {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    /// The owner does not await the operation any more: the slot keeps the memory until
    /// the operation is complete.
    pub(crate) fn abandon(&self, number: u64, memory: Option<M>) -> Abandoned<M> {
        self.abandon_as(number, memory, !STATES)
    }

    /// As [`abandon`](Self::abandon), of an operation that may not have been posted: its
    /// settlement gives no room back.
    #[cold]
    pub(crate) fn abandon_unsure(&self, number: u64, memory: Option<M>) -> Abandoned<M> {
        self.abandon_as(number, memory, !STATES & !(WEIGHT << WEIGHT_SHIFT))
    }

    fn abandon_as(&self, number: u64, memory: Option<M>, kept: u64) -> Abandoned<M> {
        let Some(slot) = self.slot(number) else {
            return Abandoned::Complete(memory);
        };
        let waker = {
            let mut rest = slot.rest.lock();
            rest.memory = memory;
            rest.waker.take()
        };
        drop(waker);
        let mut state = slot.state.load(Ordering::Acquire);
        loop {
            let slept = match state & STATES {
                PENDING => false,
                PARKED => true,
                _ => break,
            };
            let abandoned = state & kept | ABANDONED;
            let exchanged = slot.state.compare_exchange_weak(
                state,
                abandoned,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match exchanged {
                Ok(_) => return Abandoned::GoesOn { slept },
                Err(now) => state = now,
            }
        }
        let rest = mem::take(&mut *slot.rest.lock());
        self.release(slot, number);
        Abandoned::Complete(rest.memory)
    }

    /// The owner could not post the operation.
    #[inline]
    pub(crate) fn cancel(&self, number: u64) {
        if let Some(slot) = self.slot(number) {
            self.release(slot, number);
        }
    }

    /// Wakes every owner that sleeps: something else has changed.
    pub(crate) fn wake_all(&self) {
        for slot in &self.slots {
            let waker = slot.rest.lock().waker.take();
            if let Some(waker) = waker {
                wake(waker);
            }
        }
    }

    /// Forgets the memory of abandoned operations: a device may use it for ever.
    pub(crate) fn leak(&self) {
        for slot in &self.slots {
            mem::forget(slot.rest.lock().memory.take());
        }
    }
}

/// Whether the operation with this number is in the slot, and not settled yet.
#[inline]
fn is_in_flight(state: u64, number: u64) -> bool {
    state >> 32 == number >> 32 && matches!(state & STATES, PENDING | PARKED | ABANDONED)
}

fn weight(state: u64) -> u32 {
    (state >> WEIGHT_SHIFT & WEIGHT) as u32
}

impl<M, F, R> fmt::Debug for Slots<M, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("len", &self.slots.len())
            .finish_non_exhaustive()
    }
}
