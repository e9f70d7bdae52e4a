//! The members of a reactor, and their keys.

use std::sync::{Arc, Weak};

use rpma::{CqKind, Error};

use crate::waiters::Waiters;

/// A receiver of events. The driver knows nothing else of it.
pub(crate) trait Member: Send + Sync {
    /// Its descriptor has an event: takes all of them.
    fn event(self: Arc<Self>);

    /// An event may have been lost: looks.
    fn look(self: Arc<Self>) {}

    /// A completion event of one of its queues has come.
    fn completed(&self, _of: CqKind) {}

    /// The step of its keep-alive is due.
    fn keep_alive(self: Arc<Self>) {}

    /// No completion event comes any more, because of this error.
    fn channel_failed(&self, _error: &Error) {}

    /// It gets no more events: wakes all tasks.
    fn wake_everybody(&self);
}

/// Tasks that wait for events of a descriptor.
impl Member for Waiters {
    fn event(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_everybody(&self) {
        self.wake_all();
    }
}

/// Members by their keys. A key is an index, and in its upper half a generation, so that a late
/// event finds no member.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Vec<TableEntry>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct TableEntry {
    generation: u32,
    member: Option<Weak<dyn Member>>,
}

impl Table {
    pub(crate) fn insert(&mut self, member: Weak<dyn Member>) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(TableEntry::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.member = Some(member);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<dyn Member>> {
        self.entry(key)?.member.as_ref()?.upgrade()
    }

    pub(crate) fn replace(&mut self, key: u64, member: Weak<dyn Member>) {
        if let Some(entry) = self.entries.get_mut(key as u32 as usize) {
            if u64::from(entry.generation) == key >> 32 {
                entry.member = Some(member);
            }
        }
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<Weak<dyn Member>> {
        self.entry(key)?;
        let index = key as u32;
        let entry = &mut self.entries[index as usize];
        let member = entry.member.take()?;
        // The three highest keys are not members'.
        entry.generation = (entry.generation + 1) & (u32::MAX >> 1);
        self.free.push(index);
        Some(member)
    }

    /// The member at this index, if there is one; `None` past the last one.
    pub(crate) fn at(&self, index: usize) -> Option<Option<Arc<dyn Member>>> {
        let member = |entry: &TableEntry| entry.member.as_ref()?.upgrade();
        self.entries.get(index).map(member)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    fn entry(&self, key: u64) -> Option<&TableEntry> {
        let entry = self.entries.get(key as u32 as usize)?;
        (u64::from(entry.generation) == key >> 32).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event of a connection that is gone must not reach its successor.
    #[test]
    fn a_key_is_never_used_again() {
        let task: Arc<Waiters> = Arc::default();
        let member = || -> Weak<Waiters> { Arc::downgrade(&task) };
        let mut table = Table::default();
        let first = table.insert(member());
        assert!(table.remove(first).is_some());
        let second = table.insert(member());
        assert_ne!(first, second);
        assert!(table.get(first).is_none() && table.remove(first).is_none());
        assert!(table.get(second).is_some());
        table.remove(second);
        assert!(table.is_empty() && table.at(0).is_some_and(|member| member.is_none()));
        assert!(table.at(1).is_none());
    }
}
