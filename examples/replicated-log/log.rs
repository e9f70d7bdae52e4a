//! The log, as its only writer has it: awaited, on any executor.
//!
//! [`Shared::work`] is the future that does everything: it keeps a connection to each replica
//! (`replica.rs`), commits what was appended in groups, and counts the copies. It runs in the way
//! of the reactor, as a task of tokio or on a thread, for as long as the [`Log`] lives. Programs
//! on tokio await the calls of the log. `blocking.rs` is the front end for programs with threads.
//!
//! The [`State`] is in a monitor. Each change of it wakes all that wait, and they look again. A task
//! that appends is woken when its record is acknowledged.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpma::commit::{CommitId, Method, Replicas as Set};
use rpma::{Error, Identity};
use rpma_async::{Monitor, Pool, Reactor, Replicas, Task};

use super::format::{Found, HEAD, Header, LINE, Ring, SPARE, TAIL, Tail, end_of, size_of};
use super::replica::SAME;
use super::{Fault, LogError, Lsn};

pub(crate) const REPLICAS: usize = 3;
/// So many replicas make a record acknowledged.
pub(crate) const COPIES: usize = 2;
/// A new writer reads so many: each acknowledged record is on one of them.
const READ: usize = REPLICAS - COPIES + 1;
/// The most bytes of a group, and of a record.
pub(crate) const GROUP: u64 = 64 << 10;
/// Commits that are not acknowledged.
const COMMITS: usize = 4;
pub(super) const FOREVER: Duration = Duration::MAX;

/// The settings of a log.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogCfg {
    /// Three of them.
    #[arg(num_args = 3)]
    pub(crate) replicas: Vec<SocketAddr>,
    #[arg(long, default_value_t = 1)]
    pub(crate) key: u64,
    /// Above that of every earlier writer.
    #[arg(long, default_value_t = 1)]
    pub(crate) epoch: u64,
    /// Raises the epoch if another writer has it.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// native, reading or server.
    #[arg(long, default_value = "reading")]
    pub(crate) method: Method,
    /// The bytes of the ring, on each replica.
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) ring: u64,
    /// Makes the log. The replicas have none.
    #[arg(long)]
    pub(crate) create: bool,
    /// Permits replicas on one host, for demonstrations: a loss of power ends all of them.
    #[arg(long)]
    pub(crate) one_host: bool,
    /// Of each call, and of each step towards a replica: in seconds.
    #[arg(long, value_parser = seconds, default_value = "30")]
    pub(crate) limit: Duration,
    /// A replica that is silent for so long is gone.
    #[arg(skip = SILENCE)]
    pub(crate) silence: Duration,
    /// Puts a fault in, to see what it breaks.
    #[arg(long = "break", value_enum, default_value = "nothing")]
    pub(crate) fault: Fault,
}

/// Older kernels take 8.6 s for a keep-alive's packets to be sent again.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

/// A log. Its calls are awaited, on any executor. Several tasks may append, and their records share
/// commits.
pub(crate) struct Log {
    shared: Arc<Shared>,
    /// It ends with the log.
    _work: Task,
}

pub(super) struct Shared {
    pub(super) cfg: LogCfg,
    pub(super) identity: Identity,
    pub(super) reactor: Reactor,
    pub(super) set: Replicas,
    pub(super) pool: Pool,
    /// Who has it may commit. A replica that comes back has it while it gets the last records.
    pub(super) gate: tokio::sync::Mutex<()>,
    pub(super) state: Monitor<State>,
}

