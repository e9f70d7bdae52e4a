//! [`Replicas`]: the same commits on several replicas.
//!
//! A set owns its writers with their connections, and the source memory of all commits: a ring
//! that is registered once. It is torn down in the order of its fields: first the connections,
//! then the ring. So no device reads the ring after it is freed.
//!
//! Commits have numbers, and a connection executes them in order. So each replica has three counts:
//! commits posted, durable, and released. It keeps no state for each pair of commit and replica.
//! The outcome of an old commit on a replica is known for as long as the replica has its place.
//!
//! A place is a bit of the masks in an [`Outcome`]. A replica that was set aside may give its
//! place to a new one ([`Replicas::add`]): its queue pair is destroyed or flushed by then, so it
//! reads no bytes of the ring. The new replica has an id of its own and begins after the last
//! commit, so a bit of an earlier outcome does not mean it.

mod outcome;
mod replica;
mod ring;
mod shared;
mod wait;

use std::time::Instant;

use self::outcome::SetId;
pub use self::outcome::{CommitId, Outcome, ReplicaId};
use self::replica::{CommitState, Replica};
use self::ring::{CommitEntry, RecordBytes, RecordRing};
pub use self::shared::SharedReplicas;
use crate::address;
use crate::clock;
use crate::commit::Writer;
use crate::error::{Error, GivenBack, Result};
use crate::mr::MrRemote;
use crate::peer::Peer;
use crate::site::Site;
use crate::verbs::{Place, Wc};

/// Writes the same records to several replicas, and learns which of them have each record.
///
/// Every replica is a [`Writer`], with a region of its own. A program writes a record into the
/// set's memory, and commits it at the same offset of all regions. It then waits until `k` replicas
/// have the record.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpma::commit::Replicas;
///
/// const LIMIT: Duration = Duration::from_secs(10);
///
/// /// Appends a record at `at`, and shows it by the new length in the first 8 bytes.
/// fn append(log: &mut Replicas, at: u64, bytes: &[u8]) -> rpma::Result<()> {
///     log.make_room(bytes.len(), 2, LIMIT)?;
///     let mut record = log.record(bytes.len())?;
///     record.put(0, bytes)?;
///     let tail = at + bytes.len() as u64;
///     let id = record.commit(at, Some((0, tail.to_le_bytes())), 2)?;
///     log.settle(id, 2, LIMIT).require(2)
/// }
/// ```
///
/// # Order
///
/// Each replica gets all commits, in their order. If a replica has no room, its commits wait in
/// the set's source memory (the ring). [`look`](Self::look) posts them later. No commit is left
/// out, because a pointer also shows the records before it. A replica that cannot take a commit
/// gets no later one either. Commits may be in flight together. A commit must not overwrite bytes
/// that an earlier pointer shows.
///
/// # Source memory
///
/// The bytes of a commit are free when this host's device no longer reads them for any replica. A
/// replica that is slow or frozen holds these bytes. Commits go on until the ring is full
/// ([`Error::RingFull`]). Then [`make_room`](Self::make_room) waits for the replica, and takes it
/// out of the set if it is too slow. This needs no answer from it. A replica whose connection is
/// over holds nothing after the next look, because the device flushes its requests.
///
/// # The end of a set
///
/// Dropping a set ends its connections at once: a replica that was late never gets the last
/// commits. [`close`](Self::close) waits for it first.
///
/// # Event loops
///
/// [`record`](Self::record), [`Record::commit`], [`look`](Self::look), [`handle`](Self::handle),
/// [`outcome`](Self::outcome) and [`settled`](Self::settled) never sleep and never allocate. A loop
/// repeats these steps:
///
/// 1. Sleep until the descriptor of [`Conn::get_next_fd`](crate::Conn::get_next_fd) of any replica
///    is readable, for at most 50 ms.
/// 2. If none was readable, call [`probe`](Self::probe): a host may be gone while no operation is in
///    flight that would fail.
/// 3. Call [`look`](Self::look), also after the 50 ms: it takes the steps of keep-alives.
/// 4. Ask [`settled`](Self::settled) for the commits, and [`is_able`](Self::is_able) for the
///    replicas.
#[derive(Debug)]
pub struct Replicas {
    id: SetId,
    members: Vec<Replica>,
    /// A commit that ends before this offset is inside the regions of all replicas, and a pointer at
    /// a multiple of 8 is aligned in each.
    reach: u64,
    ring: RecordRing,
    /// How many replicas were set aside so far.
    set_aside: u64,
    /// Replicas with a queue pair that is neither flushed nor destroyed.
    lost: u64,
    permits_one_host: bool,
    permits_one_memory: bool,
}

