//! The timers of a wait: turns of members that come without an event.
//!
//! They are no timerfd: that would not stand still with a simulated clock.

use std::os::fd::AsFd;

use super::member::{Kept, Member};
use super::place::Source;
use super::ready::Ready;
use super::{REST, Wait};
use crate::clock;

/// Why a member has a turn without an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Its endpoint has rested.
    Rested,
    KeepAlive,
}

impl Wait {
    pub(super) fn take_due_timers(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = clock::now();
        while let Some(&(at, member, timer)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            if timer == Timer::KeepAlive {
                self.keep_alive_is_due(member);
                continue;
            }
            let Some(slot) = self.members.get_mut(member) else {
                continue;
            };
            slot.marks.rested = None;
            if let Kept::Ep(ep) = &slot.kept {
                let watched = self.channels.watch(ep.as_fd(), Source::Member(member));
                // If it cannot be watched now it rests again.
                if watched.is_err() {
                    slot.marks.rested = Some(now + REST);
                    self.timers.insert((now + REST, member, Timer::Rested));
                }
            }
        }
    }

    /// The queues of this member are polled, and then its keep-alive has a turn.
    pub(super) fn keep_alive_is_due(&mut self, member: Member) {
        let Some(slot) = self.members.get_mut(member) else {
            return;
        };
        slot.marks.may_have_completions();
        if !std::mem::replace(&mut slot.marks.is_due, true) {
            self.list(member);
            self.ready.push(Ready::KeepAlive(member));
        } else {
            self.list(member);
        }
    }

    /// A turn of this member's keep-alive. It has no effect before the queues are empty: their
    /// completions are signs of life.
    #[cold]
    pub(super) fn watch_peer(&mut self, member: Member) {
        let Some(slot) = self.members.get_mut(member) else {
            return;
        };
        let Kept::Conn(conn) = &slot.kept else {
            return;
        };
        if slot.marks.look {
            return self.ready.push(Ready::KeepAlive(member));
        }
        slot.marks.is_due = false;
        let due = conn.watch_peer();
        let has_ended = conn.has_kept_event();
        if let Some(before) = std::mem::replace(&mut slot.marks.keep_alive, due) {
            self.timers.remove(&(before, member, Timer::KeepAlive));
        }
        if let Some(due) = due {
            self.timers.insert((due, member, Timer::KeepAlive));
        }
        if has_ended {
            slot.marks.event = true;
            self.list(member);
        }
    }
}
