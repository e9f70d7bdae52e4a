//! The entries of one queue: requests that were posted and have not been polled.
//!
//! Each posted request has a number, which its `wr_id` carries, and an entry, which keeps the
//! program's `op_context`. So a completion identifies its request, and shows how far its queue is
//! done.
//!
//! These rules make that exact:
//!
//! * A number is taken, its entry written, and the request posted under one [lock](crate::lock), so
//!   that the numbers are in the order of the device's queue. A thread that stops in between stops
//!   the others: none can reuse its entry, a lap later.
//! * [`done`](Ring::complete) is called by the holder of the completion queue's lock, in the order
//!   of the completions, after the entry was read: only then may it be written again.
//!
//! A number is never used again: they have 61 bits, which last for 73 years at a billion posts a
//! second. So a number names exactly one request of its queue (see [`Posted`](crate::Posted)).

use super::contexts::{Contexts, View};
use crate::lock::{Held, Lock};
use crate::primitives::{AtomicU32, AtomicU64, Ordering};

/// The entries of a queue with requests that complete in the order of posting.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ring {
    /// First, so that its address is the ring's, and takes no register of its own.
    ///
    /// Held by the thread that posts: for the order of posting, and for all fields except `done`
    /// and `contexts`.
    posting: Lock,
    /// The number of the next request.
    next: AtomicU64,
    /// The number after that of the last request that gives a completion when it succeeds.
    signaled: AtomicU64,
    /// How far a thread may post without looking: the value of `done` at the last look, and `limit`
    /// more. Pollers write `done`, so that looking costs a cache line: it is done only when this
    /// does not leave enough.
    end: AtomicU64,
    /// How many entries [`try_post`](Self::try_post) may use: `room`. It is 0 before a
    /// [`post`](Self::post) or [`started`](Self::started), after a request that the device has not
    /// taken, and after the [`end`](Self::end).
    limit: AtomicU64,
    /// How many bytes the device was given to carry, modulo 2⁶⁴: see [`Data`].
    bytes: AtomicU64,
    /// Not 0 after the end of posting.
    ended: AtomicU32,
    /// 1 while a request [beside](Self::post_beside) those of the program is in flight. Changes
    /// only while the lock is held.
    beside: AtomicU32,
    /// How many entries a program may use; a few more are for us.
    depth: u32,
    contexts: Contexts,
    /// Everything before this number is done. Written by pollers, read by posters.
    done: AtomicU64,
}

/// Requests that are posted together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// How many.
    pub(crate) count: u32,
    /// How many of them up to the last one that gives a completion when it succeeds; 0 without one.
    pub(crate) signaled: u32,
}

impl Wanted {
    /// So many. Either only the last one gives a completion, or no request does.
    pub(crate) fn one_operation(count: u32, signaled: bool) -> Self {
        Self {
            count,
            signaled: if signaled { count } else { 0 },
        }
    }
}

/// The bytes that requests carry: a number, or `()` where they are not counted.
pub(crate) trait Data: Copy {
    /// Adds them. The caller holds the lock: only this thread writes there.
    fn add_to(self, count: &AtomicU64);
}

impl Data for u64 {
    #[inline(always)]
    fn add_to(self, count: &AtomicU64) {
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_add(self), Ordering::Relaxed);
    }
}

impl Data for () {
    #[inline(always)]
    fn add_to(self, _count: &AtomicU64) {}
}

/// The entries for requests, before they are posted, in their order.
pub(crate) struct Entries<'ring> {
    contexts: View<'ring>,
    next: u64,
}

impl Entries<'_> {
    /// Takes the entry of the next request, with its `op_context`, and returns its number: the
    /// next one's is 1 more.
    #[inline(always)]
    pub(crate) fn take(&mut self, context: u64) -> u64 {
        let number = self.next;
        self.contexts.of(number).store(context, Ordering::Relaxed);
        self.next = number + 1;
        number
    }
}

/// The answer of a device that does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken<E> {
    /// It was not asked.
    Refused(E),
    /// It has no room. The device is unchanged.
    NoRoom,
    /// It failed, and may have the request nevertheless.
    Failed(E),
}

/// Why a request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPosted<E> {
    /// The end of posting has come.
    Ended,
    /// The ring will never have that many entries.
    TooLong,
    /// Entries come back when completions are polled.
    Full,
    /// No completion is coming that would bring one back.
    NoCompletionDue,
    /// The device was not asked.
    Refused(E),
    /// The device failed, and may have the request nevertheless, so that its entries stay taken.
    Failed(E),
}