impl Replicas {
    /// The maximum number of replicas of a set. Those that were set aside give their places to new
    /// ones.
    pub const MOST: usize = 64;

    /// Makes a set without replicas, with a ring of `ring_bytes` bytes of source memory, for at
    /// most `records` commits at a time. A record never wraps around the end of the ring. So give
    /// the ring twice the bytes of the records in flight.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `ring_bytes` or `records` is 0. Otherwise as
    /// [`AlignedBuf::zeroed`](crate::AlignedBuf::zeroed) and [`Mr::reg`](crate::Mr::reg).
    pub fn new(peer: &Peer, ring_bytes: usize, records: usize) -> Result<Self> {
        Ok(Self {
            id: SetId::new(),
            members: Vec::with_capacity(Self::MOST),
            reach: u64::MAX,
            ring: RecordRing::new(peer, ring_bytes, records)?,
            set_aside: 0,
            lost: 0,
            permits_one_host: false,
            permits_one_memory: false,
        })
    }

    /// Adds a replica, with the region to which commits go. The replica gets the commits from the
    /// next one on. So the program brings the region up to date before this call.
    ///
    /// The first 64 replicas get the places from 0 on. A later one gets the place of the replica
    /// that was set aside longest ago, with an id of its own. The earlier id then names no replica
    /// any more, and a later [`outcome`](Self::outcome) does not count the earlier replica's copy.
    /// The new replica is in no outcome of an earlier commit.
    ///
    /// # Errors
    ///
    /// [`GivenBack`], with the writer. [`Error::InvalidArgument`] if
    ///
    /// * the set has [`MOST`](Self::MOST) replicas that were not set aside;
    /// * the writer is of another [`Peer`], its connection is over, or it is on a
    ///   [`CompletionChannel`](crate::CompletionChannel);
    /// * its commits are durable and those of the other replicas only visible, or the other way
    ///   round;
    /// * the region does not allow the commits;
    /// * another replica that was not set aside is in the same place: it has the same memory, host or
    ///   failure domain ([`Site`]), or the same region at the same address. One loss of power, or
    ///   of the memory, would lose both copies. The text names both replicas.
    ///
    /// Only [known identities](crate::guide::persistence#two-copies-must-be-on-two-hosts) are
    /// compared, and unknown ones are logged as a warning.
    /// [`permit_one_host`](Self::permit_one_host) permits the same host and failure domain, for
    /// tests.
    ///
    /// [`Error::NotSupported`] if the platform of the replica, or the usage of its region, does not
    /// allow the writer's commits. [`Error::Provider`] if `eventfd2` fails.
    pub fn add(
        &mut self,
        writer: Writer,
        remote: MrRemote,
    ) -> Result<ReplicaId, GivenBack<Box<Writer>>> {
        let id = match self.check_new(&writer, &remote) {
            Ok(id) => id,
            Err(error) => {
                return Err(GivenBack::boxed(error, writer));
            }
        };
        self.warn_of_unknown(id, &writer);
        self.reach = self.reach.min(replica::reach(&remote));
        let member = Replica::new(id, writer, remote, self.ring.last());
        match self.members.get_mut(id.index()) {
            Some(place) => *place = member,
            None => self.members.push(member),
        }
        Ok(id)
    }

    fn warn_of_unknown(&self, id: ReplicaId, writer: &Writer) {
        let site = writer.offer().site();
        let absent = match (site.memory(), site.host()) {
            _ if self.permits_one_host => return,
            (Some(_), Some(_)) => return,
            (None, Some(_)) => "memory",
            (Some(_), None) => "host",
            (None, None) => "memory and host",
        };
        log::warn!(
            "{id}: its server sent no identity of its {absent}, so another replica in the same place is \
             not refused: call Offer::set_site in the server"
        );
    }

    /// The id of the next replica: in a new place, or in that of the replica that was set aside
    /// longest ago.
    fn next_id(&self) -> Result<ReplicaId> {
        let places = self.members.len();
        if places < Self::MOST {
            return Ok(self.id.replica(places));
        }
        // One that may still read the ring keeps its place.
        let free = self
            .members
            .iter()
            .filter(|member| self.lost & member.id.mask() == 0)
            .filter_map(|member| Some((member.set_aside?, member.id.next()?)));
        let (_, id) = free.min().ok_or_else(|| {
            Error::invalid(format!(
                "a set has at most {} replicas: set one aside (Replicas::set_aside)",
                Self::MOST
            ))
        })?;
        Ok(id)
    }

