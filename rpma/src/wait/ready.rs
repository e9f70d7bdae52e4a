//! The list of ready members: the order of their turns, and the time to ask the kernel again.

use std::collections::VecDeque;

use super::member::Member;
use crate::verbs::DeviceEventKind;

/// Turns between two looks at the kernel's list. A member that the kernel reports has its turn
/// after those that were in the list before. So while at most 8 members are ready, an event waits
/// for at most 16 turns.
pub(super) const TURNS: u32 = 8;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Member(Member),
    /// The keep-alive of this connection is due.
    KeepAlive(Member),
    Woken,
    Device(Box<str>, DeviceEventKind),
}

#[derive(Debug, Default)]
pub(super) struct ReadyList {
    list: VecDeque<Ready>,
    turns: u32,
}

impl ReadyList {
    /// Takes the next turn. `None` if the kernel must be asked first, or if there is no turn.
    pub(super) fn turn(&mut self) -> Option<Ready> {
        let left = self.turns.checked_sub(1)?;
        let ready = self.list.pop_front()?;
        self.turns = left;
        Some(ready)
    }

    /// The kernel has been asked.
    pub(super) fn asked(&mut self) {
        self.turns = TURNS;
    }

    pub(super) fn push(&mut self, ready: Ready) {
        self.list.push_back(ready);
    }

    /// For a member that has another turn at once.
    pub(super) fn push_front(&mut self, ready: Ready) {
        self.list.push_front(ready);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the kernel is asked after at most 8 turns, and each in the list has its turn in
    /// order.
    #[test]
    fn the_kernel_is_asked_after_eight_turns() {
        let member = |key| Ready::Member(Member::of_key(key));
        let mut list = ReadyList::default();
        list.push(member(0));
        assert_eq!(list.turn(), None, "first the kernel is asked");
        list.asked();
        list.push(member(1));
        for turn in 0..8 {
            let next = list.turn().expect("a turn");
            assert_eq!(next, member(turn % 2));
            list.push(next);
        }
        assert_eq!(list.turn(), None, "the kernel is asked");
        assert!(!list.is_empty());
        list.push_front(member(2));
        list.asked();
        assert_eq!(list.turn(), Some(member(2)));
        assert_eq!(list.turn(), Some(member(0)));
    }
}