/// Why [`Ring::try_post`] did not post. The lock is held in the variants that contain it, and is
/// dropped where that has no cost.
#[derive(Debug)]
pub(crate) enum NotTried<'ring, E> {
    /// The ring is unchanged: another thread posts, there are no entries, or the ring is not open
    /// for it.
    Later(Option<Held<'ring>>),
    /// The device said so. It is for [`Ring::tried_in_vain`] of this ring: a caller that had to
    /// look for it again would keep a register for where to look.
    NotTaken(&'ring Ring, Held<'ring>, E),
}

impl Ring {
    /// A ring for `depth` requests of a program and `extra` of ours.
    pub(crate) fn new(depth: u32, extra: u32) -> Self {
        Self::starting_at(0, depth, extra)
    }

    /// As [`new`](Self::new), with this as its first number.
    pub(crate) fn starting_at(first: u64, depth: u32, extra: u32) -> Self {
        Self {
            posting: Lock::new(),
            next: AtomicU64::new(first),
            signaled: AtomicU64::new(first),
            end: AtomicU64::new(first),
            limit: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            ended: AtomicU32::new(0),
            beside: AtomicU32::new(0),
            depth,
            contexts: Contexts::new(depth.saturating_add(extra)),
            done: AtomicU64::new(first),
        }
    }

