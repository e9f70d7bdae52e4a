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
    next: AtomicU64,
    /// The number after that of the last request that gives a completion when it succeeds.
    signaled: AtomicU64,
    /// How far a thread may post without looking: the value of `done` at the last look, and the
    /// `room` of that time more. Pollers write `done`, so that looking costs a cache line: it is done
    /// only when this does not leave enough. After the end it leaves nothing.
    end: AtomicU64,
    /// How many bytes the device was given to carry, modulo 2⁶⁴.
    bytes: AtomicU64,
    /// A request that the device refuses ends it.
    ends: bool,
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
    pub(crate) count: u32,
    /// How many of them up to the last one that gives a completion when it succeeds; 0 without one.
    pub(crate) signaled: u32,
}

impl Wanted {
    /// `count` requests. Either only the last one gives a completion, or no request does.
    pub(crate) fn one_operation(count: u32, signaled: bool) -> Self {
        Self {
            count,
            signaled: if signaled { count } else { 0 },
        }
    }
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

impl Ring {
    /// A ring for `depth` requests of a program and `extra` of ours.
    pub(crate) fn new(depth: u32, extra: u32) -> Self {
        Self::starting_at(0, depth, extra)
    }

    pub(crate) fn starting_at(first: u64, depth: u32, extra: u32) -> Self {
        Self {
            posting: Lock::new(),
            next: AtomicU64::new(first),
            signaled: AtomicU64::new(first),
            end: AtomicU64::new(first),
            bytes: AtomicU64::new(0),
            ends: false,
            ended: AtomicU32::new(0),
            beside: AtomicU32::new(0),
            depth,
            contexts: Contexts::new(depth.saturating_add(extra)),
            done: AtomicU64::new(first),
        }
    }

