//! [`Replicas`]: the same commits on several replicas, awaited.
//!
//! It owns the set of rpma behind one short lock. A task that waits, or the driver, takes the lock
//! and looks. The driver also posts commits that wait in the ring. The set tears itself down: it
//! destroys its connections, and then its ring.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpma::commit::{self, CommitId, Outcome, ReplicaId};
use rpma::{Error, Failure, GivenBack, MrRemote, Result, Site};

use super::Writer;
use crate::error::{invalid, without_number};
use crate::place::Place;
use crate::reactor::Reactor;
use crate::tasks::Tasks;
use crate::timeout::timeout;
use crate::watched::{Object, Watched};

/// Commits records on several replicas: the awaited form of [`rpma::commit::Replicas`], with the
/// same records, outcomes and errors. Clones are handles of the same set: any task and any thread
/// may commit, and wait for any commit.
///
/// A commit is posted to all replicas at once. A replica without room gets it later, from the
/// set's ring, also if no task waits. So one slow replica delays no task that has its `k` copies.
///
/// Dropping the last handle ends the connections. [`close`](Self::close) waits for all commits
/// first.
///
/// ```no_run
/// use std::net::SocketAddr;
/// use std::time::Duration;
///
/// use rpma::commit::{self, Method, WriterCfg};
/// use rpma::{ConnCfg, Identity, Result};
/// use rpma_async::{Reactor, Reconnect, Replicas};
///
/// const LIMIT: Duration = Duration::from_secs(10);
///
/// /// Connects to the servers of a new log, and makes a set of them.
/// async fn open(
///     reactor: &Reactor,
///     servers: &[SocketAddr],
///     identity: Identity,
/// ) -> Result<Replicas> {
///     // 1 MiB of source memory, for up to 256 records at a time.
///     let set = commit::Replicas::new(reactor.peer(), 1 << 20, 256)?;
///     let log = Replicas::new(reactor, set)?;
///     for server in servers {
///         let commits = WriterCfg::new(Method::Server);
///         let mut client = Reconnect::to_writer(reactor, *server, identity, &commits)?;
///         let writer = client.connect(&ConnCfg::new()).await?;
///         let memory = writer.offer().memory(4096)?;
///         log.add(writer, memory)?;
///     }
///     Ok(log)
/// }
///
/// /// Appends a record at `at`, and shows it by the new length in the first 8 bytes.
/// async fn append(log: &Replicas, at: u64, bytes: &[u8]) -> Result<()> {
///     log.make_room(bytes.len(), 2, LIMIT).await?;
///     let tail = at + bytes.len() as u64;
///     let id = log.commit(at, &[bytes], Some((0, tail.to_le_bytes())), 2)?;
///     log.settle(id, 2, LIMIT).await?.require(2)
/// }
/// ```
///
/// A replica that joins a log with records is brought up to date first, as an awaited
/// [`Writer`](crate::Writer), and added by [`add_writer`](Self::add_writer).
#[derive(Clone)]
pub struct Replicas {
    shared: Arc<Watched<ReplicasState>>,
}

struct ReplicasState {
    set: commit::Replicas,
}

#[derive(Clone, Copy)]
enum Wanted {
    /// So many copies of a commit, or that they cannot be reached.
    Settled(CommitId, usize),
    /// That the commit is neither in flight nor to be posted.
    Everywhere(CommitId),
    /// A place for a record of this length.
    Room(usize),
    /// That a replica takes no more commits.
    Gone(ReplicaId),
    /// The release of the bytes that a replica holds.
    Released(ReplicaId),
}

impl ReplicasState {
    /// Whether the device has released all bytes that a replica holds, or there is none.
    fn is_released(&self, id: ReplicaId) -> bool {
        let writer = self.set.writer(id);
        writer.is_none_or(|writer| writer.released() == writer.posted())
    }

    fn is_everywhere(&self, id: CommitId) -> bool {
        self.set.pending(id).next().is_none()
    }

    fn room(&self, len: usize) -> Option<Result<()>> {
        match self.set.has_room(len) {
            Ok(false) => None,
            room => Some(room.map(drop)),
        }
    }
}

