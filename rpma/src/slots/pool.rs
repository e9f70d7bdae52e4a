//! The entries of a shared receive queue: receives of several connections complete in any order, so that
//! free entries are on a list. One that the device has taken and never completes stays taken.

use super::ring::{NotPosted, NotTaken};
use super::sync::{Mutex, MutexGuard};

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
        let mut entries = self.lock();
        let Some(&number) = entries.free.last() else {
            return Err(match self.depth {
                0 => NotPosted::TooLong,
                _ => NotPosted::Full,
            });
        };
        // It may complete at once: then its poller waits for the lock.
        let failed = match post(number) {
            Ok(()) => None,
            Err(NotTaken::Failed(error)) => Some(error),
            Err(NotTaken::NoRoom) => return Err(NotPosted::Full),
            Err(NotTaken::Refused(error)) => return Err(NotPosted::Refused(error)),
        };
        entries.free.pop();
        entries.contexts[number as usize] = Some(context);
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
        self.entries
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
