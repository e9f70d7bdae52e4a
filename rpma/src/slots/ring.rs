//! The entries of one queue: what was posted and has not been polled.
//!
//! Each posted request has a number, which is its `wr_id`'s lower half, and an entry, which keeps the
//! program's `op_context`. So a completion says by itself whose it is, and up to where its queue is done.
//!
//! What makes that exact:
//!
//! * A number is taken, its entry written, and the request posted under one lock, so that the numbers are
//!   in the order of the device's queue, and a thread that stops in between stops the others: none can
//!   reuse its entry, a lap later.
//! * [`done`](Ring::complete) is called by whoever holds the completion queue's lock, in the order of the
//!   completions, after the entry was read: only then may it be written again.
//!
//! The numbers wrap. All comparisons are of differences, which are at most the ring's size.

use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// The entries of a queue whose requests complete in the order of posting.
#[derive(Debug)]
pub(crate) struct Ring {
    /// How many entries a program may use; a few more are for us.
    depth: u32,
    posting: Mutex<Posting>,
    /// Everything before this number is done. Written by pollers, read by posters.
    done: AtomicU32,
    /// The `op_context` of each entry; a power of two of them.
    contexts: Box<[AtomicU64]>,
}

/// What the lock guards, beside the order of posting.
#[derive(Debug)]
struct Posting {
    /// The number of the next request.
    next: u32,
    /// The number behind the last request that gives a completion when it succeeds.
    signaled: u32,
}

/// A request that wants entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// How many.
    pub(crate) count: u32,
    /// Whether the last one gives a completion when it succeeds.
    pub(crate) signaled: bool,
    pub(crate) context: u64,
}

/// What a device says that does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken<E> {
    /// It was not asked.
    Refused(E),
    /// It has no room. Nothing has happened.
    NoRoom,
    /// It failed, and may have the request nevertheless.
    Failed(E),
}

/// Why a request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPosted<E> {
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

    /// As [`new`](Self::new), with this as its first number.
    pub(crate) fn starting_at(first: u32, depth: u32, extra: u32) -> Self {
        let size = depth.saturating_add(extra).max(1).next_power_of_two();
        Self {
            depth,
            posting: Mutex::new(Posting {
                next: first,
                signaled: first,
            }),
            done: AtomicU32::new(first),
            contexts: (0..size).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Takes entries, and posts with the number of the first one. While no completion is due, the last
    /// entry is kept for a request that gives one: if requests that give none had all of them, none would
    /// ever come back.
    #[inline]
    pub(crate) fn post<E>(
        &self,
        entry: Entry,
        post: impl FnOnce(u32) -> Result<(), NotTaken<E>>,
    ) -> Result<(), NotPosted<E>> {
        let mut posting = self.lock();
        let done = self.done.load(Ordering::Acquire);
        let due = posting.signaled.wrapping_sub(done) as i32 > 0;
        let kept = u32::from(!entry.signaled && !due);
        let used = posting.next.wrapping_sub(done);
        let needed = entry.count.saturating_add(kept);
        if used.saturating_add(needed) > self.depth {
            return Err(self.refusal(entry, due));
        }
        self.publish(&mut posting, entry, post)
    }

    /// As [`post`](Self::post), for one of the entries that programs cannot have.
    pub(crate) fn post_extra<E>(
        &self,
        post: impl FnOnce(u32) -> Result<(), NotTaken<E>>,
    ) -> Result<(), NotPosted<E>> {
        let mut posting = self.lock();
        let used = posting.next.wrapping_sub(self.done.load(Ordering::Acquire));
        if used as usize >= self.contexts.len() {
            return Err(NotPosted::Full);
        }
        let entry = Entry {
            count: 1,
            signaled: true,
            context: 0,
        };
        self.publish(&mut posting, entry, post)
    }

    #[inline]
    fn publish<E>(
        &self,
        posting: &mut Posting,
        entry: Entry,
        post: impl FnOnce(u32) -> Result<(), NotTaken<E>>,
    ) -> Result<(), NotPosted<E>> {
        let first = posting.next;
        for n in 0..entry.count {
            // Whoever has read what was in this entry has said so by `done`, which was read before.
            let context = self.context(first.wrapping_add(n));
            context.store(entry.context, Ordering::Relaxed);
        }
        let failed = match post(first) {
            Ok(()) => None,
            Err(NotTaken::Failed(error)) => Some(error),
            Err(NotTaken::NoRoom) => return Err(NotPosted::Full),
            Err(NotTaken::Refused(error)) => return Err(NotPosted::Refused(error)),
        };
        posting.next = first.wrapping_add(entry.count);
        if entry.signaled {
            posting.signaled = posting.next;
        }
        failed.map_or(Ok(()), |error| Err(NotPosted::Failed(error)))
    }

    #[cold]
    fn refusal<E>(&self, entry: Entry, due: bool) -> NotPosted<E> {
        // A request that gives no completion needs another entry, for one that does.
        if entry.count.saturating_add(u32::from(!entry.signaled)) > self.depth {
            NotPosted::TooLong
        } else if due {
            NotPosted::Full
        } else {
            NotPosted::NoCompletionDue
        }
    }

    /// Notes that the request `number` is done, and all before it, and returns its `op_context`. One
    /// caller at a time, in the order of the completions.
    #[inline]
    pub(crate) fn complete(&self, number: u32) -> u64 {
        let context = self.context(number).load(Ordering::Relaxed);
        let done = number.wrapping_add(1);
        let ahead = done.wrapping_sub(self.done.load(Ordering::Relaxed));
        // It never moves backwards, whatever a device may say.
        if ahead as usize <= self.contexts.len() {
            self.done.store(done, Ordering::Release);
        }
        context
    }

    #[inline]
    fn context(&self, number: u32) -> &AtomicU64 {
        // The length is a power of two, so that the index is right also when the numbers wrap.
        &self.contexts[number as usize & (self.contexts.len() - 1)]
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Posting> {
        // Nothing panics under it before it is consistent again.
        self.posting
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
