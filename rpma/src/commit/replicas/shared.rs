//! [`SharedReplicas`]: a set of many threads. One of those that wait sleeps for all of them
//! ([`lookout`](crate::commit::lookout)).
//!
//! A sleep holds the connections and nothing else of the set. So a replica can be added or set
//! aside meanwhile, and [`SharedReplicas::set_aside`] deletes its queue pair after the last sleep
//! with its connection. No descriptor wakes a sleep for that, because each ends after 50 ms.
//!
//! [`SharedReplicas::commit`] takes bytes and no [`Record`]: a record that a program fills borrows
//! the ring, and so the lock. Threads that wait for room are all woken, and none of them gets it
//! reserved: a thread that leaves would have to give it back.

use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::time::Duration;

use super::outcome::{CommitId, Outcome, ReplicaId};
use super::replica::{Beside, PAUSE, Replica};
use super::wait::{FEW, Reported, SILENCE, places, refuse_no_copies, watch};
use super::{Record, Replicas};
use crate::clock;
use crate::commit::Writer;
use crate::commit::lookout::{Shared, Watched};
use crate::conn::Conn;
use crate::error::{Error, GivenBack, Result};
use crate::looking;
use crate::mr::MrRemote;
use crate::sync::Arc;
use crate::verbs::Deadline;

/// [`Replicas`] that threads share: some commit records while others wait for theirs.
///
/// Clones are handles of the same set, one for each thread for example. All calls take `&self`.
///
/// | call | it may sleep |
/// |---|---|
/// | [`commit`](Self::commit), [`look`](Self::look), [`add`](Self::add), [`with`](Self::with) | no |
/// | [`settle`](Self::settle), [`wait_room`](Self::wait_room), [`make_room`](Self::make_room), [`set_aside`](Self::set_aside), [`close`](Self::close) | up to their limit |
///
/// A thread that sleeps here holds no lock, so no `commit` waits for another thread's `settle`. If
/// several threads wait, one of them sleeps for the events of all connections, and wakes each other
/// thread when that thread's commit is settled.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpma::commit::SharedReplicas;
/// use rpma::sync::Mutex;
/// use rpma::{Error, Result};
///
/// const LIMIT: Duration = Duration::from_secs(10);
///
/// /// Appends a record after those of other threads, and shows it by the new length in the first
/// /// 8 bytes.
/// fn append(log: &SharedReplicas, tail: &Mutex<u64>, bytes: &[u8]) -> Result<()> {
///     let id = loop {
///         // Places and commits have one order. No thread sleeps with this lock.
///         let mut tail = tail.lock().expect("no panic");
///         let end = *tail + bytes.len() as u64;
///         match log.commit(bytes, *tail, Some((0, end.to_le_bytes())), 2) {
///             Ok(id) => {
///                 *tail = end;
///                 break id;
///             }
///             Err(Error::RingFull) => drop(tail),
///             Err(error) => return Err(error),
///         }
///         log.make_room(bytes.len(), 2, LIMIT)?;
///     };
///     log.settle(id, 2, LIMIT).require(2)
/// }
/// ```
///
/// The mutex is rpma's own, so that a test on a simulated fabric with a seed can
/// [repeat](crate::sync) a run.
///
/// A logger of the program must not call the shared set: some messages come while its lock is held.
#[derive(Clone)]
pub struct SharedReplicas(Arc<Shared<Watch>>);

#[derive(Debug)]
struct Watch(Replicas);

#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// That so many replicas have this commit, or that they cannot have it any more.
    Settled(CommitId, usize),
    /// A place for so many bytes.
    Room(usize),
    /// That each replica has all commits.
    Everywhere,
}

struct Sleep {
    /// The replicas that are able, by their places.
    conns: [Option<(ReplicaId, Arc<Conn>)>; Replicas::MOST],
    places: usize,
    until: Deadline,
    spin: Duration,
}

impl Sleep {
    fn conns(&self) -> impl Iterator<Item = (ReplicaId, &Conn)> + Clone {
        let conns = self.conns[..self.places].iter().flatten();
        conns.map(|(id, conn)| (*id, &**conn))
    }

    /// Takes the events of a connection, without the lock.
    fn take_events(conn: &Conn) {
        let taken = conn.take_events().and_then(|()| conn.end_of_waits());
        if let Err(error) = taken {
            conn.end_after(&error);
        }
    }
}

