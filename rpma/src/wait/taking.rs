//! Events that a [`Wait`] takes from the kernel: each lists its member.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::Wait;
use super::member::{Kept, Member};
use super::place::Source;
use super::ready::Ready;
use crate::error::{Error, Result};
use crate::verbs::{CompChannel, CqTag, DeviceEventKind};

/// Descriptors that one look reports at most. The kernel reports the others first at the next
/// look.
const REPORTED: usize = 64;
/// Completion events that one look takes at most from each channel.
const TAKEN: u32 = 64;
impl Wait {
    /// Lists the members that the kernel reports, and those with timers that are due. Returns
    /// whether the kernel reported anything.
    pub(super) fn look(&mut self) -> Result<bool> {
        self.ready.asked();
        self.take_due_timers();
        let mut room = [const { MaybeUninit::uninit() }; REPORTED];
        let no_time = Timespec::default();
        let reported = match epoll::wait(&*self.channels, &mut room, Some(&no_time)) {
            // The caller looks again.
            Err(Errno::INTR) => return Ok(true),
            asked => {
                asked
                    .map_err(|errno| Error::provider("epoll_wait", errno))?
                    .0
            }
        };
        for event in reported.iter() {
            self.is_readable(Source::of(event.data), event.flags);
        }
        Ok(!reported.is_empty())
    }

    fn is_readable(&mut self, source: Source, flags: epoll::EventFlags) {
        match source {
            Source::Member(member) => {
                if let Some(slot) = self.members.get_mut(member) {
                    slot.marks.event = true;
                    // They may have come before the event, with their completion event still on its
                    // way.
                    slot.marks.may_have_completions();
                    self.list(member);
                }
            }
            Source::Inbox => self.take_news(),
            Source::Channel(number) => self.take_completion_events(number),
            Source::Device(number) => {
                let Some(device) = self.channels.device(number) else {
                    return;
                };
                let channel = device.channel.channel();
                if flags.contains(epoll::EventFlags::IN) {
                    channel.take_device_events();
                    self.take_news();
                } else {
                    // It would wake every sleep.
                    self.channels.unwatch(channel.device_fd());
                    let name = channel.device_name().into();
                    self.ready.push(Ready::Device(name, DeviceEventKind::Gone));
                }
            }
        }
    }

    fn take_news(&mut self) {
        let news = self.channels.inbox.take();
        if news.woken && !std::mem::replace(&mut self.is_wake_listed, true) {
            self.ready.push(Ready::Woken);
        }
        for (device, kind) in news.devices {
            self.ready.push(Ready::Device(device, kind));
        }
        for member in news.broken {
            self.note_broken(member);
        }
    }

    /// The device gave the queue pair of this member up. It may report several errors of a queue
    /// pair.
    pub(super) fn note_broken(&mut self, member: Member) {
        if let Some(slot) = self.members.get_mut(member) {
            let Kept::Conn(conn) = &slot.kept else {
                return;
            };
            if conn.is_ended_by_keep_alive() {
                // Its event reports that, and comes after its completions.
                self.keep_alive_is_due(member);
            } else if !std::mem::replace(&mut slot.marks.is_broken, true) {
                slot.marks.failed.get_or_insert_with(|| conn.closed());
                slot.marks.may_have_completions();
                self.list(member);
            }
        }
    }

    fn take_completion_events(&mut self, number: u32) {
        let Some(device) = self.channels.device(number) else {
            return;
        };
        let channel = device.channel.channel();
        let mut taken = std::mem::take(&mut self.taken);
        // The queues of a member that was removed give no more events.
        let arms = |tag: CqTag| self.members.get(Member::of_key(tag.key)).is_some();
        let result = channel.take_each(TAKEN, arms, &mut taken);
        for (tag, armed) in taken.drain(..) {
            let member = Member::of_key(tag.key);
            if let Some(slot) = self.members.get_mut(member) {
                slot.marks.may_have_completions();
                if let Err(error) = armed {
                    slot.marks.failed.get_or_insert(error);
                }
                if !matches!(slot.kept, Kept::Reserved) {
                    self.list(member);
                }
            }
        }
        self.taken = taken;
        if let Err(error) = result {
            self.fail_channel(number, channel, &error);
        }
    }

    /// A channel gives no more events: a failure of each member with queues on it. Later members
    /// get another channel.
    #[cold]
    fn fail_channel(&mut self, number: u32, channel: &Arc<CompChannel>, error: &Error) {
        self.channels.give_up(number, channel);
        let errno = error.raw_os_error().unwrap_or(0);
        for (member, slot) in self.members.all() {
            let cq = match &slot.kept {
                Kept::Conn(conn) => Some(conn.get_cq()),
                Kept::Srq(srq) => srq.get_rcq(),
                Kept::Ep(_) | Kept::Free | Kept::Reserved => None,
            };
            if cq.is_some_and(|cq| Arc::ptr_eq(cq.queue().channel(), channel)) {
                let cause = io::Error::from_raw_os_error(errno);
                let failed = || Error::provider("ibv_get_cq_event", cause);
                slot.marks.failed.get_or_insert_with(failed);
                slot.marks.may_have_completions();
                if !std::mem::replace(&mut slot.marks.is_listed, true) {
                    self.ready.push(Ready::Member(member));
                }
            }
        }
    }
}