impl Object for ReplicasState {
    type Wanted = Wanted;
    /// Counts of commits, which only grow, and of replicas.
    type Mark = (u64, usize);
    /// The replicas that are able.
    type Ends = usize;

    fn mark(&self) -> Self::Mark {
        let (counts, present) = self
            .set
            .writers()
            .fold((0, 0), |(counts, present), writer| {
                (counts + writer.durable() + writer.released(), present + 1)
            });
        (counts, present)
    }

    fn ends(&self) -> usize {
        self.set.able()
    }

    fn is_end(wanted: Wanted) -> bool {
        matches!(wanted, Wanted::Gone(_))
    }

    fn is_there(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Settled(id, k) => self.set.settled(id, k).is_some(),
            Wanted::Everywhere(id) => self.is_everywhere(id),
            Wanted::Room(len) => self.room(len).is_some(),
            Wanted::Gone(id) => !self.set.is_able(id),
            Wanted::Released(id) => self.is_released(id),
        }
    }

    fn is_single(wanted: Wanted) -> bool {
        matches!(wanted, Wanted::Room(_))
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.set.poll();
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        self.set.look();
        Ok(())
    }

    /// A set that asks looks each 50 ms, and a look does these steps.
    fn keep_alive(&self, asks: bool) -> Option<Instant> {
        let due = |writer: &commit::Writer| writer.conn().keep_alive().ok()?;
        (!asks).then(|| self.set.writers().filter_map(due).min())?
    }

    /// An idle replica may end by itself, and no host is asked.
    fn asks(&self, tasks: &Tasks<Wanted>) -> bool {
        tasks.any(|wanted| !Self::is_end(*wanted))
    }

    fn probe(&mut self) {
        self.set.probe();
    }
}

impl Replicas {
    /// Makes an awaited set. The reactor watches the set and its replicas.
    ///
    /// # Errors
    ///
    /// As [`rpma::Conn::get_next_fd`]; [`Error::Provider`] also if `epoll_ctl` fails. The set
    /// is dropped then, which ends its connections.
    pub fn new(reactor: &Reactor, set: commit::Replicas) -> Result<Self> {
        let shared = Watched::new(reactor.handle(), ReplicasState { set });
        shared.read(|state| {
            let mut writers = state.set.writers();
            writers.try_for_each(|writer| shared.watch(writer.conn().get_next_fd()?))
        })?;
        // Events that came before are taken.
        shared.take_events();
        Ok(Self { shared })
    }

    /// Adds a replica: as [`commit::Replicas::add`].
    ///
    /// # Errors
    ///
    /// As [`commit::Replicas::add`]; [`Error::Provider`] also if `epoll_ctl` fails.
    pub fn add(
        &self,
        writer: commit::Writer,
        remote: MrRemote,
    ) -> Result<ReplicaId, GivenBack<Box<commit::Writer>>> {
        let shared = &self.shared;
        let fd = writer.conn().get_next_fd();
        if let Err(error) = fd.and_then(|fd| shared.watch(fd)) {
            let object = Box::new(writer);
            return Err(GivenBack { error, object });
        }
        let added = shared.with(|state| state.set.add(writer, remote));
        if let Err(not_added) = &added {
            if let Ok(fd) = not_added.object.conn().get_next_fd() {
                shared.watch_no_more(fd);
            }
        }
        // Events that came before are taken.
        shared.take_events();
        added
    }

    /// Adds the replica of an awaited writer. A program first brings the replica up to date with
    /// that [`Writer`], and then adds it. This call waits until this host's device has released
    /// the blocks of all commits. Then it does the same as [`Writer::into_inner`] and
    /// [`add`](Self::add).
    ///
    /// The call has no time limit. If the server's host is gone, the wait ends after the retries of
    /// the device, or by a keep-alive. [`Reactor::timeout`](crate::Reactor::timeout) sets a limit.
    ///
    /// A server's [`Offer::limits`](rpma::Offer::limits) may be smaller than the commits of the
    /// program. Compare them before you add its replica, because no commit of the set may exceed
    /// the smallest limit of its replicas.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the writer. The connection ends with the writer's last handle.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add). If the connection is over, the error is the reason for its end.
    /// [`Error::InvalidArgument`] also if the writer has other handles, or reads that were not
    /// awaited. The writer is dropped then.
    pub async fn add_writer(&self, writer: Writer, remote: MrRemote) -> Result<ReplicaId> {
        let in_use = "the writer has other handles, or reads that were not awaited: drop them";
        if !writer.is_last_handle() {
            return Err(invalid(in_use));
        }
        writer.released().await?;
        let writer = writer.into_inner().map_err(|_| invalid(in_use))?;
        Ok(self.add(writer, remote)?)
    }