impl Watched for Watch {
    type Wanted = Wanted;
    type Found = ();
    type Sleep = Sleep;
    /// `None`: nothing happened.
    type Slept = Option<Reported>;

    fn poll(&mut self) -> bool {
        self.0.poll_queues()
    }

    fn judge(&mut self, wanted: &Wanted) -> Option<()> {
        let set = &mut self.0;
        match *wanted {
            Wanted::Settled(id, k) => {
                let outcome = set.settled(id, k)?;
                if !set.is_final(&outcome) {
                    set.members.iter_mut().for_each(Replica::poll_last);
                    set.advance();
                    set.settled(id, k)?;
                }
                Some(())
            }
            Wanted::Everywhere => set.is_all_everywhere().then_some(()),
            // An error ends the wait as well.
            Wanted::Room(len) => set.has_room(len).unwrap_or(true).then_some(()),
        }
    }

    fn is_look_due(&mut self) -> bool {
        let now = clock::now();
        let members = self.0.members.iter_mut();
        members.fold(false, |due, of| due | of.is_look_due(now))
    }

    fn before_sleep(&mut self, deadline: Deadline) -> Sleep {
        let now = clock::now();
        let mut until = now.checked_add(SILENCE).map_or(deadline, Deadline::At);
        until = until.earlier(deadline);
        let mut conns = [const { None }; Replicas::MOST];
        for (member, place) in self.0.members.iter_mut().zip(&mut conns) {
            member.looks(now);
            if !member.is_able() {
                until = member
                    .due_after_end()
                    .map_or(until, |due| until.earlier(due));
            }
            let id = member.id;
            *place = member.awaited().map(|writer| (id, writer.share_conn()));
        }
        let mut sleep = Sleep {
            conns,
            places: self.0.members.len(),
            until,
            spin: Duration::ZERO,
        };
        let spins = sleep.conns().map(|(_, conn)| conn.spin_time());
        sleep.spin = spins.max().unwrap_or_default();
        sleep
    }

    fn spin(sleep: &Sleep, mut poll: impl FnMut() -> bool) -> bool {
        looking::spin(sleep.spin, sleep.until, || poll().then_some(())).is_some()
    }

    fn sleep(sleep: Sleep) -> Option<Reported> {
        let mut until = sleep.until;
        let mut gone = [Default::default(); Replicas::MOST];
        for (id, conn) in sleep.conns() {
            if let Some(due) = conn.watch_peer() {
                until = until.earlier(Deadline::At(due));
            }
            if conn.has_kept_event() {
                Sleep::take_events(conn);
                until = Deadline::At(clock::now());
            }
            // It cannot fail: the connections of a set have channels of their own.
            gone[id.index()] = conn.events_gone().unwrap_or_default();
        }
        let watched = sleep.conns().map(|(id, conn)| Beside {
            id,
            conn,
            gone: gone[id.index()],
        });
        let failed = |id: ReplicaId, error: Error| {
            log::warn!("{id}: {error}");
            if let Some((_, conn)) = &sleep.conns[id.index()] {
                conn.end_after(&error);
            }
        };
        let reported = if sleep.places <= FEW {
            watch::<{ places(FEW) }>(watched, until, failed)
        } else {
            watch::<{ places(Replicas::MOST) }>(watched, until, failed)
        };
        let others = reported.map_or(0, |reported| reported.others);
        for (id, conn) in sleep.conns() {
            if others & id.mask() != 0 {
                Sleep::take_events(conn);
            }
        }
        reported
    }

    fn after_sleep(&mut self, slept: Option<Reported>) {
        // After a silence: all of them.
        let happened = slept.map_or(u64::MAX, |slept| slept.taken | slept.others);
        for member in &mut self.0.members {
            if happened & member.id.mask() != 0 {
                member.poll_last();
            }
        }
        if slept.is_none() {
            self.0.probe();
        }
        self.0.advance();
    }
}

/// A replica that a thread sets aside. It is over.
struct Leaving {
    id: ReplicaId,
    conn: Arc<Conn>,
}

impl Leaving {
    /// `None`: it was set aside, or another thread does that.
    fn begin(set: &mut Replicas, id: ReplicaId) -> Option<Self> {
        let index = set.index(id)?;
        let member = &mut set.members[index];
        if mem::replace(&mut member.is_leaving, true) {
            return None;
        }
        let conn = member.writer()?.share_conn();
        conn.leave();
        Some(Self { id, conn })
    }

