//! [`Member`], and the table of the members of a wait.

use std::time::Instant;

use crate::conn::Conn;
use crate::ep::Ep;
use crate::error::Error;
use crate::srq::Srq;

/// A member of a [`Wait`](super::Wait): a name that is cheap to copy, and that is never used again.
///
/// A program may keep it after the member was removed: the wait has no member of that name then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    index: u32,
    generation: u32,
}

impl Member {
    /// As a number, for the events of its queues and of its descriptor.
    pub(super) fn key(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(super) fn of_key(key: u64) -> Self {
        Self {
            index: key as u32,
            generation: (key >> 32) as u32,
        }
    }
}

/// A member, or a place for one.
#[derive(Debug, Default)]
pub(super) enum Kept {
    #[default]
    Free,
    /// A [`Place`](super::Place) exists.
    Reserved,
    Conn(Box<Conn>),
    Ep(Ep),
    Srq(Srq),
}

/// Why a member is ready.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// It is in the list of ready members.
    pub(super) is_listed: bool,
    /// Its queues may have completions.
    pub(super) look: bool,
    /// Its descriptor was readable.
    pub(super) event: bool,
    /// The event comes first: the last turn was one of completions.
    pub(super) event_is_next: bool,
    /// Polling its queues failed.
    pub(super) is_mute: bool,
    /// The device gave its queue pair up.
    pub(super) is_broken: bool,
    /// When its keep-alive is due: a timer of the wait.
    pub(super) keep_alive: Option<Instant>,
    /// When its endpoint has rested: another timer.
    pub(super) rested: Option<Instant>,
    /// Its keep-alive is due, and in the list of ready members.
    pub(super) is_due: bool,
    /// Is reported when the queues are empty.
    pub(super) failed: Option<Error>,
}

impl Marks {
    /// Its queues may have completions. They are not looked at if polling them failed.
    pub(super) fn may_have_completions(&mut self) {
        self.look = !self.is_mute;
    }
}

#[derive(Debug, Default)]
pub(super) struct MemberSlot {
    generation: u32,
    pub(super) kept: Kept,
    pub(super) marks: Marks,
}

/// The members of a wait, by index. A free slot is used again with the next generation.
#[derive(Debug, Default)]
pub(super) struct Members {
    slots: Vec<MemberSlot>,
    free: Vec<u32>,
}

impl Members {
    pub(super) const NO_INDEX: u32 = u32::MAX;

    pub(super) fn reserve(&mut self) -> Member {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(MemberSlot::default());
            // A process has fewer than 2^32 descriptors, and each member has one.
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.kept = Kept::Reserved;
        Member {
            index,
            generation: slot.generation,
        }
    }

    pub(super) fn get(&self, member: Member) -> Option<&MemberSlot> {
        let slot = self.slots.get(member.index as usize)?;
        let is_there = slot.generation == member.generation && !matches!(slot.kept, Kept::Free);
        is_there.then_some(slot)
    }

    pub(super) fn get_mut(&mut self, member: Member) -> Option<&mut MemberSlot> {
        self.get(member)?;
        self.slots.get_mut(member.index as usize)
    }

    /// Frees the slot of a member. From here on the member's name is invalid.
    pub(super) fn free(&mut self, member: Member) -> Kept {
        let Some(slot) = self.get_mut(member) else {
            return Kept::Free;
        };
        let freed = std::mem::take(slot);
        // A slot with no generations left stays free for ever.
        if let Some(generation) = freed.generation.checked_add(1) {
            slot.generation = generation;
            self.free.push(member.index);
        } else {
            slot.generation = freed.generation;
        }
        freed.kept
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = (Member, &mut MemberSlot)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(index, slot)| {
                let member = Member {
                    index: index as u32,
                    generation: slot.generation,
                };
                (!matches!(slot.kept, Kept::Free)).then_some((member, slot))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_8_bytes_and_comes_back_from_its_key() {
        assert_eq!(size_of::<Member>(), 8);
        let member = Member {
            index: 7,
            generation: u32::MAX,
        };
        assert_eq!(Member::of_key(member.key()), member);
    }

    /// Promise: the name of a member that was removed never stands for another one.
    #[test]
    fn a_slot_is_used_again_under_another_name() {
        let mut members = Members::default();
        let first = members.reserve();
        let second = members.reserve();
        assert!(matches!(members.free(first), Kept::Reserved));
        assert!(members.get(first).is_none(), "it is stale");
        assert!(matches!(members.free(first), Kept::Free), "only once");
        let third = members.reserve();
        assert_eq!((third.index, members.slots.len()), (first.index, 2));
        assert!(members.get(first).is_none() && members.get(third).is_some());
        assert_eq!(members.all().count(), 2);

        members.slots[second.index as usize].generation = u32::MAX;
        let last = Member {
            generation: u32::MAX,
            ..second
        };
        members.free(last);
        assert!(members.get(last).is_none());
        assert_ne!(
            members.reserve().index,
            last.index,
            "all its names are used"
        );
    }
}
