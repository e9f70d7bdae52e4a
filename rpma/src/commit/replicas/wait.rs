//! The waits of a set: looks, with sleeps between them.
//!
//! A sleep ends when a connection has something, and always after 50 ms. After such a silence each
//! connection gets a probe. Without it, the host of a replica may be gone while no
//! operation is in flight that would fail.

use std::array;
use std::convert::Infallible;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::replica::{CommitState, Replica};
use super::{CommitId, Outcome, ReplicaId, Replicas, named};
use crate::clock;
use crate::error::{Error, Result};
use crate::looking;
use crate::verbs::Deadline;

/// The longest sleep.
const SILENCE: Duration = Duration::from_millis(50);

impl Replicas {
    /// Waits until a commit is durable on `k` replicas, or until that cannot be reached any more.
    /// It waits for at most `limit`. Then it returns the outcome.
    ///
    /// After the limit, a replica without an answer is [`unknown`](Self::unknown), and one that has
    /// not got the commit yet is [`pending`](Self::pending). The commit goes on there in both
    /// cases: a later call can find it durable.
    ///
    /// An acknowledgement can come up to a second after the end of its connection. The wait goes on
    /// for this time. For a commit of another set, the call returns an empty outcome at once.
    ///
    /// If you call this again and again, check [`able`](Self::able) as well. While at least `k`
    /// replicas are able, `unknown` only means that the limit has passed. With fewer, `unknown` is
    /// final.
    pub fn settle(&mut self, id: CommitId, k: usize, limit: Duration) -> Outcome {
        if id.set != self.id {
            return Outcome::new(id);
        }
        let settled = self.until(limit, |set| set.settled(id, k));
        settled.unwrap_or_else(|| {
            let mut outcome = self.outcome(id);
            let posted = |member: &Replica| member.state(id.number()) == CommitState::Posted;
            for replica in self.ids(posted) {
                outcome.unknown |= replica.mask();
            }
            outcome
        })
    }

    /// Returns the outcome of a commit if no wait is needed: the commit is durable on `k` replicas,
    /// or that cannot be reached any more. `None` before that.
    ///
    /// This is the half of [`settle`](Self::settle) that does not sleep. Event loops call it after
    /// [`look`](Self::look). After 50 ms without an event, they call [`probe`](Self::probe) and
    /// then `settled`. An acknowledgement can come up to a second after the end of its connection.
    /// During this second the result is `None` if `k` copies are still possible.
    #[must_use]
    pub fn settled(&self, id: CommitId, k: usize) -> Option<Outcome> {
        let (outcome, coming) = self.outcome_and_coming(id);
        let copies = outcome.copies();
        (copies >= k || copies + coming < k).then_some(outcome)
    }

    /// Posts an operation of 0 bytes to each replica that can take commits, as
    /// [`Writer::probe`](crate::commit::Writer::probe): it shows whether the replica's host is
    /// there. Event loops call this after 50 ms without an event. It never sleeps.
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
        let found = self.until(limit, |set| match set.has_place(len) {
            Ok(false) => None,
            result => Some(result.map(drop)),
        });
        found.unwrap_or(Err(Error::RingFull))
    }

    /// Waits until `judge` has a result, for at most `limit`.
    fn until<T>(
        &mut self,
        limit: Duration,
        mut judge: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let (look, sleep) = (
            |set: &mut Self| {
                set.look();
                Ok::<_, Infallible>(())
            },
            |set: &mut Self, deadline| {
                set.sleep(deadline);
                Ok(())
            },
        );
        if self.members.iter().any(Replica::lacks_last_look) {
            self.look();
        }
        if let Some(found) = judge(self) {
            return Some(found);
        }
        self.poll();
        if let Some(found) = judge(self) {
            return Some(found);
        }
        let Ok(found) = looking::wait(self, Deadline::after(limit), judge, look, sleep);
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
        let member = &mut self.members[index];
        let result = member.set_aside(limit);
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

    /// Sleeps until a replica has something, or until it is time to look.
    fn sleep(&mut self, deadline: Deadline) {
        let until = deadline.earlier(Deadline::after(SILENCE));
        let quiet = self.members.iter().filter_map(Replica::quiet_from);
        let until = quiet.fold(until, Deadline::earlier);
        let writers = self.members.iter().filter(|of| of.is_able());
        let conns = writers.filter_map(|of| of.writer()).map(|of| of.conn());
        let fds = conns.filter_map(|conn| conn.get_next_fd().ok());
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let slept = match fds.next() {
            None => clock::poll(&mut [], until.instant()),
            // On the stack: a wait does not allocate. The places after the last one are not polled.
            Some(first) => {
                let mut count = 1;
                let mut places: [_; Self::MOST] = array::from_fn(|_| first.clone());
                for (place, fd) in places[1..].iter_mut().zip(fds) {
                    *place = fd;
                    count += 1;
                }
                clock::poll(&mut places[..count], until.instant())
            }
        };
        // Otherwise a signal, or no memory for the call: the caller looks, and sleeps again.
        if slept == Ok(0) {
            self.probe();
        }
    }
}