    fn each(set: &mut Replicas, ids: Vec<ReplicaId>) -> Vec<Self> {
        let begin = |id| Self::begin(set, id);
        ids.into_iter().filter_map(begin).collect()
    }
}

impl SharedReplicas {
    /// Makes a set that threads share.
    #[must_use]
    pub fn new(set: Replicas) -> Self {
        Self(Arc::new(Shared::new(Watch(set))))
    }

    /// Gives the set back, if this is its last handle. No thread waits then.
    ///
    /// # Errors
    ///
    /// The handle, if there are others.
    pub fn into_replicas(self) -> Result<Replicas, Self> {
        let shared = Arc::try_unwrap(self.0).map_err(Self)?;
        Ok(shared.into_inner().0)
    }

    /// Copies a record into the set's memory, and commits it, as [`Replicas::record`] and
    /// [`Record::commit`]. It never sleeps, also while other threads wait.
    ///
    /// Commits are in the order of these calls. Threads that choose the place of a record choose it
    /// and call this with a lock of their own, as in the [example](Self).
    ///
    /// # Errors
    ///
    /// As [`Replicas::record`] and [`Record::commit`]: [`Error::RingFull`] if there is no place for
    /// the record.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn commit(
        &self,
        bytes: &[u8],
        at: u64,
        pointer: Option<(u64, [u8; 8])>,
        k: usize,
    ) -> Result<CommitId> {
        let mut held = self.0.lock();
        if !held.state.0.has_room(bytes.len())? {
            held.poll();
        }
        let set = &mut held.state.0;
        let able = set.able();
        let place = set.ring.place(bytes.len()).ok_or(Error::RingFull)?;
        let mut record = Record { set, bytes: place };
        record.put(0, bytes)?;
        let committed = record.commit(at, pointer, k);
        if held.state.0.able() != able {
            // A post has failed: other commits may have lost their last copy.
            held.tell();
        }
        committed
    }

    /// Waits until a commit is settled, as [`Replicas::settle`], for at most `limit`. Any thread may
    /// wait for a commit, and several threads may wait for the same one.
    pub fn settle(&self, id: CommitId, k: usize, limit: Duration) -> Outcome {
        if id.set != self.with(|set| set.id) {
            return Outcome::new(id);
        }
        // A settled commit stays settled.
        let _ = self.0.wait(Wanted::Settled(id, k), limit);
        self.with(|set| {
            let settled = set.settled(id, k);
            settled.unwrap_or_else(|| set.outcome_at_the_limit(id))
        })
    }

    /// Waits until there is a place for a record of `len` bytes, for at most `limit`. All threads
    /// that wait here find the same place. So a [`commit`](Self::commit) after this may still return
    /// [`Error::RingFull`], because another thread was faster. Then wait again.
    ///
    /// # Errors
    ///
    /// As [`Replicas::wait_room`]: [`Error::RingFull`] when the limit has passed.
    pub fn wait_room(&self, len: usize, limit: Duration) -> Result<()> {
        let found = self.0.wait(Wanted::Room(len), limit);
        self.with(|set| set.has_room(len))?;
        found.ok_or(Error::RingFull)
    }

    /// Waits for room, and sets slow replicas aside when the limit has passed, as
    /// [`Replicas::make_room`]. Several threads that call this keep at least `k` replicas together.
    /// The room is not reserved, as in [`wait_room`](Self::wait_room).
    ///
    /// # Errors
    ///
    /// As [`Replicas::make_room`].
    pub fn make_room(&self, len: usize, k: usize, limit: Duration) -> Result<()> {
        refuse_no_copies(k)?;
        loop {
            let found = self.wait_room(len, limit);
            if !matches!(found, Err(Error::RingFull)) {
                return found;
            }
            let leaving = self.change(|set| {
                let slow = set.end_holders(len, k)?;
                Ok::<_, Error>(Leaving::each(set, slow))
            })?;
            self.finish_each(leaving, Deadline::after(limit))?;
        }
    }

    /// Looks once, without sleeping: polls the queues of all replicas, and takes their events if no
    /// other thread sleeps for them. A program calls this if it never waits.
    pub fn look(&self) {
        self.0.look();
    }

    /// Reads the set, for [`able`](Replicas::able), [`holders`](Replicas::holders),
    /// [`outcome`](Replicas::outcome) and others. The set is locked meanwhile: `read` must be short,
    /// and must not call this handle.
    pub fn with<T>(&self, read: impl FnOnce(&Replicas) -> T) -> T {
        read(&self.0.lock().state.0)
    }

    /// Adds a replica, as [`Replicas::add`]. A thread that sleeps meanwhile watches the new replica
    /// from its next sleep on, after 50 ms at most.
    ///
    /// # Errors
    ///
    /// As [`Replicas::add`].
    pub fn add(
        &self,
        writer: Writer,
        remote: MrRemote,
    ) -> Result<ReplicaId, GivenBack<Box<Writer>>> {
        self.0.lock().state.0.add(writer, remote)
    }

    /// Takes a replica out of the set, as [`Replicas::set_aside`], while other threads commit and
    /// wait. A thread that sleeps has the connection until its sleep ends. So this may take 50 ms
    /// longer than `limit`.
    ///
    /// While another thread sets the same replica aside, the call returns at once.
    ///
    /// # Errors
    ///
    /// As [`Replicas::set_aside`].
    pub fn set_aside(&self, id: ReplicaId, limit: Duration) -> Result<()> {
        let leaving = self.change(|set| {
            if id.set == set.id {
                Ok(Leaving::begin(set, id))
            } else {
                Err(Error::invalid(format!("{id} belongs to another set")))
            }
        })?;
        self.finish_each(leaving, Deadline::after(limit))
    }

    /// Ends the set without loss, as [`Replicas::close`]. Other handles can commit no more. The
    /// outcomes stay.
    ///
    /// # Errors
    ///
    /// As [`Replicas::close`].
    pub fn close(self, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        let all = self.0.wait(Wanted::Everywhere, limit);
        let leaving = self.change(|set| {
            let ids: Vec<_> = set.replicas().collect();
            Leaving::each(set, ids)
        });
        let ended = self.finish_each(leaving, deadline);
        all.ok_or(Error::TimedOut(Replicas::NOT_EVERYWHERE))?;
        ended
    }

    /// Sets each of them aside, whatever the result of another one is.
    fn finish_each(
        &self,
        leaving: impl IntoIterator<Item = Leaving>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut ended = Ok(());
        for of in leaving {
            ended = ended.and(self.finish(of, deadline.left()));
        }
        ended
    }

    fn finish(&self, Leaving { id, conn }: Leaving, limit: Duration) -> Result<()> {
        if let Err(error) = conn.disconnect() {
            log::warn!("{id}: {error}: the queue pair is destroyed at once");
        } else {
            self.wait_released(id, limit);
        }
        drop(conn);
        let writer = self.change(|set| {
            let index = set.index(id)?;
            set.members[index].take_writer()
        });
        let Some(writer) = writer else {
            return Ok(());
        };
        while writer.is_watched() {
            clock::sleep(PAUSE);
        }
        let deleted = writer.delete();
        self.change(|set| {
            // It keeps its place until it was set aside.
            let index = id.index();
            let result = set.members[index].deleted(deleted);
            set.was_set_aside(index, result)
        })
    }

    /// Waits until the device has released the bytes of a replica that is over.
    fn wait_released(&self, id: ReplicaId, limit: Duration) {
        let is_released = |_: &mut ()| {
            self.with(|set| {
                let index = set.index(id);
                let is_released = index.is_none_or(|at| set.members[at].has_released_all());
                is_released.then_some(())
            })
        };
        let look = |_: &mut ()| {
            self.change(|set| {
                if let Some(index) = set.index(id) {
                    set.members[index].poll_last();
                }
            });
            Ok::<_, Infallible>(())
        };
        let sleep = |_: &mut (), deadline: Deadline| {
            clock::sleep(PAUSE.min(deadline.left()));
            Ok(())
        };
        let Ok(_) = looking::wait(&mut (), limit, is_released, look, sleep);
    }

    /// Changes the set, after which threads may have their results.
    fn change<T>(&self, change: impl FnOnce(&mut Replicas) -> T) -> T {
        let mut held = self.0.lock();
        let result = change(&mut held.state.0);
        held.tell();
        result
    }
}

impl fmt::Debug for SharedReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedReplicas").field(&self.0).finish()
    }
}