/// Positions: `free <= kept <= shown <= head <= durable <= committed <= end`.
#[derive(Default)]
pub(super) struct State {
    /// Enough replicas were read.
    pub(super) is_open: bool,
    ended: Option<LogError>,
    /// The records from `head` up to `end`.
    pub(super) ring: Ring,
    /// Up to here the room may be used again.
    free: Lsn,
    /// The head that is on enough replicas, and the one that was posted to the set.
    kept: Lsn,
    shown: Lsn,
    pub(super) head: Lsn,
    /// Up to here records are acknowledged.
    durable: Lsn,
    /// Up to here they were posted to the set.
    pub(super) committed: Lsn,
    end: Lsn,
    /// The log's name: `Header::log`.
    pub(super) log: u64,
    /// The commits, each with `committed` and `shown` after it.
    commits: VecDeque<(CommitId, Lsn, Lsn)>,
    /// Truncations that a replica of the set may not have yet.
    truncations: VecDeque<(CommitId, Lsn)>,
    /// Enough replicas have the log under this epoch.
    is_ours: bool,
    /// A replica came back: the tail is to be committed again.
    pub(super) recount: bool,
    /// What each replica had when it was last read, and words on it: the reason for which it is
    /// away.
    found: [Option<Found>; REPLICAS],
    pub(super) away: [String; REPLICAS],
}

impl Log {
    /// Opens the log of these replicas: waits until it was read, and its records are on enough
    /// replicas under this epoch.
    pub(crate) async fn open(reactor: &Reactor, cfg: &LogCfg) -> Result<Self, LogError> {
        let shared = Arc::new(Shared::new(reactor, cfg)?);
        let work = Arc::clone(&shared);
        let _work = reactor.run(async move { work.work().await })?;
        let is_open = |state: &State| (state.is_open && state.is_ours).then_some(());
        match shared.until(cfg.limit, is_open).await {
            Err(LogError::TimedOut) => Err(LogError::TooFew(shared.state.look(State::reasons))),
            opened => opened.map(|()| Self { shared, _work }),
        }
    }

    /// Appends a record. Its position is returned when enough replicas have it.
    pub(crate) async fn append(&self, record: &[u8]) -> Result<Lsn, LogError> {
        let (log, fault) = (&self.shared, self.shared.cfg.fault);
        let most = log.cfg.ring.min(2 * GROUP) / 2;
        if size_of(record.len()) > most {
            let (len, most) = (record.len(), most as usize - 24);
            return Err(LogError::TooLong { len, most });
        }
        let stage = |state: &mut State| state.stage(record);
        let staged = log.state.change_when(log.cfg.limit, stage).await;
        let (at, end) = staged.unwrap_or(Err(LogError::Full))?;
        let is_posted = |state: &State| (state.committed >= end).then_some(());
        let there = match fault {
            Fault::Posted => log.until(log.cfg.limit, is_posted).await,
            _ => log.until_durable(end).await,
        };
        match there {
            Err(_) if fault == Fault::UnknownIsDone => Ok(at),
            there => there.map_or_else(
                |error| Err(LogError::Unknown(at, Box::new(error))),
                |()| Ok(at),
            ),
        }
    }

    /// The record at a position, or after it, and the position after that one. `None`: there is no
    /// acknowledged one.
    pub(crate) fn read(&self, from: Lsn) -> Result<Option<(Vec<u8>, Lsn)>, LogError> {
        self.shared.state.look(|state| {
            state.check_position(from)?;
            let mut entries = state.ring.entries(from, state.durable);
            Ok(entries.find_map(|(_, record, next)| Some((record?.to_vec(), next))))
        })
    }

    /// The position of the first record that is kept, and the end of the acknowledged ones.
    pub(crate) fn bounds(&self) -> (Lsn, Lsn) {
        self.shared.state.look(|state| (state.head, state.durable))
    }

    /// Forgets the records before a position. It returns when enough replicas have done so.
    pub(crate) async fn truncate(&self, to: Lsn) -> Result<(), LogError> {
        let log = &self.shared;
        log.state.change(|state| state.stage_head(to))?;
        let is_kept = |state: &State| (state.kept >= to).then_some(());
        let kept = log.until(log.cfg.limit, is_kept).await;
        kept.map_err(|error| LogError::Unknown(to, Box::new(error)))
    }