    /// The id of this replica, if it can be added.
    fn check_new(&self, writer: &Writer, remote: &MrRemote) -> Result<ReplicaId> {
        let id = self.next_id()?;
        let checked = self.check_writer(writer, remote);
        checked.map(|()| id).map_err(|error| named(id, error))
    }

    fn check_writer(&self, writer: &Writer, remote: &MrRemote) -> Result<()> {
        if writer.is_over() {
            return Err(Error::invalid("the writer's connection is over"));
        }
        for (n, member) in self.members.iter().enumerate() {
            let Some(other) = member.writer() else {
                continue;
            };
            self.check_places(writer, remote, (n, other, member.remote()))?;
            if other.cfg().flush_type() != writer.cfg().flush_type() {
                return Err(Error::invalid(format!(
                    "the writer's flush type is {:?}, and that of replica {n} {:?}",
                    writer.cfg().flush_type(),
                    other.cfg().flush_type()
                )));
            }
        }
        // A commit of the first byte needs all rights.
        let bytes = self.ring.first_byte();
        let first = CommitEntry {
            bytes,
            at: 0,
            pointer: None,
            place: Place::NONE,
        };
        replica::check(writer, remote, &first, &self.ring)?;
        writer.conn().can_be_watched()
    }

    /// Refuses a replica that is lost together with another one.
    fn check_places(
        &self,
        writer: &Writer,
        remote: &MrRemote,
        (n, other, region): (usize, &Writer, &MrRemote),
    ) -> Result<()> {
        let (here, there) = (writer.conn().peer_addr()?, other.conn().peer_addr()?);
        let (own, site) = (writer.offer().site(), other.offer().site());
        let is_one_region = region == remote;
        let permitted = self.permits_one_host;
        let is_one_memory = is_same(own.memory(), site.memory());
        let (same, remedy) = if is_one_memory && (is_one_region || !self.permits_one_memory) {
            (
                "memory",
                "they are two ways to one memory. If one memory is a copy of the other (cp, dd, a \
                 cloned disk), call Directory::renew_identity for one of them. A test with two keys \
                 of one server permits it by Replicas::permit_one_memory",
            )
        } else if is_same(own.host(), site.host()) && !permitted {
            (
                "host",
                "one loss of power would lose both. A test permits it by Replicas::permit_one_host",
            )
        } else if is_same(own.failure_domain(), site.failure_domain()) && !permitted {
            (
                "failure domain",
                "one failure would lose both. If they fail apart, give the servers different ones \
                 by ServerCfg::set_failure_domain. A test permits it by Replicas::permit_one_host",
            )
        } else if is_one_region && address::is_one_host(here, there) {
            (
                "region and address",
                "one loss of power would lose both. Connect to a server on another host",
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "the replica at {here} and replica {n} at {there} have the same {same}: {remedy}"
        )))
    }

    /// Permits replicas on one host, and in one failure domain. Such copies are lost together: use
    /// this only for tests and demonstrations on one host. Two replicas in one memory are refused
    /// as before.
    pub fn permit_one_host(&mut self) -> &mut Self {
        self.permits_one_host = true;
        self
    }

    /// Permits replicas in different regions of one memory: the program's own word that the regions
    /// do not overlap. It is for tests whose replicas are keys of one server, with
    /// [`permit_one_host`](Self::permit_one_host). The same region is refused as before.
    pub fn permit_one_memory(&mut self) -> &mut Self {
        self.permits_one_memory = true;
        self
    }

    /// Returns the identities of a replica's memory, host and failure domain, as far as its server
    /// sent them. An absent identity is not compared by [`add`](Self::add). `None` as
    /// [`writer`](Self::writer).
    #[must_use]
    pub fn site(&self, id: ReplicaId) -> Option<Site> {
        Some(self.writer(id)?.offer().site())
    }

    /// Returns the writer of a replica. Use it to look at the connection. If you post other
    /// operations on it, [`look`](Self::look) and the waits drop their completions. `None` after
    /// [`set_aside`](Self::set_aside), or for a replica of another set.
    #[must_use]
    pub fn writer(&self, id: ReplicaId) -> Option<&Writer> {
        let index = self.index(id)?;
        self.members[index].writer()
    }

    /// The writers of all replicas that were not set aside, as [`writer`](Self::writer).
    pub fn writers(&self) -> impl Iterator<Item = &Writer> {
        self.members.iter().filter_map(Replica::writer)
    }

    fn ids(&self, is: impl Fn(&Replica) -> bool) -> impl Iterator<Item = ReplicaId> {
        let members = self.members.iter().filter(move |member| is(member));
        members.map(|member| member.id)
    }

    /// The place of a replica, if it is one of this set, and no later one has its place.
    fn index(&self, id: ReplicaId) -> Option<usize> {
        let member = self.members.get(id.index())?;
        (member.id == id).then(|| id.index())
    }

    /// Returns the number of replicas that can take a commit, now or later.
    #[must_use]
    pub fn able(&self) -> usize {
        self.members.iter().filter(|of| of.is_able()).count()
    }

    /// Returns whether a commit was made by this set.
    #[inline]
    #[must_use]
    pub fn is_own(&self, id: CommitId) -> bool {
        id.set == self.id
    }

    /// Returns the last commit. `None` before the first one.
    #[must_use]
    pub fn last(&self) -> Option<CommitId> {
        let last = self.ring.last();
        (last > 0).then(|| self.id.commit(last))
    }

    /// Returns the replicas that were not set aside.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        self.ids(|member| member.writer().is_some())
    }

    /// Whether this replica can take a commit, now or later: its connection is not over. `false` is
    /// final. The result is also `false` for a replica that was set aside, and for one of another
    /// set.
    ///
    /// An event loop calls this after [`look`](Self::look), and [`able`](Self::able) as well.
    #[must_use]
    pub fn is_able(&self, id: ReplicaId) -> bool {
        self.index(id)
            .is_some_and(|index| self.members[index].is_able())
    }

    /// Makes a record of `len` bytes. Its memory holds bytes of earlier records until
    /// [`Record::put`] overwrites them.
    ///
    /// # Errors
    ///
    /// [`Error::RingFull`] if the ring has no place for the record, or has as many commits as
    /// [`new`](Self::new) allows. [`Error::InvalidArgument`] if `len` is 0 or longer than the ring.
    /// [`Error::NotSupported`] after a [`set_aside`](Self::set_aside) that failed.
    pub fn record(&mut self, len: usize) -> Result<Record<'_>> {
        if !self.has_room(len)? {
            self.look();
        }
        match self.ring.place(len) {
            Some(bytes) => Ok(Record { set: self, bytes }),
            None => Err(Error::RingFull),
        }
    }

    /// Returns whether the ring has a place for a record of `len` bytes, without a look: the half
    /// of [`wait_room`](Self::wait_room) that does not sleep, for [event loops](Self#event-loops).
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record), except [`Error::RingFull`].
    pub fn has_room(&self, len: usize) -> Result<bool> {
        self.refuse_lost()?;
        self.ring.check_len(len)?;
        Ok(self.ring.place(len).is_some())
    }

    fn refuse_lost(&self) -> Result<()> {
        if self.lost == 0 {
            return Ok(());
        }
        let lost = self.ids(|member| self.lost & member.id.mask() != 0);
        let lost: Vec<_> = lost.map(|id| id.to_string()).collect();
        Err(Error::not_supported(format!(
            "the queue pair of {} could not be destroyed, and may read the source memory: the set \
             takes no more commits; drop it",
            lost.join(", ")
        )))
    }

    /// Returns the replicas that hold the oldest bytes of the ring: their devices may still read
    /// these bytes. After [`Error::RingFull`], wait for these replicas
    /// ([`wait_room`](Self::wait_room)), or go on without them ([`make_room`](Self::make_room)).
    pub fn holders(&self) -> impl Iterator<Item = ReplicaId> {
        // An empty ring has no oldest commit.
        let oldest = self.ring.oldest().min(self.ring.last());
        self.ids(move |member| member.released() < oldest)
    }

    fn commit(&mut self, entry: CommitEntry, k: usize) -> Result<CommitId> {
        let id = self.id.commit(self.ring.last() + 1);
        if k == 0 || k > self.members.len() {
            return Err(self.wrong_copies(id, k));
        }
        let (mut able, is_right) = (0, self.is_right(&entry));
        for member in &self.members {
            if member.is_able() {
                if !(is_right && member.commits_in_regions(&entry)) {
                    let of = |error| named(id, named(member.id, error));
                    member.check(&entry, &self.ring).map_err(of)?;
                }
                able += 1;
            }
        }
        if able < k {
            return Err(self.too_few(k));
        }
        self.ring.push(entry);
        self.post();
        Ok(id)
    }

    #[cold]
    #[inline(never)]
    fn wrong_copies(&self, id: CommitId, k: usize) -> Error {
        let present = self.writers().count();
        Error::invalid(format!(
            "{id}: {k} copies were asked for, and the set has {present} replicas, without those \
             that were set aside: ask for 1 to {present}"
        ))
    }

    #[cold]
    #[inline(never)]
    fn too_few(&self, k: usize) -> Error {
        Error::TooFewReplicas {
            able: self.able(),
            k: k.try_into().unwrap_or(u32::MAX),
            // 64 at most.
            present: self.writers().count() as u32,
        }
    }

    /// Whether a commit is right for each replica that commits in its regions, as far as that is
    /// seen without its slices. The regions have the rights, because a commit of the first byte was
    /// checked when the replica was added.
    #[inline]
    fn is_right(&self, entry: &CommitEntry) -> bool {
        let (at, len, reach) = (entry.at, entry.bytes.len, self.reach);
        let is_inside = |at: u64, len: u64| at <= reach && len <= reach - at;
        let is_apart = |to: u64| to + 8 <= at || to >= at + len;
        let points = |to: u64| to % 8 == 0 && is_inside(to, 8) && is_apart(to);
        is_inside(at, len) && entry.pointer.is_none_or(|(to, _)| points(to))
    }

    /// Posts the commits that wait in the ring.
    #[inline(always)]
    fn post(&mut self) {
        for member in &mut self.members {
            member.advance(&self.ring);
        }
    }

    /// Posts the commits that wait in the ring, and frees those that all replicas have released.
    fn advance(&mut self) {
        self.post();
        let released = self.members.iter().map(Replica::released).min();
        self.ring.free_up_to(released.unwrap_or(0));
    }

    /// Looks once at all replicas, without sleeping. It takes their completions and events, posts
    /// commits that wait in the ring, and frees bytes that all replicas have released.
    ///
    /// A failure of one replica is logged, and is in its [`Conn::failure`](crate::Conn::failure).
    pub fn look(&mut self) {
        for member in &mut self.members {
            member.look();
        }
        self.advance();
    }

    /// As [`look`](Self::look), but it takes the events of a replica only if that is due: after 64
    /// polls, or 10 ms after its last look. Otherwise it makes no system call, apart from those of
    /// posts. The waits poll before they look.
    ///
    /// An event loop calls it while it has other work. Before it sleeps, it calls `look`.
    pub fn poll(&mut self) {
        self.poll_queues();
        self.look_if_due(clock::now());
    }

    /// As [`poll`](Self::poll), and takes no events. Returns whether a completion was there.
    fn poll_queues(&mut self) -> bool {
        let polled = self.members.iter_mut().map(Replica::poll);
        let taken = polled.fold(false, |taken, polled| taken | polled);
        self.advance();
        taken
    }

    fn look_if_due(&mut self, now: Instant) {
        let mut has_looked = false;
        for member in &mut self.members {
            has_looked |= member.look_if_due(now);
        }
        if has_looked {
            self.advance();
        }
    }

    /// Takes a completion that the program has polled on a replica's connection, and does the rest
    /// of [`look`](Self::look). Returns whether the completion was one of the set's.
    pub fn handle(&mut self, id: ReplicaId, wc: &Wc) -> bool {
        let Some(index) = self.index(id) else {
            return false;
        };
        let is_own = self.members[index].handle(wc);
        self.advance();
        is_own
    }

    /// Returns the outcome of a commit, as far as [`look`](Self::look), [`handle`](Self::handle)
    /// and the waits have learned it. A program may call this at any time. The outcome of a commit
    /// of another set is empty.
    #[must_use]
    pub fn outcome(&self, id: CommitId) -> Outcome {
        self.outcome_and_coming(id).0
    }

    /// The outcome of a commit, and how many more copies may come.
    #[inline(always)]
    fn outcome_and_coming(&self, id: CommitId) -> (Outcome, usize) {
        let (mut outcome, mut coming) = (Outcome::new(id), 0);
        if id.set != self.id {
            return (outcome, coming);
        }
        for member in &self.members {
            let bit = member.id.mask();
            match member.state(id.number()) {
                CommitState::Durable => outcome.durable |= bit,
                CommitState::Failed => outcome.failed |= bit,
                CommitState::Late => {
                    outcome.unknown |= bit;
                    coming += 1;
                }
                CommitState::Unknown => outcome.unknown |= bit,
                CommitState::Posted | CommitState::Queued => coming += 1,
                CommitState::NotAMember => {}
            }
        }
        (outcome, coming)
    }

    /// Returns the replicas on which the commit of an outcome is durable, or visible if the
    /// writers' flush type is [`Visibility`](crate::FlushType::Visibility).
    ///
    /// The three calls for an outcome ([`failed`](Self::failed) and [`unknown`](Self::unknown) as
    /// well) name only replicas that were in the set when the commit was made. For an outcome of
    /// another set, they name none.
    pub fn durable(&self, outcome: Outcome) -> impl Iterator<Item = ReplicaId> {
        self.of_outcome(outcome, outcome.durable)
    }

    /// Returns the replicas to which the commit of an outcome was never posted, and never will be.
    pub fn failed(&self, outcome: Outcome) -> impl Iterator<Item = ReplicaId> {
        self.of_outcome(outcome, outcome.failed)
    }

    /// Returns the replicas to which the commit of an outcome was posted, but which had not
    /// answered. The connection was over, or the limit of [`settle`](Self::settle) had passed. The
    /// commit may be in their memory, and may become durable later.
    pub fn unknown(&self, outcome: Outcome) -> impl Iterator<Item = ReplicaId> {
        self.of_outcome(outcome, outcome.unknown)
    }

    fn of_outcome(&self, outcome: Outcome, mask: u64) -> impl Iterator<Item = ReplicaId> {
        let id = outcome.commit;
        self.ids(move |member| {
            // One that took the place of an earlier one begins after the commit.
            let was_there = id.set == member.id.set && id.number() > member.joined;
            was_there && mask & member.id.mask() != 0
        })
    }

    /// Returns the replicas on which a commit is in flight or still has to be posted. If there are
    /// none, no replica can lose the commit and execute a later one. Only then overwrite bytes that
    /// this commit has set free, such as the records before the new head of a log.
    ///
    /// There are none for a commit of another set.
    pub fn pending(&self, id: CommitId) -> impl Iterator<Item = ReplicaId> {
        self.ids(move |member| {
            let state = member.state(id.number());
            let is_pending = matches!(state, CommitState::Posted | CommitState::Queued);
            id.set == member.id.set && is_pending
        })
    }
}

