//! The entries of a shared receive queue: receives of several connections complete in any order, so that
//! free entries are on a list. One that the device has taken and never completes stays taken.

use super::ring::{NotPosted, NotTaken};
use super::sync::{Mutex, MutexGuard, lock};

#[derive(Debug)]
pub(crate) struct Pool {
    depth: u32,
    entries: Mutex<Entries>,
}

#[derive(Debug)]
struct Entries {
    /// With room for all, so that nothing is allocated later.
    free: Vec<u32>,
    /// The `op_context` of each entry that is taken.
    contexts: Vec<Option<u64>>,
}

impl Pool {
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            depth,
            entries: Mutex::new(Entries {
                free: (0..depth).rev().collect(),
                contexts: vec![None; depth as usize],
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
        let Entries { free, contexts } = &mut *entries;
        for (index, number) in free.drain(left..).enumerate() {
            contexts[number as usize] = Some(context(index));
        }
        failed.map_or(Ok(()), |error| Err(NotPosted::Failed(error)))
    }

    /// Notes that the receive `number` has completed, and returns its `op_context`; `None` if it was not
    /// posted.
    pub(crate) fn complete(&self, number: u32) -> Option<u64> {
        let mut entries = self.lock();
        let context = entries.contexts.get_mut(number as usize)?.take()?;
        entries.free.push(number);
        Some(context)
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Nothing panics under it before it is consistent again.
        lock(&self.entries)
    }
}
