//! The waits of a set: polls, with sleeps between them.
//!
//! A sleep watches the descriptors of all connections with one system call. It ends when one of them
//! has something, which is taken: an event of a completion channel by itself, and anything else by
//! a look at that replica. It always ends after 50 ms. After such a silence each connection gets a
//! look and a probe. Without the probe, the host of a replica may be gone while no operation is in
//! flight that would fail.

use std::array;
use std::convert::Infallible;
use std::time::Duration;

use super::replica::{Beside, CommitState, Replica};
use super::{CommitId, Outcome, ReplicaId, Replicas, named};
use crate::clock;
use crate::conn::Conn;
use crate::error::{Error, Result};
use crate::looking;
use crate::verbs::Deadline;

/// The replicas for which a sleep has ended, as masks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    /// An event of their completion channels was taken: their queues are to be polled.
    pub(super) taken: u64,
    /// They are to be looked at.
    pub(super) others: u64,
}

/// The descriptors of so many replicas, and that of their device.
pub(super) const fn places(replicas: usize) -> usize {
    1 + Conn::WATCHED * replicas
}

/// A sleep of so many has fewer places: they are filled in advance, which costs something.
pub(super) const FEW: usize = 5;

/// Refuses a commit without copies.
pub(super) fn refuse_no_copies(k: usize) -> Result<()> {
    if k == 0 {
        return Err(Error::invalid(
            "room for a commit of 0 copies was asked for: a commit has 1 or more",
        ));
    }
    Ok(())
}

/// The longest sleep.
pub(super) const SILENCE: Duration = Duration::from_millis(50);

impl Replicas {
    pub(super) const NOT_EVERYWHERE: &str =
        "a replica lacks commits, and the set has ended without them";

    /// Waits until a commit is durable on `k` replicas, or until that cannot be reached any more.
    /// It waits for at most `limit`, and then returns the outcome. With a limit of 0 it polls, and
    /// looks once.
    ///
    /// After the limit, a replica without an answer is [`unknown`](Self::unknown), and one that has
    /// not got the commit yet is [`pending`](Self::pending). The commit goes on there in both
    /// cases: a later call can find it durable.
    ///
    /// An acknowledgement can come up to a second after the end of its connection. The wait goes on
    /// for this time. For a commit of another set ([`is_own`](Self::is_own)), the call returns an
    /// outcome without copies at once.
    ///
    /// [`Outcome::require`] makes an error of too few copies.
    ///
    /// If you call this again and again, check [`able`](Self::able) as well. While at least `k`
    /// replicas are able, `unknown` only means that the limit has passed. With fewer, `unknown` is
    /// final.
    pub fn settle(&mut self, id: CommitId, k: usize, limit: Duration) -> Outcome {
        if id.set != self.id {
            return Outcome::new(id);
        }
        let settled = self.until(limit, |set| {
            let outcome = set.settled(id, k)?;
            if set.is_final(&outcome) {
                return Some(outcome);
            }
            set.look();
            set.settled(id, k)
        });
        settled.unwrap_or_else(|| self.outcome_at_the_limit(id))
    }

    /// Whether the outcome needs no look. Otherwise it is unknown by the time alone, and an
    /// acknowledgement may have come since the last look.
    #[inline]
    pub(super) fn is_final(&self, outcome: &Outcome) -> bool {
        outcome.unknown == 0 || !self.lacks_last_look()
    }

    pub(super) fn outcome_at_the_limit(&self, id: CommitId) -> Outcome {
        let mut outcome = self.outcome(id);
        let posted = |member: &Replica| member.state(id.number()) == CommitState::Posted;
        for replica in self.ids(posted) {
            outcome.unknown |= replica.mask();
        }
        outcome
    }

    /// Returns the outcome of a commit if no wait is needed: the commit is durable on `k` replicas,
    /// or that cannot be reached any more. `None` before that.
    ///
    /// This is the half of [`settle`](Self::settle) that does not sleep, for [event
    /// loops](Self#event-loops). During the second after the end of a connection, in which an
    /// acknowledgement can still come, the result is `None` if `k` copies are possible.
    #[inline]
    #[must_use]
    pub fn settled(&self, id: CommitId, k: usize) -> Option<Outcome> {
        let (outcome, coming) = self.outcome_and_coming(id);
        let copies = outcome.copies();
        (copies >= k || copies + coming < k).then_some(outcome)
    }

    /// Posts an operation of 0 bytes to each replica that can take commits, as
    /// [`Writer::probe`](crate::commit::Writer::probe): it shows whether the replica's host is
    /// there. [Event loops](Self#event-loops) call this after 50 ms without an event. It never
    /// sleeps.
    pub fn probe(&mut self) {
        for writer in self.members.iter_mut().filter_map(Replica::awaited) {
            // A failure is one of the connection, which the next look finds.
            let _ = writer.probe();
        }
    }