/// A record in the set's memory, before its commit. Dropping the record gives its place in the ring
/// back.
#[derive(Debug)]
#[must_use = "nothing is written before the commit"]
pub struct Record<'set> {
    set: &'set mut Replicas,
    bytes: RecordBytes,
}

impl Record<'_> {
    /// Writes bytes of the record, from the offset `at` on.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes are not inside the record.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.set.ring.write(self.bytes, at, bytes)
    }

    /// Commits the record on all replicas, at the offset `at` of their regions. Then it writes the
    /// 8 bytes of `pointer` at the pointer's own offset, as [`Writer::commit`]. It never sleeps.
    /// The program waits for `k` copies with [`Replicas::settle`].
    ///
    /// A replica without room gets the commit later. A post that fails is no error here: see
    /// [`Replicas::outcome`].
    ///
    /// # Errors
    ///
    /// After an error no replica gets a post. [`Error::TooFewReplicas`] if fewer than `k` replicas
    /// can take the commit. [`Error::InvalidArgument`] if `k` is 0 or larger than the number of
    /// replicas, if the record or the pointer is not inside the region of each replica, or if the
    /// pointer is not aligned to 8 bytes or lies in the record. The text names the commit and the
    /// replica.
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn commit(self, at: u64, pointer: Option<(u64, [u8; 8])>, k: usize) -> Result<CommitId> {
        let Self { set, bytes } = self;
        let place = Place::caller();
        let entry = CommitEntry {
            bytes,
            at,
            pointer,
            place,
        };
        set.commit(entry, k)
    }
}

fn is_same<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.is_some() && one == other
}

#[cold]
fn named(name: impl std::fmt::Display, error: Error) -> Error {
    match error {
        Error::InvalidArgument(_) => Error::invalid(format!("{name}: {error}")),
        Error::NotSupported(_) => Error::not_supported(format!("{name}: {error}")),
        error => error,
    }
}