    /// Waits until all records are acknowledged, and ends the log.
    pub(crate) async fn close(&self) -> Result<(), LogError> {
        let is_done = |state: &State| (state.durable == state.end).then_some(());
        let closed = self.shared.until(self.shared.cfg.limit, is_done).await;
        self.shared.end(LogError::Closed);
        closed
    }
}

impl LogCfg {
    fn check(&self) -> Result<(), LogError> {
        let addrs: BTreeSet<_> = self.replicas.iter().collect();
        let are_three = (self.replicas.len(), addrs.len()) == (REPLICAS, REPLICAS);
        let is_ring = self.ring >= 16 * LINE && self.ring % LINE == 0;
        let is_epoch = (1..=Tail::MOST_EPOCH).contains(&self.epoch);
        let rules = [
            (are_three, "a log has three replicas, with an address each"),
            (
                is_ring,
                "the ring has at least 1024 bytes, and a multiple of 64",
            ),
            (is_epoch, "epochs are from 1 to 16777215"),
        ];
        let broken = rules.into_iter().find(|(is_kept, _)| !is_kept);
        broken.map_or(Ok(()), |(_, rule)| {
            Err(LogError::Arguments(rule.to_owned()))
        })
    }
}

impl State {
    /// Up to here tasks that append go on: all of them when the log has ended.
    fn progress(&self) -> u64 {
        match self.ended {
            Some(_) => u64::MAX,
            None => self.durable,
        }
    }

    fn check_position(&self, at: Lsn) -> Result<(), LogError> {
        let is_there = || at == self.durable || self.ring.entry(at).is_some();
        let is_kept = (self.head..=self.durable).contains(&at) && is_there();
        is_kept.then_some(()).ok_or(LogError::NoPosition(at))
    }

    /// Puts a record into the ring, behind the others. `None`: there is no room.
    fn stage(&mut self, record: &[u8]) -> Option<Result<(Lsn, Lsn), LogError>> {
        let size = size_of(record.len());
        let pad = self.ring.pad_before(self.end, size);
        let (at, end) = (self.end + pad, self.end + pad + size);
        let is_room = end <= self.free + self.ring.len() && end < Tail::MOST_END;
        match &self.ended {
            Some(why) => return Some(Err(why.clone())),
            None if !self.is_open || !is_room => return None,
            None => {}
        }
        if pad > 0 {
            self.ring.encode(self.end, None);
        }
        self.ring.encode(at, Some(record));
        self.end = end;
        Some(Ok((at, end)))
    }

    fn stage_head(&mut self, to: Lsn) -> Result<(), LogError> {
        self.check_position(to)?;
        self.ended.clone().map_or(Ok(()), Err)?;
        self.head = to;
        Ok(())
    }

    /// The end of the next group: of whole entries that are in one piece.
    fn group_end(&self) -> Lsn {
        let (from, len) = (self.committed, self.ring.len());
        let fits = |next: Lsn| next - from <= GROUP && (next - 1) / len == from / len;
        let entries = self.ring.entries(from, self.end);
        end_of(from, entries.take_while(|(_, _, next)| fits(*next)))
    }

    /// A replica was read. When there are enough of them, the newest log becomes this one.
    pub(super) fn saw(&mut self, n: usize, found: Found, cfg: &LogCfg) -> Result<(), LogError> {
        self.found[n] = None;
        let header = found.header;
        let mut others = self.found.iter().flatten().filter_map(|other| other.header);
        let is_other = |of: Header| of.key != cfg.key || self.is_open && of.log != self.log;
        match header {
            _ if found.tail.epoch > cfg.epoch => {
                let epoch = found.tail.epoch;
                return Err(LogError::Fenced { epoch });
            }
            Some(of) if others.clone().any(|other| other.replica == of.replica) => {
                return Err(LogError::Arguments(SAME.to_owned()));
            }
            Some(of) if is_other(of) || others.any(|other| other.log != of.log) => {
                return Err(LogError::Foreign("it has another log".to_owned()));
            }
            _ => self.found[n] = Some(found),
        }
        self.away[n] = header.map_or("has no log", |_| "was read").to_owned();
        if self.is_open {
            Ok(())
        } else {
            self.adopt(cfg)
        }
    }