    /// Waits until [`record`](Self::record) has a place for a record of `len` bytes, for at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record): [`Error::RingFull`] when the limit has passed.
    pub fn wait_room(&mut self, len: usize, limit: Duration) -> Result<()> {
        let found = self.until(limit, |set| match set.has_room(len) {
            Ok(false) => None,
            result => Some(result.map(drop)),
        });
        found.unwrap_or(Err(Error::RingFull))
    }

    /// Waits for room as [`wait_room`](Self::wait_room) does. When the limit has passed, it [sets
    /// the replicas aside](Self::set_aside) that still hold the ring's oldest bytes, so that the
    /// others go on, and waits again. It keeps at least `k` replicas that can take a commit:
    /// otherwise it sets none aside.
    ///
    /// `k` is the number of copies of the next commit. It counts only when the limit has passed: if
    /// the ring has room, the result is `Ok`, also if fewer than `k` replicas can take a commit.
    /// The commit itself is refused then ([`Error::TooFewReplicas`]).
    ///
    /// Setting a replica aside may take up to `limit` again.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record): [`Error::RingFull`] if fewer than `k` replicas would be left,
    /// which [`holders`](Self::holders) names. [`Error::InvalidArgument`] also if `k` is 0. As
    /// [`set_aside`](Self::set_aside).
    pub fn make_room(&mut self, len: usize, k: usize, limit: Duration) -> Result<()> {
        refuse_no_copies(k)?;
        loop {
            let found = self.wait_room(len, limit);
            if !matches!(found, Err(Error::RingFull)) {
                return found;
            }
            for id in self.end_holders(len, k)? {
                self.set_aside(id, limit)?;
            }
        }
    }

    /// Ends the replicas that hold the ring's oldest bytes, if the ring has no room for `len`
    /// bytes: the half of [`make_room`](Self::make_room) that does not sleep, for [event
    /// loops](Self#event-loops). Returns the replicas. Their connections are over, and the program
    /// sets each of them [aside](Self::set_aside).
    ///
    /// # Errors
    ///
    /// As [`make_room`](Self::make_room): [`Error::RingFull`] if fewer than `k` replicas that can
    /// take a commit would be left.
    pub fn end_holders(&mut self, len: usize, k: usize) -> Result<Vec<ReplicaId>> {
        refuse_no_copies(k)?;
        if self.has_room(len)? {
            return Ok(Vec::new());
        }
        let slow: Vec<_> = self.holders().collect();
        let able = slow.iter().filter(|id| self.is_able(**id)).count();
        if slow.is_empty() || self.able() < k + able {
            return Err(Error::RingFull);
        }
        for id in &slow {
            if let Some(writer) = self.writer(*id) {
                writer.conn().leave();
            }
        }
        Ok(slow)
    }

    /// Ends the set without loss: waits until each replica that can take commits has all of them,
    /// for at most `limit`, and then ends the connections, as [`set_aside`](Self::set_aside).
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if a replica did not have all commits within `limit`: it may lack the
    /// last ones. Otherwise as [`set_aside`](Self::set_aside). The connections have ended in each
    /// case.
    pub fn close(mut self, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        let all = self.until(limit, |set| set.is_all_everywhere().then_some(()));
        let ids: Vec<_> = self.replicas().collect();
        // Each of them, whatever the result of another one is.
        let mut ended = Ok(());
        for id in ids {
            ended = ended.and(self.set_aside(id, deadline.left()));
        }
        all.ok_or(Error::TimedOut(Self::NOT_EVERYWHERE))?;
        ended
    }

    /// Whether each replica that can take commits has all of them.
    pub(super) fn is_all_everywhere(&self) -> bool {
        let last = self.last();
        last.is_none_or(|last| self.pending(last).next().is_none())
    }

    #[cold]
    pub(super) fn lacks_last_look(&self) -> bool {
        self.members.iter().any(Replica::lacks_last_look)
    }

    /// Waits until `judge` has a result, for at most `limit`.
    fn until<T>(&mut self, limit: Duration, judge: impl Fn(&mut Self) -> Option<T>) -> Option<T> {
        if let Some(found) = judge(self) {
            return Some(found);
        }
        let from = clock::now();
        let poll = |set: &mut Self| {
            set.poll_queues();
            Ok::<_, Infallible>(())
        };
        let sleep = |set: &mut Self, deadline| {
            set.sleep(deadline);
            Ok(())
        };
        let look = |set: &mut Self| {
            set.look();
            Ok(())
        };
        let Ok(found) = looking::wait_polling(self, (from, limit), judge, poll, sleep, look);
        if found.is_some() {
            self.look_if_due(from);
        }
        found
    }