    /// Permits replicas on one host, for tests: as [`commit::Replicas::permit_one_host`].
    pub fn permit_one_host(&self) -> &Self {
        self.shared.with(|state| {
            state.set.permit_one_host();
        });
        self
    }

    /// Permits replicas in different regions of one memory, for tests: as
    /// [`commit::Replicas::permit_one_memory`].
    pub fn permit_one_memory(&self) -> &Self {
        self.shared.with(|state| {
            state.set.permit_one_memory();
        });
        self
    }

    /// Returns the identities of a replica's memory, host and failure domain: as
    /// [`commit::Replicas::site`].
    #[must_use]
    pub fn site(&self, id: ReplicaId) -> Option<Site> {
        self.shared.read(|state| state.set.site(id))
    }

    /// Returns the number of replicas that can take a commit, now or later.
    #[must_use]
    pub fn able(&self) -> usize {
        self.shared.read(|state| state.set.able())
    }

    /// Whether this replica can take a commit, now or later: as [`commit::Replicas::is_able`].
    /// [`gone`](Self::gone) waits until the replica cannot.
    #[must_use]
    pub fn is_able(&self, id: ReplicaId) -> bool {
        self.shared.read(|state| state.set.is_able(id))
    }

    /// Returns the replicas on which the commit of an outcome is durable: as
    /// [`commit::Replicas::durable`].
    #[must_use]
    pub fn durable(&self, outcome: Outcome) -> Vec<ReplicaId> {
        self.shared
            .read(|state| state.set.durable(outcome).collect())
    }

    /// Returns the replicas that never get the commit of an outcome: as
    /// [`commit::Replicas::failed`].
    #[must_use]
    pub fn failed(&self, outcome: Outcome) -> Vec<ReplicaId> {
        self.shared
            .read(|state| state.set.failed(outcome).collect())
    }

    /// Returns the replicas that have not answered the commit of an outcome: as
    /// [`commit::Replicas::unknown`].
    #[must_use]
    pub fn unknown(&self, outcome: Outcome) -> Vec<ReplicaId> {
        self.shared
            .read(|state| state.set.unknown(outcome).collect())
    }

    /// Returns the replicas that hold the oldest bytes of the ring: as
    /// [`commit::Replicas::holders`].
    #[must_use]
    pub fn holders(&self) -> Vec<ReplicaId> {
        self.shared.read(|state| state.set.holders().collect())
    }

    /// Why the connection of a replica failed: see [`rpma::Conn::failure`]. `None` also for a
    /// replica that was set aside, and for one of another set.
    #[must_use]
    pub fn failure(&self, id: ReplicaId) -> Option<Failure> {
        self.shared.read(|state| failure(&state.set, id))
    }

    /// Waits until a replica can take no more commits: its connection has ended or failed, or it
    /// was set aside. Returns the failure of its connection, if there is one. For a replica of
    /// another set, the call returns at once. The same holds if a later replica has the place of
    /// this one.
    ///
    /// A program has a task for each replica. The task waits with this call, and then connects
    /// again. It has a handle of the set: [`close`](Self::close) ends the wait. `None` means that
    /// the peer or this side has ended the connection, or that the replica was set aside. A replica
    /// that is gone stays in the set: [`set_aside`](Self::set_aside) frees its bytes in the ring,
    /// and its place for a later replica.
    ///
    /// Only an operation that fails, or a keep-alive
    /// ([`ConnCfg::set_keep_alive`](rpma::ConnCfg::set_keep_alive)), detects that a host is gone.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a [`Driver`](crate::Driver).
    pub async fn gone(&self, id: ReplicaId) -> Result<Option<Failure>> {
        let judge = |state: &mut ReplicasState| {
            let is_gone = !state.set.is_able(id);
            // Requests are flushed at each end, which is no failure.
            let failure = || failure(&state.set, id).filter(|failure| !failure.is_flushed());
            is_gone.then(|| Ok(failure()))
        };
        self.shared.wait(Wanted::Gone(id), judge).await
    }

