//! A member's turn: one poll of its queues, or one event, or its failure.

use std::os::fd::AsFd;

use super::Happened;
use super::member::{Kept, Member, MemberSlot};
use super::place::Channels;
use crate::error::{Error, Result};
use crate::verbs::{Deadline, Wc};

impl MemberSlot {
    /// Completions come first. An event waits for one turn of them, and a failure until the queues
    /// are empty.
    pub(super) fn turn(
        &mut self,
        member: Member,
        channels: &Channels,
        wcs: &mut [Wc],
    ) -> Option<Happened> {
        let Self { kept, marks, .. } = self;
        let event_is_next = std::mem::take(&mut marks.event_is_next);
        if marks.look && !event_is_next {
            match kept.poll(wcs) {
                Ok(0) => marks.look = false,
                Ok(count) => {
                    // Less than there was room for: the queues were empty, and they were armed
                    // before.
                    marks.look = count == wcs.len();
                    marks.event_is_next = marks.event;
                    return Some(Happened::Completions(member, count));
                }
                Err(error) => {
                    (marks.look, marks.is_mute) = (false, true);
                    marks.failed.get_or_insert(error);
                }
            }
        }
        if std::mem::take(&mut marks.event) {
            match kept.take_event(member) {
                Ok(happened) => return Some(happened),
                Err(Error::NoEvent) => {}
                Err(error) => {
                    // The descriptor may stay readable, and would wake every sleep.
                    kept.unwatch(channels);
                    marks.failed.get_or_insert(error);
                }
            }
        }
        if marks.look {
            return None;
        }
        let failed = marks.failed.take()?;
        Some(Happened::Failed(member, failed))
    }

    pub(super) fn goes_on(&self) -> bool {
        let marks = &self.marks;
        marks.look || marks.event || marks.failed.is_some()
    }
}

impl Kept {
    fn poll(&self, wcs: &mut [Wc]) -> Result<usize> {
        match self {
            Self::Conn(conn) => conn.poll(wcs),
            Self::Srq(srq) => srq.get_rcq().map_or(Ok(0), |rcq| rcq.get_wc(wcs)),
            Self::Ep(_) | Self::Free | Self::Reserved => Ok(0),
        }
    }

    fn take_event(&self, member: Member) -> Result<Happened> {
        match self {
            Self::Conn(conn) => Ok(Happened::Event(member, conn.event_now()?)),
            Self::Ep(ep) => {
                let now = Deadline::after(std::time::Duration::ZERO);
                Ok(Happened::Request(member, ep.next_request_until(now)?))
            }
            Self::Srq(_) | Self::Free | Self::Reserved => Err(Error::NoEvent),
        }
    }

    pub(super) fn unwatch(&self, channels: &Channels) {
        match self {
            Self::Conn(conn) => channels.unwatch(conn.as_fd()),
            Self::Ep(ep) => channels.unwatch(ep.as_fd()),
            Self::Srq(_) | Self::Free | Self::Reserved => {}
        }
    }
}
