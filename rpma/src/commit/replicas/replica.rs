//! [`Replica`]: a replica of a set.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use super::outcome::ReplicaId;
use super::ring::{CommitEntry, RecordRing};
use crate::clock;
use crate::commit::Writer;
use crate::conn::{Conn, EventsGone, Part, Pointer};
use crate::error::{Error, Result};
use crate::looking;
use crate::method::Method;
use crate::mr::MrRemote;
use crate::verbs::{Deadline, Wc};

/// How long a look at a connection that is being set aside waits for the next one.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) id: ReplicaId,
    /// `None`: it was set aside.
    writer: Option<Writer>,
    remote: MrRemote,
    /// A thread sets it aside, while others use the set.
    pub(super) is_leaving: bool,
    /// Its number among the replicas that were set aside, if it is one of them.
    pub(super) set_aside: Option<u64>,
    /// The set's last commit before the replica was added.
    pub(super) joined: u64,
    /// The writer's own last commit before that.
    base: u64,
    /// The last commit that was posted here, and the last one that is durable here. All commits
    /// from the first one on are, up to these.
    posted: u64,
    durable: u64,
    /// The device does not read the bytes of commits up to this one.
    released: u64,
    /// A look, or a completion that the program has polled, came after the connection's end.
    saw_end: bool,
    /// Before the last sleep.
    gone: EventsGone,
    /// A look began after the time of [`Conn::quiet_from`](crate::Conn::quiet_from).
    had_last_look: bool,
}

/// A replica in a sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beside<'a> {
    pub(super) id: ReplicaId,
    pub(super) conn: &'a Conn,
    /// Before the sleep.
    pub(super) gone: EventsGone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitState {
    /// The replica was added later.
    NotAMember,
    Durable,
    /// Never posted, and never will be.
    Failed,
    /// Posted, and the connection is over. An acknowledgement may still come.
    Late,
    /// Posted, and the connection is over. No acknowledgement comes any more.
    Unknown,
    /// Posted.
    Posted,
    /// To be posted.
    Queued,
}

impl Replica {
    pub(super) fn new(id: ReplicaId, writer: Writer, remote: MrRemote, joined: u64) -> Self {
        Self {
            id,
            base: writer.posted(),
            writer: Some(writer),
            remote,
            is_leaving: false,
            set_aside: None,
            joined,
            posted: joined,
            durable: joined,
            released: joined,
            saw_end: false,
            gone: EventsGone::default(),
            had_last_look: false,
        }
    }

    pub(super) fn writer(&self) -> Option<&Writer> {
        self.writer.as_ref()
    }

    /// Whether a commit can be posted, now or later.
    pub(super) fn is_able(&self) -> bool {
        self.writer.as_ref().is_some_and(|of| !of.is_over())
    }

    /// The writer, if something can still come from it.
    pub(super) fn awaited(&mut self) -> Option<&mut Writer> {
        self.writer.as_mut().filter(|of| !of.is_over())
    }

    pub(super) fn remote(&self) -> &MrRemote {
        &self.remote
    }

    pub(super) fn state(&self, number: u64) -> CommitState {
        match number {
            _ if number <= self.joined => CommitState::NotAMember,
            _ if number <= self.durable => CommitState::Durable,
            _ if self.is_able() && number <= self.posted => CommitState::Posted,
            _ if self.is_able() => CommitState::Queued,
            _ if number > self.posted => CommitState::Failed,
            _ if self.may_be_acknowledged(number) => CommitState::Late,
            _ => CommitState::Unknown,
        }
    }

    /// Whether an acknowledgement of this commit may still come, after the connection's end.
    fn may_be_acknowledged(&self, number: u64) -> bool {
        self.writer.as_ref().is_some_and(|writer| {
            // An answer of the server does not come with the completion that releases the bytes.
            let may_come = number > self.released || writer.cfg().method() == Method::Server;
            may_come && !(self.saw_end && writer.conn().is_quiet())
        })
    }

    /// When a sleep ends for a replica that is over and no longer watched: soon, while the device
    /// has to release bytes, or else when no acknowledgement comes any more.
    #[cold]
    #[inline(never)]
    pub(super) fn due_after_end(&self) -> Option<Deadline> {
        let quiet = self.writer.as_ref()?.conn().quiet_from()?;
        let quiet = Some(Deadline::At(quiet)).filter(|quiet| !quiet.has_passed())?;
        let is_released = self.has_released_all();
        Some(if is_released {
            quiet
        } else {
            quiet.earlier(Deadline::after(PAUSE))
        })
    }

