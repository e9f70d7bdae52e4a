//! The entries of a shared receive queue: receives of several connections complete in any order,
//! so that free entries are on a list. One that the device has taken and never completes stays
//! taken. [`Pool::kept`] counts those: a connection that has ended keeps at most one entry, and
//! only one that was posted before its end.
//!
//! An entry that counted as free too early could lose a completion.

use std::fmt;

use super::ring::{NotPosted, NotTaken};
use crate::lock::{Held, Lock};
use crate::primitives::{AtomicU32, AtomicU64, Ordering};

pub(crate) struct Pool {
    /// Held by each thread that takes entries or gives them back. All words below are read and
    /// written under it.
    lock: Lock,
    /// How many entries are free.
    left: AtomicU32,
    /// The number of the first free one; each names the next one.
    free: AtomicU32,
    /// 1, and 1 for each connection that has ended and may keep a receive.
    ends: AtomicU64,
    entries: Box<[PoolEntry]>,
}

/// A power of two of bytes, so that an index needs no multiplication.
#[repr(align(32))]
struct PoolEntry {
    /// The value of [`Pool::ends`] when it was taken. 0: it is free.
    since: AtomicU64,
    op_context: AtomicU64,
    /// The number of the next free entry. It stays when this one is taken, for a post that fails.
    next: AtomicU32,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the entries: there may be thousands.
        f.debug_struct("Pool")
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

/// Takes entries for the receives that are posted, in their order.
pub(crate) struct Taking<'pool> {
    entries: &'pool [PoolEntry],
    since: u64,
    free: u32,
    taken: u32,
}

impl Taking<'_> {
    /// Takes an entry, with its `op_context`, and returns its number. A caller takes no more than
    /// it has asked for.
    #[inline(always)]
    pub(crate) fn take(&mut self, op_context: u64) -> u32 {
        let number = self.free;
        let entry = &self.entries[number as usize];
        self.free = entry.next.load(Ordering::Relaxed);
        self.taken += 1;
        entry.op_context.store(op_context, Ordering::Relaxed);
        entry.since.store(self.since, Ordering::Relaxed);
        number
    }
}

/// Gives entries back, with the lock held.
pub(crate) struct Returning<'pool> {
    pool: &'pool Pool,
    entries: &'pool [PoolEntry],
    free: u32,
    returned: u32,
    _held: Held<'pool>,
}

impl Returning<'_> {
    /// Notes that the receive `number` has completed, and returns its `op_context`; `None` if it
    /// was not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, number: u64) -> Option<u64> {
        // A number has 61 bits, also where a `usize` has fewer.
        let entry = self.entries.get(usize::try_from(number).ok()?)?;
        if entry.since.load(Ordering::Relaxed) == 0 {
            return None;
        }
        entry.since.store(0, Ordering::Relaxed);
        entry.next.store(self.free, Ordering::Relaxed);
        self.free = number as u32;
        self.returned += 1;
        Some(entry.op_context.load(Ordering::Relaxed))
    }
}

impl Drop for Returning<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let left = self.pool.left.load(Ordering::Relaxed);
        self.pool
            .left
            .store(left + self.returned, Ordering::Relaxed);
        self.pool.free.store(self.free, Ordering::Relaxed);
    }
}

impl Pool {
    pub(crate) fn new(depth: u32) -> Self {
        let entry = |number: u32| PoolEntry {
            since: AtomicU64::new(0),
            op_context: AtomicU64::new(0),
            next: AtomicU32::new(number.wrapping_add(1)),
        };
        Self {
            lock: Lock::new(),
            left: AtomicU32::new(depth),
            free: AtomicU32::new(0),
            ends: AtomicU64::new(1),
            entries: (0..depth).map(entry).collect(),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        // It was made of a number of 32 bits.
        self.entries.len() as u32
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Held<'_> {
        self.lock.acquire()
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Held<'_>> {
        self.lock.try_acquire()
    }

    /// Posts `count` receives, with its lock `held`, each with an entry that `post` takes. If the
    /// device fails it may have some of them: then each that was taken stays so.
    #[inline(always)]
    pub(crate) fn post<E>(
        &self,
        held: Held<'_>,
        count: u32,
        post: impl FnOnce(&mut Taking<'_>) -> Result<(), NotTaken<E>>,
    ) -> Result<(), NotPosted<E>> {
        // They may complete at once: then their poller waits for the lock.
        let left = self.left.load(Ordering::Relaxed);
        if left < count {
            return Err(self.no_room(held, count));
        }
        let mut taking = Taking {
            entries: &self.entries,
            since: self.ends.load(Ordering::Relaxed),
            free: self.free.load(Ordering::Relaxed),
            taken: 0,
        };
        if let Err(error) = post(&mut taking) {
            return Err(self.not_taken(held, (taking.taken, taking.free), error));
        }
        self.taken(taking.taken, taking.free);
        drop(held);
        Ok(())
    }

    #[inline(always)]
    fn taken(&self, taken: u32, free: u32) {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left - taken, Ordering::Relaxed);
        self.free.store(free, Ordering::Relaxed);
    }

    #[cold]
    fn no_room<E>(&self, _held: Held<'_>, count: u32) -> NotPosted<E> {
        if count > self.depth() {
            NotPosted::TooLong
        } else {
            NotPosted::Full
        }
    }

    /// The device has refused receives, or it has failed.
    #[cold]
    fn not_taken<E>(
        &self,
        _held: Held<'_>,
        (taken, free): (u32, u32),
        error: NotTaken<E>,
    ) -> NotPosted<E> {
        let refused = match error {
            NotTaken::Failed(error) => {
                self.taken(taken, free);
                return NotPosted::Failed(error);
            }
            NotTaken::NoRoom => NotPosted::Full,
            NotTaken::Refused(error) => NotPosted::Refused(error),
        };
        let mut number = self.free.load(Ordering::Relaxed);
        for _ in 0..taken {
            let entry = &self.entries[number as usize];
            entry.since.store(0, Ordering::Relaxed);
            number = entry.next.load(Ordering::Relaxed);
        }
        refused
    }

    #[inline(always)]
    pub(crate) fn returning(&self) -> Returning<'_> {
        let held = self.lock.acquire();
        Returning {
            pool: self,
            entries: &self.entries,
            free: self.free.load(Ordering::Relaxed),
            returned: 0,
            _held: held,
        }
    }

    /// A connection has ended, and the device may keep a receive that a message of it has taken.
    pub(crate) fn may_keep(&self) {
        let _held = self.lock.acquire();
        let ends = self.ends.load(Ordering::Relaxed);
        self.ends.store(ends + 1, Ordering::Relaxed);
    }

    /// How many receives the device may keep for connections that have ended, at most: one of each,
    /// and only those that were posted before. A receive that comes back later is not among them.
    pub(crate) fn kept(&self) -> u32 {
        let _held = self.lock.acquire();
        let ends = self.ends.load(Ordering::Relaxed);
        let taken = self.entries.iter();
        let taken = taken.map(|entry| entry.since.load(Ordering::Relaxed));
        let older = taken.filter(|since| (1..ends).contains(since));
        let (count, oldest) = older.fold((0, ends), |(count, oldest): (u32, u64), since| {
            (count + 1, oldest.min(since))
        });
        count.min(u32::try_from(ends - oldest).unwrap_or(u32::MAX))
    }
}