    fn adopt(&mut self, cfg: &LogCfg) -> Result<(), LogError> {
        let found = self.found.iter().flatten();
        let (logs, blank): (Vec<_>, Vec<_>) = found.partition(|found| found.header.is_some());
        // Only a replica that has the log can be asked for its records.
        let all = logs.len() + blank.len();
        let read = cfg.fault.either(Fault::BlankCounts, all, logs.len());
        let read = cfg.fault.either(Fault::ReadsOne, READ, read);
        match (cfg.create, Found::newest(&logs, cfg.fault)) {
            (true, Some(_)) => return Err(LogError::Exists),
            (true, None) if blank.len() >= READ => {}
            (false, None) if blank.len() >= READ => return Err(LogError::Nothing),
            (false, Some(newest)) if read >= READ => {
                let heads = logs.iter().map(|found| found.head);
                let head = heads.filter(|head| *head <= newest.tail.end).max();
                self.log = newest.header.map_or(0, |of| of.log);
                self.ring = newest.ring.clone();
                self.head = head.unwrap_or(newest.head);
                (self.committed, self.end) = (newest.tail.end, newest.tail.end);
            }
            _ => return Ok(()),
        }
        (self.free, self.kept, self.shown) = (self.head, self.head, self.head);
        let early = (true, self.committed);
        (self.is_ours, self.durable) =
            cfg.fault
                .either(Fault::TellsEarly, early, (false, self.head));
        (self.recount, self.is_open) = (true, true);
        Ok(())
    }

    fn acknowledge(&mut self, end: Lsn, head: Lsn) {
        (self.durable, self.kept) = (self.durable.max(end), self.kept.max(head));
        self.is_ours = true;
    }

    fn reasons(&self) -> String {
        let replicas = self.away.iter().enumerate();
        let reasons = replicas.map(|(n, why)| format!("replica {n}: {why}"));
        Vec::from_iter(reasons).join("; ")
    }
}

impl Shared {
    fn new(reactor: &Reactor, cfg: &LogCfg) -> Result<Self, LogError> {
        cfg.check()?;
        let mut identity = Identity::new(cfg.key, cfg.epoch)?;
        identity.instance = cfg.fault.either(Fault::SameInstance, 1, identity.instance);
        let set = Set::new(reactor.peer(), 2 * GROUP as usize * COMMITS, 2 * COMMITS)?;
        let (ring, log) = (Ring::new(cfg.ring), identity.instance);
        let state = State {
            ring,
            log,
            ..State::default()
        };
        let set = Replicas::new(reactor, set)?;
        if cfg.one_host {
            set.permit_one_host();
        }
        Ok(Self {
            cfg: cfg.clone(),
            identity,
            reactor: reactor.clone(),
            set,
            pool: Pool::new(reactor.peer(), GROUP as usize, REPLICAS)?,
            gate: tokio::sync::Mutex::new(()),
            state: Monitor::with_progress(reactor, state, State::progress),
        })
    }

    /// Does the log's work, until it ends.
    async fn work(&self) {
        let replicas = async { tokio::join!(self.keep(0), self.keep(1), self.keep(2)) };
        let commits = async { tokio::join!(self.commit(), self.count(), self.reclaim()) };
        let all = async { tokio::join!(replicas, commits) };
        let ended = self.until(FOREVER, |_| None::<()>);
        tokio::select! { biased; _ = all => {}, _ = ended => {} }
    }

    /// Waits until a look at the state finds something, for at most `limit`, or until the log ends.
    pub(super) async fn until<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, LogError> {
        let look = |state: &State| look(state).map(Ok).or_else(|| state.ended.clone().map(Err));
        let found = self.state.until(limit, look).await;
        found.unwrap_or(Err(LogError::TimedOut))
    }

