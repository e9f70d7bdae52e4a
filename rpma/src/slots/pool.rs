//! The entries of a shared receive queue: receives of several connections complete in any order, so that
//! free entries are on a list. One that the device has taken and never completes stays taken.
//! [`Pool::kept`] counts those: a connection that has ended keeps at most one entry, and only one
//! that was posted before its end.

use super::ring::{NotPosted, NotTaken};
use crate::primitives::{Mutex, MutexGuard, lock};

#[derive(Debug)]
pub(crate) struct Pool {
    depth: u32,
    entries: Mutex<Entries>,
}

#[derive(Debug)]
struct Entries {
    /// With room for all, so that nothing is allocated later.
    free: Vec<u32>,
    taken: Vec<Taken>,
    /// 1, and 1 for each connection that has ended and may keep a receive.
    ends: u64,
}

/// An entry that is taken, or free.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// What [`Entries::ends`] was when it was taken. 0: it is free.
    since: u64,
    op_context: u64,
}

impl Taken {
    const FREE: Self = Self {
        since: 0,
        op_context: 0,
    };
}

impl Pool {
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            depth,
            entries: Mutex::new(Entries {
                free: (0..depth).rev().collect(),
                taken: vec![Taken::FREE; depth as usize],
                ends: 1,
            }),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Takes an entry, and posts with its number.
    pub(crate) fn post<E>(
        &self,
        context: u64,
        post: impl FnOnce(u32) -> Result<(), NotTaken<E>>,
    ) -> Result<(), NotPosted<E>> {
        self.post_many(1, |_| context, |numbers| post(numbers[0]))
    }

    /// Takes `count` entries, of which `context` tells the contexts, and posts with their numbers. If the
    /// device fails it may have some of them: then all stay taken.
    pub(crate) fn post_many<E>(
        &self,
        count: usize,
        context: impl Fn(usize) -> u64,
        post: impl FnOnce(&[u32]) -> Result<(), NotTaken<E>>,
    ) -> Result<(), NotPosted<E>> {
        let mut entries = self.lock();
        let Some(left) = entries.free.len().checked_sub(count) else {
            return Err(match count > self.depth as usize {
                true => NotPosted::TooLong,
                false => NotPosted::Full,
            });
        };
        // They may complete at once: then their poller waits for the lock.
        let failed = match post(&entries.free[left..]) {
            Ok(()) => None,
            Err(NotTaken::Failed(error)) => Some(error),
            Err(NotTaken::NoRoom) => return Err(NotPosted::Full),
            Err(NotTaken::Refused(error)) => return Err(NotPosted::Refused(error)),
        };
        let Entries { free, taken, ends } = &mut *entries;
        for (index, number) in free.drain(left..).enumerate() {
            taken[number as usize] = Taken {
                since: *ends,
                op_context: context(index),
            };
        }
        failed.map_or(Ok(()), |error| Err(NotPosted::Failed(error)))
    }

    /// Notes that the receive `number` has completed, and returns its `op_context`; `None` if it was not
    /// posted. Not inlined: polls of other requests would keep registers for it.
    #[inline(never)]
    pub(crate) fn complete(&self, number: u32) -> Option<u64> {
        let mut entries = self.lock();
        let entry = entries.taken.get_mut(number as usize)?;
        if entry.since == 0 {
            return None;
        }
        entry.since = 0;
        let op_context = entry.op_context;
        entries.free.push(number);
        Some(op_context)
    }

    /// A connection has ended, and the device may keep a receive that a message of it has taken.
    pub(crate) fn may_keep(&self) {
        self.lock().ends += 1;
    }

    /// How many receives the device may keep for connections that have ended, at most: one of
    /// each, and only those that were posted before. A receive that comes back later is none of
    /// them.
    pub(crate) fn kept(&self) -> u32 {
        let entries = self.lock();
        let taken = entries.taken.iter().map(|entry| entry.since);
        let older = taken.filter(|since| (1..entries.ends).contains(since));
        let (count, oldest) = older
            .fold((0, entries.ends), |(count, oldest): (u32, u64), since| {
                (count + 1, oldest.min(since))
            });
        count.min(u32::try_from(entries.ends - oldest).unwrap_or(u32::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Nothing panics under it before it is consistent again.
        lock(&self.entries)
    }
}