    /// The bytes of commits up to this one are free, as far as this replica uses them.
    pub(super) fn released(&self) -> u64 {
        if self.released < self.posted || self.is_able() {
            self.released
        } else {
            u64::MAX
        }
    }

    /// Whether it commits so many bytes, with a pointer, wherever its region is.
    #[inline]
    pub(super) fn commits_in_regions(&self, entry: &CommitEntry) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|of| of.commits_in_regions(entry.bytes.len))
    }

    pub(super) fn check(&self, entry: &CommitEntry, ring: &RecordRing) -> Result<()> {
        match &self.writer {
            Some(writer) => check(writer, &self.remote, entry, ring),
            None => Ok(()),
        }
    }

    /// Posts the commits that wait in the ring, in their order, as far as there is room.
    #[inline]
    pub(super) fn advance(&mut self, ring: &RecordRing) {
        if self.posted < ring.last() {
            self.post(ring);
        }
    }

    #[inline(never)]
    fn post(&mut self, ring: &RecordRing) {
        while self.posted < ring.last() && self.is_able() {
            let (Some(writer), Some(entry)) = (&mut self.writer, ring.entry(self.posted + 1))
            else {
                return;
            };
            if writer.room() == 0 {
                return;
            }
            let _at = entry.place.enter();
            let posted = match places(&self.remote, entry, ring) {
                Ok((part, pointer)) => writer.commit(&[part], pointer),
                Err(error) => Err(error),
            };
            match posted {
                Ok(_) => self.posted += 1,
                // The program's own operations have the slots: later.
                Err(Error::QueueFull { .. } | Error::NoCompletionDue { .. }) => return,
                Err(error) => {
                    // A commit that is left out would be a hole under the next pointer.
                    if !writer.is_over() {
                        writer.conn().end_after(&error);
                    }
                    let number = self.posted + 1;
                    if let Error::Provider { .. } = error {
                        self.posted = number;
                    }
                    let id = self.id;
                    log::warn!("{}, {id}: {error}", id.set.commit(number));
                }
            }
        }
    }

    /// Takes completions. Returns whether one was there.
    #[inline]
    pub(super) fn poll(&mut self) -> bool {
        let Some(writer) = &mut self.writer else {
            return false;
        };
        let taken = writer.poll_queues(drop).unwrap_or_else(|error| {
            self.warn(self.saw_end, &error);
            false
        });
        self.count();
        taken
    }

    /// As [`poll`](Self::poll), until the queues are empty.
    pub(super) fn poll_each(&mut self) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Err(error) = writer.poll_each(&mut drop) {
            self.warn(self.saw_end, &error);
        }
        self.count();
    }

    /// As [`poll_each`](Self::poll_each), in the place of a look, for a caller that takes the events
    /// elsewhere.
    pub(super) fn poll_last(&mut self) {
        if let Some(writer) = self.writer.as_ref().filter(|of| of.is_over()) {
            // Before the poll, which takes the operations that this flushes.
            self.had_last_look |= writer.ends();
        }
        self.poll_each();
    }

    #[inline]
    pub(super) fn is_look_due(&mut self, now: Instant) -> bool {
        let due = |of: &mut Writer| of.is_look_due(now);
        self.writer.as_mut().is_some_and(due)
    }

    /// Takes events as well, if that is due. Returns whether it was.
    #[inline]
    pub(super) fn look_if_due(&mut self, now: Instant) -> bool {
        let is_due = self.is_look_due(now);
        if is_due {
            self.look();
        }
        is_due
    }

    /// A sleep begins that sees everything.
    pub(super) fn looks(&mut self, now: Instant) {
        if let Some(writer) = &mut self.writer {
            writer.looks(now);
        }
    }

    /// Before a sleep, and after a poll: returns until when the sleep lasts at most. It keeps watch
    /// over the peer, and may look instead: then it returns an instant that has passed.
    #[inline(always)]
    pub(super) fn before_sleep(&mut self, now: Instant) -> Deadline {
        let Some(writer) = &mut self.writer else {
            return Deadline::Never;
        };
        let conn = writer.conn();
        let due = conn.watch_peer().map_or(Deadline::Never, Deadline::At);
        if conn.has_kept_event() && !writer.is_over() {
            self.look();
            return Deadline::At(now);
        }
        // It cannot fail: the writer polls the connection's own channels.
        self.gone = conn.events_gone().unwrap_or_default();
        if self.is_able() {
            return due;
        }
        self.due_after_end().map_or(due, |end| due.earlier(end))
    }

    /// A look, or a poll, has failed.
    #[cold]
    fn warn(&self, was_over: bool, error: &Error) {
        if !was_over {
            log::warn!("{}, after commit {}: {error}", self.id, self.posted);
        }
    }

    /// Takes completions and events.
    pub(super) fn look(&mut self) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        self.had_last_look |= writer.conn().is_quiet();
        if let Err(error) = writer.look(drop) {
            self.warn(self.saw_end, &error);
        }
        self.count();
    }

    /// Its part in a sleep.
    pub(super) fn beside(&self) -> Option<Beside<'_>> {
        let conn = self.writer.as_ref().map(Writer::conn);
        conn.map(|conn| Beside {
            id: self.id,
            conn,
            gone: self.gone,
        })
    }

    /// The events of its channels could not be taken.
    #[cold]
    pub(super) fn cannot_take(&self, error: &Error) {
        if let Some(writer) = &self.writer {
            self.warn(writer.is_over(), error);
            writer.conn().end_after(error);
        }
    }

    pub(super) fn handle(&mut self, wc: &Wc) -> bool {
        let Some(writer) = &mut self.writer else {
            return false;
        };
        let is_own = writer.handle(wc);
        self.count();
        is_own
    }

    fn count(&mut self) {
        let Some(writer) = &self.writer else {
            return;
        };
        // The writer's own commits, from before it was added, come first.
        let of_set = |number: u64| self.joined + number.saturating_sub(self.base);
        self.durable = of_set(writer.durable());
        self.released = of_set(writer.released());
        self.saw_end |= writer.is_over();
    }

    /// Whether a wait has to look before it judges: acknowledgements may have come between the last
    /// look and the time of [`Conn::quiet_from`](crate::Conn::quiet_from).
    pub(super) fn lacks_last_look(&self) -> bool {
        let is_quiet = |of: &Writer| of.conn().is_quiet();
        !self.had_last_look && self.writer.as_ref().is_some_and(is_quiet)
    }

    /// Puts the queue pair into the error state, waits until the device has released all bytes,
    /// and destroys it. An error: the device may still read the bytes.
    pub(super) fn set_aside(&mut self, limit: Duration) -> Result<()> {
        let id = self.id;
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        if let Err(error) = writer.conn().disconnect() {
            log::warn!("{id}: {error}: the queue pair is destroyed at once");
        } else {
            let (look, sleep) = (
                |member: &mut Self| {
                    member.look();
                    Ok::<_, Infallible>(())
                },
                |_: &mut Self, deadline: Deadline| {
                    clock::sleep(PAUSE.min(deadline.left()));
                    Ok(())
                },
            );
            let is_released = |of: &mut Self| of.has_released_all().then_some(());
            let Ok(_) = looking::wait(self, limit, is_released, look, sleep);
        }
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        self.deleted(writer.delete())
    }

    /// Its writer was deleted, with this result.
    pub(super) fn deleted(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => self.released = self.posted,
            Err(error) if self.released >= self.posted => {
                log::warn!(
                    "{}: {error}: the device has released all bytes before",
                    self.id
                );
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn take_writer(&mut self) -> Option<Writer> {
        self.writer.take()
    }

    pub(super) fn has_released_all(&self) -> bool {
        self.released >= self.posted
    }
}

/// The size of a region that begins at a multiple of 8, as pointers have to, or else 0.
pub(super) fn reach(remote: &MrRemote) -> u64 {
    let all = remote.slice(..);
    let is_aligned = all.is_ok_and(|all| all.address().address % 8 == 0);
    if is_aligned { remote.get_size() } else { 0 }
}

/// Checks a commit without posting it.
pub(super) fn check(
    writer: &Writer,
    remote: &MrRemote,
    entry: &CommitEntry,
    ring: &RecordRing,
) -> Result<()> {
    let (part, pointer) = places(remote, entry, ring)?;
    writer.check(&[part], pointer)
}

/// Where a commit goes on a replica, with its bytes.
#[inline(always)]
fn places<'ring>(
    remote: &MrRemote,
    entry: &CommitEntry,
    ring: &'ring RecordRing,
) -> Result<(Part<'ring>, Option<Pointer>)> {
    let slice = |at: u64, len: u64| remote.slice(at..at.saturating_add(len));
    let to = slice(entry.at, entry.bytes.len)?;
    let pointer = match entry.pointer {
        Some((at, bytes)) => Some((slice(at, 8)?, bytes)),
        None => None,
    };
    Ok(((to, ring.slice(entry.bytes)?), pointer))
}