    /// Waits until all records up to `end` are acknowledged, or until the log ends.
    async fn until_durable(&self, end: Lsn) -> Result<(), LogError> {
        let look = |state: &State| match state.durable >= end {
            true => Some(Ok(())),
            false => state.ended.clone().map(Err),
        };
        let found = self.state.until_reached(end, self.cfg.limit, look).await;
        found.unwrap_or(Err(LogError::TimedOut))
    }

    /// Ends the log at once.
    pub(super) fn end(&self, why: LogError) {
        self.state
            .change(|state| state.ended.get_or_insert(why).clone());
    }

    /// Commits what is new, one commit after the other.
    async fn commit(&self) {
        let is_due = |state: &State| {
            let is_new = state.committed < state.end || state.shown < state.head;
            let is_due = (state.recount || is_new) && self.set.able() >= COPIES;
            (is_due && state.commits.len() < COMMITS).then_some(())
        };
        while self.until(FOREVER, is_due).await.is_ok() {
            let gate = self.gate.lock().await;
            let committed = self.state.change(|state| self.commit_next(state));
            drop(gate);
            let done = match committed {
                // A replica is slow, and holds the memory of its commits: the others go on.
                Err(Error::RingFull) => {
                    let len = GROUP as usize;
                    self.set.make_room(len, COPIES, self.cfg.limit).await
                }
                done => done,
            };
            match done {
                // After an error a replica has to come back.
                Ok(()) | Err(Error::RingFull | Error::TooFewReplicas { .. }) => {}
                Err(error) => return self.end(error.into()),
            }
        }
    }

    /// Commits the next head, or the next group with its tail, or the tail alone.
    fn commit_next(&self, state: &mut State) -> rpma::Result<()> {
        let (fault, from, is_head) = (self.cfg.fault, state.committed, state.shown < state.head);
        let end = if is_head { from } else { state.group_end() };
        let found = state.found.iter().flatten().map(|found| found.tail.epoch);
        let tail = Tail {
            epoch: fault.either(Fault::KeepsEpoch, found.max().unwrap_or(0), self.cfg.epoch),
            end: fault.either(Fault::TailAhead, state.end, end),
        };
        let tail = (TAIL, tail.word());
        let (at, piece, (word_at, word)) = match (is_head, state.ring.piece(from, end)) {
            (true, _) => (SPARE, &[0][..], (HEAD, state.head)),
            (_, []) => (SPARE, &[0][..], tail),
            (_, group) => (state.ring.offset(from), group, tail),
        };
        let word = Some((word_at, word.to_le_bytes()));
        let id = self.set.commit(at, &[piece], word, COPIES)?;
        if is_head {
            state.shown = state.head;
            state.truncations.push_back((id, state.head));
        } else {
            (state.committed, state.recount) = (end, false);
        }
        state.commits.push_back((id, state.committed, state.shown));
        Ok(())
    }

    /// Counts the copies of each commit. All earlier ones are on the replicas that have it.
    async fn count(&self) {
        let copies = self.cfg.fault.either(Fault::OneCopy, 1, COPIES);
        let first = |state: &State| state.commits.front().copied();
        while let Ok((id, end, head)) = self.until(FOREVER, first).await {
            let settled = self.set.settle(id, copies, FOREVER).await;
            self.state.change(|state| {
                state.commits.pop_front();
                match settled {
                    // Otherwise a later one counts it as well.
                    Ok(of) if of.copies() >= copies => state.acknowledge(end, head),
                    Ok(_) => {}
                    Err(error) => state.ended = Some(error.into()),
                }
            });
        }
    }

    /// Frees the room of truncated records when no replica of the set can lose the truncation.
    async fn reclaim(&self) {
        let first = |state: &State| state.truncations.front().copied();
        while let Ok((id, to)) = self.until(FOREVER, first).await {
            if self.cfg.fault != Fault::RoomEarly && self.set.everywhere(id).await.is_err() {
                return;
            }
            self.state.change(|state| {
                state.truncations.pop_front();
                state.free = to;
            });
        }
    }
}