    /// As after a [`post`](Self::post).
    pub(crate) fn started(mut self) -> Self {
        self.limit = AtomicU64::new(self.depth.into());
        self
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Takes entries, and posts with them. While no completion is due, the last entry is kept for a
    /// request that gives one. If requests without a completion had all of them, no entry would
    /// ever come back.
    ///
    /// `post` takes the entry of each. It returns whether the device has all of them or no request,
    /// unless it has failed. Returns the number of the last one.
    pub(crate) fn post<E>(
        &self,
        wanted: Wanted,
        data: impl Data,
        post: impl FnOnce(Entries<'_>) -> Result<(), NotTaken<E>>,
    ) -> Result<u64, NotPosted<E>> {
        let _held = self.posting.acquire();
        if self.has_ended() {
            return Err(NotPosted::Ended);
        }
        self.look(wanted.count, wanted.signaled > 0)?;
        data.add_to(&self.bytes);
        self.publish(wanted, post)
    }

    /// As [`post`](Self::post) for one request, if that takes no time. The value that `post`
    /// returns is not 0 if the request gives a completion when it succeeds. Returns its number.
    #[inline(always)]
    pub(crate) fn try_post<E>(
        &self,
        context: u64,
        data: impl Data,
        post: impl FnOnce(u64) -> Result<u32, E>,
    ) -> Result<u64, NotTried<'_, E>> {
        let Some(held) = self.posting.try_acquire() else {
            return Err(NotTried::Later(None));
        };
        let next = self.next.load(Ordering::Relaxed);
        // Two are enough, whether one has to be kept or not. Our own entries lie beyond the end.
        let free = self.end.load(Ordering::Relaxed).wrapping_sub(next);
        if (free as i64) < 2 && !self.look_again(next, 2) {
            return Err(NotTried::Later(Some(held)));
        }
        self.contexts.of(next).store(context, Ordering::Relaxed);
        // Before the call: a length that is kept during the call takes a register.
        data.add_to(&self.bytes);
        match post(next) {
            // The number is read again: one that is kept during the call takes a register.
            Ok(signaled) => Ok(self.taken(1, u32::from(signaled != 0))),
            Err(error) => Err(NotTried::NotTaken(self, held, error)),
        }
    }

    /// As [`try_post`](Self::try_post), of several requests. Returns the number of the last one.
    #[inline(always)]
    pub(crate) fn try_post_many<E>(
        &self,
        wanted: Wanted,
        data: impl Data,
        post: impl FnOnce(Entries<'_>) -> Result<(), E>,
    ) -> Result<u64, NotTried<'_, E>> {
        let Some(held) = self.posting.try_acquire() else {
            return Err(NotTried::Later(None));
        };
        let next = self.next.load(Ordering::Relaxed);
        // As there: one more is enough, whether one has to be kept or not.
        let enough = u64::from(wanted.count) + 1;
        let free = self.end.load(Ordering::Relaxed).wrapping_sub(next);
        if (free as i64) < enough as i64 && !self.look_again(next, enough) {
            return Err(NotTried::Later(Some(held)));
        }
        let contexts = self.contexts.view();
        // As there.
        data.add_to(&self.bytes);
        if let Err(error) = post(Entries { contexts, next }) {
            return Err(NotTried::NotTaken(self, held, error));
        }
        let first = self.taken(wanted.count, wanted.signaled);
        Ok(first + u64::from(wanted.count) - 1)
    }

    /// Settles requests that [`try_post`](Self::try_post) or [`try_post_many`](Self::try_post_many)
    /// has tried to post. If the ring `ends`, no request is posted after them.
    #[cold]
    pub(crate) fn tried_in_vain<E>(
        &self,
        _held: Held<'_>,
        count: u32,
        error: NotTaken<E>,
        ends: bool,
    ) -> NotPosted<E> {
        let error = self.not_taken(count, error);
        if ends {
            self.end_held();
        }
        error
    }

    /// As [`post`](Self::post), for one of the entries that programs cannot have.
    pub(crate) fn post_extra<E>(
        &self,
        post: impl FnOnce(Entries<'_>) -> Result<(), NotTaken<E>>,
    ) -> Result<u64, NotPosted<E>> {
        let _held = self.posting.acquire();
        if !self.has_free_entry() {
            return Err(NotPosted::Full);
        }
        self.publish(Wanted::one_operation(1, true), post)
    }

    /// As [`post_extra`](Self::post_extra), while the program goes on: it has as many entries as
    /// before until [`beside_is_done`](Self::beside_is_done). No program waits for it, so it is no
    /// completion that is due.
    pub(crate) fn post_beside<E>(
        &self,
        post: impl FnOnce(Entries<'_>) -> Result<(), NotTaken<E>>,
    ) -> Result<u64, NotPosted<E>> {
        let _held = self.posting.acquire();
        if !self.has_free_entry() {
            return Err(NotPosted::Full);
        }
        let number = self.publish(Wanted::one_operation(1, false), post)?;
        self.set_beside(1);
        Ok(number)
    }

    /// Whether an entry is free, even one that programs cannot have. The caller holds the lock.
    fn has_free_entry(&self) -> bool {
        let done = self.done.load(Ordering::Acquire);
        let used = self.next.load(Ordering::Relaxed).wrapping_sub(done);
        (used as usize) < self.contexts.len()
    }

    /// As [`complete`](Self::complete), of a request beside those of the program.
    pub(crate) fn beside_is_done(&self, number: u64) {
        let _held = self.posting.acquire();
        // Before its entry comes back: otherwise a poster could have it as well.
        self.set_beside(0);
        self.done_with(number);
    }

    /// The caller holds the lock.
    fn set_beside(&self, count: u32) {
        self.beside.store(count, Ordering::Relaxed);
        if self.limit.load(Ordering::Relaxed) != 0 {
            self.limit.store(self.room(), Ordering::Relaxed);
        }
    }

    /// Whether all requests of the program are done.
    pub(crate) fn is_idle(&self) -> bool {
        let _held = self.posting.acquire();
        let next = self.next.load(Ordering::Relaxed);
        let left = next.wrapping_sub(self.done.load(Ordering::Acquire));
        left <= u64::from(self.beside.load(Ordering::Relaxed))
    }

    /// How many entries may be taken, one beside those of the program included. The caller holds
    /// the lock.
    fn room(&self) -> u64 {
        u64::from(self.depth) + u64::from(self.beside.load(Ordering::Relaxed))
    }

    /// From now on only [extra](Self::post_extra) requests are posted.
    pub(crate) fn end(&self) {
        let _held = self.posting.acquire();
        self.end_held();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != 0
    }

    /// The caller holds the lock.
    fn end_held(&self) {
        self.ended.store(1, Ordering::Relaxed);
        self.stop_posting();
    }

    /// Looks how far one may post by now, and returns whether that is `enough`. The caller holds
    /// the lock.
    #[inline(always)]
    fn look_again(&self, next: u64, enough: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let end = self.done.load(Ordering::Acquire).wrapping_add(limit);
        // Never more than there may be, even if a device reports too many as done.
        let is_room = (enough..=limit).contains(&end.wrapping_sub(next));
        if is_room {
            self.end.store(end, Ordering::Relaxed);
        }
        is_room
    }

    /// Whether there is room, as it is now. The caller holds the lock.
    fn look<E>(&self, count: u32, signaled: bool) -> Result<(), NotPosted<E>> {
        let done = self.done.load(Ordering::Acquire);
        let due = self.signaled.load(Ordering::Relaxed).wrapping_sub(done) as i64 > 0;
        let kept = u32::from(!signaled && !due);
        let used = self.next.load(Ordering::Relaxed).wrapping_sub(done);
        let room = self.room();
        if used.saturating_add(count.saturating_add(kept).into()) <= room {
            // Only now: a refusal here does not show whether it is wanted.
            self.limit.store(room, Ordering::Relaxed);
            self.end.store(done.wrapping_add(room), Ordering::Relaxed);
            return Ok(());
        }
        // A request that gives no completion needs another entry, for one that does.
        Err(if count.saturating_add(u32::from(!signaled)) > self.depth {
            NotPosted::TooLong
        } else if due {
            NotPosted::Full
        } else {
            NotPosted::NoCompletionDue
        })
    }

    /// Posts as far as there is room. The caller holds the lock.
    fn publish<E>(
        &self,
        wanted: Wanted,
        post: impl FnOnce(Entries<'_>) -> Result<(), NotTaken<E>>,
    ) -> Result<u64, NotPosted<E>> {
        // A poller that has read these entries has published that by `done`, which was read before.
        let entries = Entries {
            contexts: self.contexts.view(),
            next: self.next.load(Ordering::Relaxed),
        };
        if let Err(error) = post(entries) {
            return Err(self.not_taken(wanted.count, error));
        }
        let first = self.taken(wanted.count, wanted.signaled);
        Ok(first + u64::from(wanted.count.saturating_sub(1)))
    }

    /// The device has so many requests more. The first `signaled` of them end with one that gives a
    /// completion. Returns the number of the first.
    #[inline(always)]
    fn taken(&self, count: u32, signaled: u32) -> u64 {
        let next = self.next.load(Ordering::Relaxed);
        self.next.store(next + u64::from(count), Ordering::Relaxed);
        if signaled != 0 {
            let end = next + u64::from(signaled);
            self.signaled.store(end, Ordering::Relaxed);
        }
        next
    }

    /// The device has not taken so many requests. The caller holds the lock.
    fn not_taken<E>(&self, count: u32, error: NotTaken<E>) -> NotPosted<E> {
        let error = match error {
            NotTaken::NoRoom => return NotPosted::Full,
            NotTaken::Refused(error) => NotPosted::Refused(error),
            NotTaken::Failed(error) => {
                // One that failed completes in any case, if the device has it.
                self.taken(count, count);
                NotPosted::Failed(error)
            }
        };
        // Each further one looks whether it is wanted.
        self.stop_posting();
        error
    }

    /// [`try_post`](Self::try_post) refuses all requests until a [`post`](Self::post) has looked
    /// and found room. The caller holds the lock.
    fn stop_posting(&self) {
        self.limit.store(0, Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        self.end.store(next, Ordering::Relaxed);
    }

    /// Notes that the request `number` is done, and all before it, and returns its `op_context`.
    /// One caller at a time, in the order of the completions.
    #[inline]
    pub(crate) fn complete(&self, number: u64) -> u64 {
        let context = self.contexts.of(number).load(Ordering::Relaxed);
        self.done_with(number);
        context
    }

    /// How many bytes the requests carry that the device was given, including those that it has not
    /// taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The number of the next request.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// The number of the first request that is not done.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Whether the completion of the request `number`, or of a later one, was polled.
    #[inline(always)]
    pub(crate) fn is_done(&self, number: u64) -> bool {
        // A number of this ring is less than `next`, and `done` never passes that.
        self.done.load(Ordering::Acquire) > number
    }

    #[inline(always)]
    pub(crate) fn op_contexts(&self) -> View<'_> {
        self.contexts.view()
    }

    /// Notes that the request `number` is done, and all before it: their entries were read.
    #[inline(always)]
    pub(crate) fn done_with(&self, number: u64) {
        let done = number.wrapping_add(1);
        let ahead = done.wrapping_sub(self.done.load(Ordering::Relaxed));
        // It never moves backwards, even if a device reports nonsense.
        if ahead as usize <= self.contexts.len() {
            self.done.store(done, Ordering::Release);
        }
    }
}