    pub(crate) fn ending(mut self) -> Self {
        self.ends = true;
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
    /// unless it has failed. Returns the number of the last one. `is_open` is asked only where the
    /// entries that were seen free last do not suffice: an end takes all of them.
    ///
    /// `None`: another thread posts, or entries have to be looked for, and it does not wait.
    #[inline(always)]
    pub(crate) fn post<const WAITS: bool, E>(
        &self,
        wanted: Wanted,
        bytes: u64,
        is_open: impl FnOnce() -> bool,
        post: impl FnOnce(Entries<'_>) -> Result<u32, NotTaken<E>>,
    ) -> Option<Result<u64, NotPosted<E>>> {
        let held = if WAITS {
            self.posting.acquire()
        } else {
            self.posting.try_acquire()?
        };
        let next = self.next.load(Ordering::Relaxed);
        let free = self.end.load(Ordering::Relaxed).wrapping_sub(next);
        // One more is enough, whether one has to be kept or not.
        if free as i64 <= i64::from(wanted.count) {
            if !WAITS {
                return None;
            }
            if let Err(error) = self.look(wanted, is_open()) {
                return Some(Err(error));
            }
        }
        let before = self.bytes.load(Ordering::Relaxed);
        self.bytes
            .store(before.wrapping_add(bytes), Ordering::Relaxed);
        Some(self.publish(held, next, wanted.count, post))
    }

    /// As [`post`](Self::post), for one of the entries that programs cannot have.
    pub(crate) fn post_extra<E>(
        &self,
        post: impl FnOnce(Entries<'_>) -> Result<(), NotTaken<E>>,
    ) -> Result<u64, NotPosted<E>> {
        let held = self.posting.acquire();
        if !self.has_free_entry() {
            return Err(NotPosted::Full);
        }
        let next = self.next.load(Ordering::Relaxed);
        self.publish(held, next, 1, |entries| post(entries).map(|()| 1))
    }

    /// As [`post_extra`](Self::post_extra), while the program goes on: it has as many entries as
    /// before until [`beside_is_done`](Self::beside_is_done). No program waits for it, so it is no
    /// completion that is due.
    pub(crate) fn post_beside<E>(
        &self,
        post: impl FnOnce(Entries<'_>) -> Result<(), NotTaken<E>>,
    ) -> Result<u64, NotPosted<E>> {
        let held = self.posting.acquire();
        if !self.has_free_entry() {
            return Err(NotPosted::Full);
        }
        let next = self.next.load(Ordering::Relaxed);
        self.publish(held, next, 1, |entries| {
            post(entries)?;
            self.beside.store(1, Ordering::Relaxed);
            Ok(0)
        })
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
        self.beside.store(0, Ordering::Relaxed);
        self.done_with(number);
    }

    /// Whether all requests of the program are done.
    pub(crate) fn is_idle(&self) -> bool {
        let _held = self.posting.acquire();
        let next = self.next.load(Ordering::Relaxed);
        let left = next.wrapping_sub(self.done.load(Ordering::Acquire));
        left <= u64::from(self.beside.load(Ordering::Relaxed))
    }

    /// Whether a request that gives a completion when it succeeds is not done.
    pub(crate) fn is_due(&self) -> bool {
        let _held = self.posting.acquire();
        let done = self.done.load(Ordering::Acquire);
        self.signaled.load(Ordering::Relaxed).wrapping_sub(done) as i64 > 0
    }

    /// How many entries may be taken, one beside those of the program included. The caller holds
    /// the lock.
    fn room(&self) -> u64 {
        u64::from(self.depth) + u64::from(self.beside.load(Ordering::Relaxed))
    }

    /// How many entries a program may take now.
    pub(crate) fn free(&self) -> u32 {
        let _held = self.posting.acquire();
        let next = self.next.load(Ordering::Relaxed);
        let used = next.wrapping_sub(self.done.load(Ordering::Acquire));
        self.room().saturating_sub(used) as u32
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
        let next = self.next.load(Ordering::Relaxed);
        self.end.store(next, Ordering::Relaxed);
    }

    /// Whether there is room, as it is now. The caller holds the lock.
    #[cold]
    #[inline(never)]
    fn look<E>(&self, wanted: Wanted, is_open: bool) -> Result<(), NotPosted<E>> {
        if self.has_ended() || !is_open {
            return Err(NotPosted::Ended);
        }
        let (count, signaled) = (wanted.count, wanted.signaled > 0);
        let done = self.done.load(Ordering::Acquire);
        let due = self.signaled.load(Ordering::Relaxed).wrapping_sub(done) as i64 > 0;
        let kept = u32::from(!signaled && !due);
        let used = self.next.load(Ordering::Relaxed).wrapping_sub(done);
        let room = self.room();
        if used.saturating_add(count.saturating_add(kept).into()) <= room {
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

    /// Posts as far as there is room.
    #[inline(always)]
    fn publish<E>(
        &self,
        held: Held<'_>,
        next: u64,
        count: u32,
        post: impl FnOnce(Entries<'_>) -> Result<u32, NotTaken<E>>,
    ) -> Result<u64, NotPosted<E>> {
        // A poller that has read these entries has published that by `done`, which was read before.
        let entries = Entries {
            contexts: self.contexts.view(),
            next,
        };
        match post(entries) {
            Ok(signaled) => Ok(self.taken(count, signaled) + u64::from(count) - 1),
            Err(error) => Err(self.not_taken(held, count, error)),
        }
    }

    /// The device has `count` requests more. The first `signaled` of them end with one that gives a
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

    /// The device has not taken `count` requests. The caller holds the lock.
    #[cold]
    #[inline(never)]
    fn not_taken<E>(&self, _held: Held<'_>, count: u32, error: NotTaken<E>) -> NotPosted<E> {
        match error {
            NotTaken::NoRoom => NotPosted::Full,
            NotTaken::Refused(error) => {
                if self.ends {
                    self.end_held();
                }
                NotPosted::Refused(error)
            }
            NotTaken::Failed(error) => {
                // One that failed completes in any case, if the device has it.
                self.taken(count, count);
                self.end_held();
                NotPosted::Failed(error)
            }
        }
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

    pub(crate) fn next_number(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

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