    /// Takes a replica out of the set. This needs no answer from the replica. The connection is
    /// disconnected. It is destroyed when the device has released all bytes, or after `limit`. Then
    /// the replica holds no bytes any more. Its commits without an answer stay
    /// [`unknown`](Self::unknown), and later ones are [`failed`](Self::failed). Its place goes to a
    /// later replica when the set needs it ([`add`](Self::add)). Setting a replica aside again has
    /// no effect.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a replica of another set. [`Error::Provider`] if the device
    /// has not released the bytes, and the queue pair could not be destroyed. The bytes stay taken
    /// then, and the set takes no more commits.
    pub fn set_aside(&mut self, id: ReplicaId, limit: Duration) -> Result<()> {
        if id.set != self.id {
            return Err(Error::invalid(format!("{id} belongs to another set")));
        }
        let Some(index) = self.index(id) else {
            // It was set aside before: a later replica has its place.
            return Ok(());
        };
        let result = self.members[index].set_aside(limit);
        self.was_set_aside(index, result)
    }

    /// A replica was set aside, with this result.
    pub(super) fn was_set_aside(&mut self, index: usize, result: Result<()>) -> Result<()> {
        let member = &mut self.members[index];
        let id = member.id;
        if member.set_aside.is_none() {
            self.set_aside += 1;
            member.set_aside = Some(self.set_aside);
        }
        if result.is_err() {
            self.lost |= id.mask();
        }
        self.advance();
        result.map_err(|error| named(id, error))
    }

    /// Sleeps until a replica has something, and takes that. If nothing came, it looks.
    #[inline(never)]
    fn sleep(&mut self, deadline: Deadline) {
        let now = clock::now();
        let silence = now.checked_add(SILENCE).map_or(deadline, Deadline::At);
        let due = self.members.iter_mut().map(|of| of.before_sleep(now));
        let until = due.fold(deadline.earlier(silence), Deadline::earlier);
        let able = self.members.iter().filter(|of| of.is_able());
        let spins = able.filter_map(|of| Some(of.writer()?.conn().spin_time()));
        let spin = spins.max().unwrap_or_default();
        let mut reported = Some(Reported::default());
        if looking::spin(spin, until, || self.poll_queues().then_some(())).is_none() {
            self.members.iter_mut().for_each(|of| of.looks(now));
            reported = if self.members.len() <= FEW {
                self.watch::<{ places(FEW) }>(until)
            } else {
                self.watch::<{ places(Self::MOST) }>(until)
            };
        }
        let Some(Reported { taken, others }) = reported else {
            self.probe();
            // At its limit the wait looks by itself.
            if !deadline.has_passed() {
                self.look();
            }
            return;
        };
        for member in &mut self.members {
            let bit = member.id.mask();
            if others & bit != 0 {
                member.look();
            } else if taken & bit != 0 {
                member.poll_each();
            }
        }
        self.advance();
    }

    /// Sleeps beside the descriptors of the replicas that are able. `None`: nothing came.
    fn watch<const PLACES: usize>(&self, until: Deadline) -> Option<Reported> {
        let able = self.members.iter().filter(|of| of.is_able());
        let able = able.fold(0, |mask, of| mask | of.id.mask());
        // The same ones after the sleep.
        let members = self.members.iter();
        let watched = members.filter(|of| able & of.id.mask() != 0);
        watch::<PLACES>(watched.filter_map(Replica::beside), until, |id, error| {
            self.members[id.index()].cannot_take(&error);
        })
    }
}

/// Sleeps until a descriptor of a replica is readable, and takes the events of completion channels.
/// `None`: nothing came.
pub(super) fn watch<'a, const PLACES: usize>(
    watched: impl Iterator<Item = Beside<'a>> + Clone,
    until: Deadline,
    failed: impl Fn(ReplicaId, Error),
) -> Option<Reported> {
    let Some(first) = watched.clone().next().map(|of| of.conn) else {
        // A signal, or no memory for the call: the caller looks, and sleeps again.
        let _ = clock::poll(&mut [], until.instant());
        return None;
    };
    // On the stack: a wait does not allocate. The places after the last one are not polled.
    let device = first.device_fd();
    let mut fds: [_; PLACES] = array::from_fn(|_| device.clone());
    let mut count = 1;
    let mut free = fds[1..].iter_mut();
    for of in watched.clone() {
        of.conn.watched_with_bell().for_each(|fd| {
            if let Some(place) = free.next() {
                *place = fd;
                count += 1;
            }
        });
    }
    if !first.sleep(&mut fds[..count], until).unwrap_or_default() {
        return None;
    }
    let mut reported = fds[1..count].iter().map(|fd| !fd.revents().is_empty());
    let mut all = Reported::default();
    for of in watched {
        let taken = of.conn.take_reported_with_bell(of.gone, &mut reported);
        let (taken, other) = taken.unwrap_or_else(|error| {
            failed(of.id, error);
            (false, true)
        });
        all.taken |= u64::from(taken) * of.id.mask();
        all.others |= u64::from(other) * of.id.mask();
    }
    Some(all)
}