    /// Commits a record on all replicas, as [`commit::Record::commit`]. It writes `pieces`, one
    /// after the other, at the offset `at` of each replica's region. Then it writes the 8 bytes of
    /// `pointer` at the pointer's own offset. It copies the bytes and posts before it returns.
    /// [`settle`](Self::settle) waits for `k` copies. Use the same `k` for all commits of a log:
    /// the page on persistence has the reason ([the pages](rpma#the-pages)).
    ///
    /// # Errors
    ///
    /// As [`commit::Replicas::record`] and [`commit::Record::commit`]. No replica gets the commit
    /// then. [`room`](Self::room) waits after [`Error::RingFull`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn commit(
        &self,
        at: u64,
        pieces: &[&[u8]],
        pointer: Option<(u64, [u8; 8])>,
        k: usize,
    ) -> Result<CommitId> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let _at = Place::caller().enter();
        let has_room = |state: &ReplicasState| matches!(state.set.has_room(len), Ok(true));
        self.shared.post(has_room, |state| {
            let mut record = state.set.record(len)?;
            let mut from = 0;
            for piece in pieces {
                record.put(from, piece)?;
                from += piece.len();
            }
            record.commit(at, pointer, k)
        })
    }

    /// Waits until a commit is durable on `k` replicas, or until that cannot be reached any more.
    /// It waits for at most `limit` (`Duration::MAX` is for ever). Then it returns the outcome, as
    /// [`commit::Replicas::settle`].
    ///
    /// # Cancel safety
    ///
    /// It only waits: the commit goes on, and can be waited for again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a commit of another set, and without a
    /// [`Driver`](crate::Driver).
    pub async fn settle(&self, id: CommitId, k: usize, limit: Duration) -> Result<Outcome> {
        let shared = &self.shared;
        let judge = |state: &mut ReplicasState| state.set.settled(id, k).map(Ok);
        let settled = shared.wait(Wanted::Settled(id, k), judge);
        let outcome = match timeout(shared.reactor(), limit, settled).await {
            Some(settled) => settled?,
            // After the limit replicas without an answer are unknown.
            None => shared.with(|state| state.set.settle(id, k, Duration::ZERO)),
        };
        if outcome.copies() == 0 && !shared.read(|state| state.set.is_own(id)) {
            return Err(invalid("the commit was made by another set: ask that one"));
        }
        Ok(outcome)
    }

    /// Waits until this commit is neither in flight nor still to be posted on any replica
    /// ([`commit::Replicas::pending`]). Then it is durable on each replica that can still take
    /// commits. If the commit has set bytes of the log free, the program may overwrite them from
    /// then on.
    ///
    /// A frozen replica delays this call until a keep-alive ends its connection, or until the
    /// replica is set aside.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a [`Driver`](crate::Driver).
    pub async fn everywhere(&self, id: CommitId) -> Result<()> {
        let judge = |state: &mut ReplicasState| state.is_everywhere(id).then_some(Ok(()));
        self.shared.wait(Wanted::Everywhere(id), judge).await
    }

    /// The outcome of a commit, as far as it is known: as [`commit::Replicas::outcome`].
    #[must_use]
    pub fn outcome(&self, id: CommitId) -> Outcome {
        self.shared.read(|state| state.set.outcome(id))
    }

    /// Waits until the ring has a place for a record of `len` bytes, for at most `limit`
    /// (`Duration::MAX` is for ever). The place is not reserved: of several tasks that wait, one
    /// commits first.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    ///
    /// # Errors
    ///
    /// As [`commit::Replicas::wait_room`]: [`Error::RingFull`] when the limit has passed.
    /// [`Error::InvalidArgument`] also without a [`Driver`](crate::Driver).
    pub async fn room(&self, len: usize, limit: Duration) -> Result<()> {
        let shared = &self.shared;
        let room = shared.wait(Wanted::Room(len), |state: &mut ReplicasState| {
            state.room(len)
        });
        match timeout(shared.reactor(), limit, room).await {
            Some(room) => room,
            None => shared.with(|state| state.set.wait_room(len, Duration::ZERO)),
        }
    }

    /// Waits for room as [`room`](Self::room) does, and sets slow replicas aside when the limit has
    /// passed: as [`commit::Replicas::make_room`]. Several tasks that call this keep at least `k`
    /// replicas together.
    ///
    /// # Cancel safety
    ///
    /// As [`set_aside`](Self::set_aside).
    ///
    /// # Errors
    ///
    /// As [`commit::Replicas::make_room`], and as [`set_aside`](Self::set_aside).
    pub async fn make_room(&self, len: usize, k: usize, limit: Duration) -> Result<()> {
        if k == 0 {
            let text = "room for a commit of 0 copies was asked for: a commit has 1 or more";
            return Err(invalid(text));
        }
        loop {
            let found = self.room(len, limit).await;
            if !matches!(found, Err(Error::RingFull)) {
                return found;
            }
            let slow = self.shared.with(|state| state.set.end_holders(len, k))?;
            for id in slow {
                self.set_aside(id, limit).await?;
            }
        }
    }

    /// Takes a replica out of the set, so that it holds no bytes of the ring: as
    /// [`commit::Replicas::set_aside`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves a replica that is disconnected. It takes no commits any more,
    /// and another call sets it aside.
    ///
    /// # Errors
    ///
    /// As [`commit::Replicas::set_aside`]. [`Error::InvalidArgument`] also without a
    /// [`Driver`](crate::Driver).
    pub async fn set_aside(&self, id: ReplicaId, limit: Duration) -> Result<()> {
        let shared = &self.shared;
        let is_disconnected = shared.with(|state| {
            let writer = state.set.writer(id)?;
            // The set tries it again.
            let disconnected = writer.conn().disconnect();
            disconnected
                .inspect_err(|error| log::debug!("{error}"))
                .ok()
        });
        if is_disconnected.is_some() {
            let judge = |state: &mut ReplicasState| state.is_released(id).then_some(Ok(()));
            let released = shared.wait(Wanted::Released(id), judge);
            if let Some(Err(error)) = timeout(shared.reactor(), limit, released).await {
                return Err(error);
            }
        }
        shared.with(|state| state.set.set_aside(id, Duration::ZERO))
    }

    /// Ends the set without loss, within `limit`, as [`commit::Replicas::close`]. Other handles
    /// can commit no more, and each [`gone`](Self::gone) returns. Ending the connections takes a
    /// device some milliseconds, in which this call blocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops this handle. The set goes on if there are others.
    ///
    /// # Errors
    ///
    /// As [`commit::Replicas::close`]. [`Error::InvalidArgument`] also without a
    /// [`Driver`](crate::Driver).
    pub async fn close(self, limit: Duration) -> Result<()> {
        let shared = &self.shared;
        let last = shared.read(|state| state.set.last());
        let all = async {
            match last {
                Some(last) => self.everywhere(last).await,
                None => Ok(()),
            }
        };
        let all = timeout(shared.reactor(), limit, all).await;
        let ended = shared.with(|state| {
            let ids: Vec<_> = state.set.replicas().collect();
            let mut ended = Ok(());
            // Each of them, whatever the result of another one is.
            for id in ids {
                ended = ended.and(state.set.set_aside(id, Duration::ZERO));
            }
            ended
        });
        let late = "a replica lacks commits, and the set has ended without them";
        all.unwrap_or(Err(Error::TimedOut(late))).and(ended)
    }
}

fn failure(set: &commit::Replicas, id: ReplicaId) -> Option<Failure> {
    let failure = set.writer(id)?.conn().failure();
    failure.map(without_number)
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.read(|state| {
            f.debug_struct("Replicas")
                .field("set", &state.set)
                .finish_non_exhaustive()
        })
    }
}
