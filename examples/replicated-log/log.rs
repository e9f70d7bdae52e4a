//! The log, as its only writer has it: awaited, on any executor.
//!
//! [`Log`] is a handle, and [`work`](Log::work) is the future that does everything: it keeps a
//! connection to each replica (`replica.rs`), commits what was appended in groups, and counts the
//! copies. A front end runs it, and awaits the calls of the handle: `blocking.rs` with threads,
//! `task.rs` on tokio.
//!
//! The [`State`] is behind one lock, which nobody holds while waiting. Each change of it wakes all
//! who wait, and they look again.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpma::commit::{CommitId, Method, Refused, ReplicaId, Replicas as Set};
use rpma::sync::{Mutex, MutexGuard, PoisonError};
use rpma::{ConnCfg, Error, Identity};
use rpma_async::{Pool, Reactor, Replicas};
use tokio::sync::Notify;

use super::format::{Found, LINE, Ring, SPARE, TAIL, Tail, size_of};
use super::replica::SAME;
use super::{Fault, LogError, Lsn, format};

pub(crate) const REPLICAS: usize = 3;
/// So many replicas make a record acknowledged.
pub(crate) const COPIES: usize = 2;
/// A new writer reads so many: each acknowledged record is on one of them.
const READ: usize = REPLICAS - COPIES + 1;
/// The most bytes of a group, and of a record.
pub(crate) const GROUP: u64 = 64 << 10;
/// Groups that are not acknowledged.
const GROUPS: usize = 4;
const FOREVER: Duration = Duration::MAX;

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
    /// native, reading or server.
    #[arg(long, default_value = "reading")]
    pub(crate) method: Method,
    /// The bytes of the ring, on each replica.
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) ring: u64,
    /// Makes the log. The replicas have none.
    #[arg(long)]
    pub(crate) create: bool,
    /// Of each call, and of each step towards a replica.
    #[arg(skip = Duration::from_secs(30))]
    pub(crate) limit: Duration,
    /// A replica that is silent for so long is gone.
    #[arg(skip = SILENCE)]
    pub(crate) silence: Duration,
    /// Puts a fault in, to see what it breaks.
    #[arg(long = "break", value_name = "FAULT", value_parser = Fault::named, default_value = "nothing")]
    pub(crate) fault: Fault,
}

/// Older kernels take 8.6 s for a keep-alive's packets to be sent again.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// A handle of the log.
#[derive(Clone)]
pub(crate) struct Log(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) cfg: LogCfg,
    pub(super) identity: Identity,
    pub(super) conn_cfg: ConnCfg,
    pub(super) reactor: Reactor,
    pub(super) set: Replicas,
    pub(super) pool: Pool,
    /// Who has it may commit. A replica that comes back has it while it gets the last records.
    pub(super) gate: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    changes: Notify,
}

/// Positions: `free <= head <= durable <= committed <= end`.
#[derive(Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// The records from `head` up to `end`.
    pub(super) ring: Ring,
    /// Up to here the room may be used again.
    free: Lsn,
    pub(super) head: Lsn,
    /// Up to here records are acknowledged.
    durable: Lsn,
    /// Up to here they were posted to the set.
    pub(super) committed: Lsn,
    end: Lsn,
    /// The log's name: `Header::log`.
    pub(super) log: u64,
    groups: VecDeque<(CommitId, Lsn)>,
    /// Truncations that a member may not have yet.
    truncations: VecDeque<(CommitId, Lsn)>,
    pub(super) members: Vec<ReplicaId>,
    /// Enough replicas have the log under this epoch.
    is_ours: bool,
    /// A replica came back: the tail is to be committed again.
    pub(super) recount: bool,
    /// What each replica had when it was last read, and the reason for which it is away.
    found: [Option<Found>; REPLICAS],
    pub(super) away: [String; REPLICAS],
}

#[derive(Default)]
pub(super) enum Phase {
    /// Too few replicas were read.
    #[default]
    Opening,
    Open,
    Ended(LogError),
}

impl Log {
    /// Makes the log of these replicas. [`work`](Self::work) connects to them.
    pub(crate) fn new(reactor: &Reactor, cfg: &LogCfg) -> Result<Self, LogError> {
        cfg.check()?;
        let mut identity = Identity::new(cfg.key, cfg.epoch)?;
        if cfg.fault == Fault::SameInstance {
            identity.instance = 1;
        }
        let mut conn_cfg = ConnCfg::new();
        conn_cfg.set_keep_alive(Some(cfg.silence))?;
        let set = Set::new(reactor.peer(), 2 * GROUP as usize * GROUPS, 2 * GROUPS)?;
        let state = State {
            ring: Ring::new(cfg.ring),
            log: identity.instance,
            ..State::default()
        };
        Ok(Self(Arc::new(Shared {
            identity,
            conn_cfg,
            set: Replicas::new(reactor, set)?,
            pool: Pool::new(reactor.peer(), GROUP as usize, REPLICAS)?,
            gate: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            changes: Notify::new(),
            reactor: reactor.clone(),
            cfg: cfg.clone(),
        })))
    }

    /// Does the log's work, until it ends.
    pub(crate) async fn work(self) {
        let log = &*self.0;
        let replicas = async { tokio::join!(log.keep(0), log.keep(1), log.keep(2)) };
        let commits = async { tokio::join!(log.commit(), log.count(), log.reclaim()) };
        let all = async { tokio::join!(replicas, commits) };
        tokio::select! { biased; _ = all => {}, _ = log.ended() => {} }
    }

    /// Waits until the log was read, and its records are on enough replicas under this epoch.
    pub(crate) async fn opened(&self) -> Result<(), LogError> {
        let log = &self.0;
        let is_open = |state: &mut State| match state.phase {
            Phase::Open if state.is_ours => Some(()),
            _ => None,
        };
        match log.until(log.cfg.limit, is_open).await {
            Err(LogError::TimedOut) => Err(LogError::TooFew(log.with(|state| state.reasons()))),
            opened => opened,
        }
    }

    /// Appends a record. Its position is returned when enough replicas have it.
    pub(crate) async fn append(&self, record: &[u8]) -> Result<Lsn, LogError> {
        let log = &self.0;
        let most = log.cfg.ring.min(2 * GROUP) / 2;
        if size_of(record.len()) > most {
            let (len, most) = (record.len(), most as usize - 24);
            return Err(LogError::TooLong { len, most });
        }
        let staged = log.until(log.cfg.limit, |state| state.stage(record)).await;
        let (at, end) = match staged {
            Err(LogError::TimedOut) => return Err(LogError::Full),
            staged => staged?,
        };
        log.changed();
        let fault = log.cfg.fault;
        let is_there = |state: &mut State| match fault {
            Fault::Posted => state.committed >= end,
            _ => state.durable >= end,
        };
        let waited = log.until(log.cfg.limit, |state| is_there(state).then_some(()));
        match waited.await {
            Ok(()) => Ok(at),
            Err(_) if fault == Fault::UnknownIsDone => Ok(at),
            Err(error) => Err(LogError::Unknown(at, Box::new(error))),
        }
    }

    /// The record at a position, or after it, and the position behind it. `None`: there is no
    /// acknowledged one.
    pub(crate) fn read(&self, from: Lsn) -> Result<Option<(Vec<u8>, Lsn)>, LogError> {
        self.0.with(|state| {
            state.check_position(from)?;
            let mut at = from;
            while at < state.durable {
                match state.ring.entry(at) {
                    Some((Some(record), next)) => return Ok(Some((record.to_vec(), next))),
                    Some((None, next)) => at = next,
                    None => return Err(LogError::NoPosition(from)),
                }
            }
            Ok(None)
        })
    }

    /// The position of the first record that is kept, and the end of the acknowledged ones.
    pub(crate) fn bounds(&self) -> (Lsn, Lsn) {
        self.0.with(|state| (state.head, state.durable))
    }

    /// Forgets the records before a position. It returns when enough replicas have done so.
    pub(crate) async fn truncate(&self, to: Lsn) -> Result<(), LogError> {
        let log = &self.0;
        let head = Some((format::HEAD, to.to_le_bytes()));
        let id = loop {
            // A replica may be joining.
            let gate = log.reactor.timeout(log.cfg.limit, log.gate.lock()).await;
            let gate = gate.ok_or(LogError::TimedOut)?;
            let posted = log.with(|state| {
                state.check_position(to)?;
                let id = match log.set.commit(SPARE, &[&[0]], head, COPIES) {
                    Err(Refused::RingFull { .. }) => return Ok(None),
                    posted => posted?,
                };
                state.head = to;
                state.truncations.push_back((id, to));
                Ok::<_, LogError>(Some(id))
            })?;
            drop(gate);
            match posted {
                Some(id) => break id,
                None => log.make_room().await,
            }
        };
        log.changed();
        match log.set.settle(id, COPIES, log.cfg.limit).await?.copies() {
            COPIES.. => Ok(()),
            _ => Err(LogError::Unknown(to, Box::new(LogError::TimedOut))),
        }
    }

    /// Waits until all records are acknowledged, and ends the log.
    pub(crate) async fn close(&self) -> Result<(), LogError> {
        let limit = self.0.cfg.limit;
        let is_done = |state: &mut State| (state.durable == state.end).then_some(());
        let closed = self.0.until(limit, is_done).await;
        self.end(LogError::Closed);
        closed
    }

    /// Ends the log at once.
    pub(crate) fn end(&self, why: LogError) {
        self.0.end(why);
    }
}

impl LogCfg {
    fn check(&self) -> Result<(), LogError> {
        let no = |why: &str| Err(LogError::Arguments(why.to_owned()));
        let addrs: BTreeSet<_> = self.replicas.iter().collect();
        if (self.replicas.len(), addrs.len()) != (REPLICAS, REPLICAS) {
            return no("a log has three replicas, with an address each");
        }
        if self.ring < 16 * LINE || self.ring % LINE != 0 {
            return no("the ring has at least 1024 bytes, and a multiple of 64");
        }
        if self.epoch == 0 || self.epoch > Tail::MOST_EPOCH {
            return no("epochs are from 1 to 16777215");
        }
        Ok(())
    }
}

impl State {
    fn check_position(&self, at: Lsn) -> Result<(), LogError> {
        let is_there = || at == self.durable || self.ring.entry(at).is_some();
        match (self.head..=self.durable).contains(&at) && is_there() {
            true => Ok(()),
            false => Err(LogError::NoPosition(at)),
        }
    }

    /// Puts a record into the ring, behind the others. `None`: there is no room.
    fn stage(&mut self, record: &[u8]) -> Option<(Lsn, Lsn)> {
        let size = size_of(record.len());
        let pad = self.ring.pad_before(self.end, size);
        let (at, end) = (self.end + pad, self.end + pad + size);
        let is_open = matches!(self.phase, Phase::Open);
        if !is_open || end > self.free + self.ring.len() || end >= Tail::MOST_END {
            return None;
        }
        if pad > 0 {
            self.ring.encode(self.end, None);
        }
        self.ring.encode(at, Some(record));
        self.end = end;
        Some((at, end))
    }

    /// The end of the next group: of whole entries that are in one piece.
    fn group_end(&self) -> Lsn {
        let (mut at, len) = (self.committed, self.ring.len());
        while let Some((_, next)) = (at < self.end).then(|| self.ring.entry(at)).flatten() {
            let is_one_piece = (next - 1) / len == self.committed / len;
            if next - self.committed > GROUP || !is_one_piece {
                break;
            }
            at = next;
        }
        at
    }

    /// A replica was read. When there are enough of them, the newest log becomes this one.
    pub(super) fn saw(&mut self, n: usize, found: Found, cfg: &LogCfg) -> Result<(), LogError> {
        self.found[n] = None;
        let mut others = self.found.iter().flatten().filter_map(|other| other.header);
        if found.tail.epoch > cfg.epoch {
            let epoch = found.tail.epoch;
            return Err(LogError::Fenced { epoch });
        }
        if let Some(header) = found.header {
            if others.clone().any(|other| other.replica == header.replica) {
                return Err(LogError::Arguments(SAME.to_owned()));
            }
            let is_open = matches!(self.phase, Phase::Open);
            let is_other = others.any(|other| other.log != header.log);
            if header.key != cfg.key || is_other || is_open && header.log != self.log {
                return Err(LogError::Foreign("it has another log".into()));
            }
        }
        self.found[n] = Some(found);
        match self.phase {
            Phase::Opening => self.adopt(cfg),
            _ => Ok(()),
        }
    }

    fn adopt(&mut self, cfg: &LogCfg) -> Result<(), LogError> {
        let found = self.found.iter().flatten();
        let (logs, blank): (Vec<_>, Vec<_>) = found.partition(|found| found.header.is_some());
        // Only a replica that has the log can be asked for its records.
        let read = match cfg.fault {
            Fault::ReadsOne => READ,
            Fault::BlankCounts => logs.len() + blank.len(),
            _ => logs.len(),
        };
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
        self.is_ours = cfg.fault == Fault::TellsEarly;
        self.durable = if self.is_ours {
            self.committed
        } else {
            self.head
        };
        (self.free, self.recount, self.phase) = (self.head, true, Phase::Open);
        Ok(())
    }

    fn reasons(&self) -> String {
        let replicas = self.found.iter().zip(&self.away).enumerate();
        let reasons = replicas.map(|(n, (found, away))| match found {
            Some(found) if found.header.is_none() => format!("replica {n} has no log"),
            Some(_) => format!("replica {n} was read"),
            None => format!("replica {n}: {away}"),
        });
        reasons.collect::<Vec<_>>().join("; ")
    }
}

impl Shared {
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut locked(&self.state))
    }

    pub(super) fn changed(&self) {
        self.changes.notify_waiters();
    }

    /// Changes the state, and wakes all who wait.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = self.with(change);
        self.changed();
        result
    }

    /// Waits until a look at the state finds something, for at most `limit`.
    pub(super) async fn until<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, LogError> {
        let looks = async {
            loop {
                // Before the look: a change after it wakes this one.
                let changed = self.changes.notified();
                let found = self.with(|state| match (look(state), &state.phase) {
                    (Some(found), _) => Some(Ok(found)),
                    (None, Phase::Ended(why)) => Some(Err(why.clone())),
                    (None, _) => None,
                });
                match found {
                    Some(found) => return found,
                    None => changed.await,
                }
            }
        };
        let found = self.reactor.timeout(limit, looks).await;
        found.unwrap_or(Err(LogError::TimedOut))
    }

    pub(super) fn end(&self, why: LogError) {
        self.change(|state| match state.phase {
            Phase::Ended(_) => {}
            _ => state.phase = Phase::Ended(why),
        });
    }

    async fn ended(&self) {
        let never = |_: &mut State| None::<()>;
        let _ = self.until(FOREVER, never).await;
    }

    /// Commits what was appended, group by group.
    async fn commit(&self) {
        loop {
            let is_due = |state: &mut State| {
                let members = state.members.len();
                let is_more = members > 0 && state.recount
                    || members >= COPIES && state.committed < state.end;
                (is_more && state.groups.len() < GROUPS).then_some(())
            };
            if self.until(FOREVER, is_due).await.is_err() {
                return;
            }
            let gate = self.gate.lock().await;
            let committed = self.with(|state| self.commit_group(state));
            drop(gate);
            match committed {
                Ok(()) => self.changed(),
                Err(Refused::RingFull { .. }) => self.make_room().await,
                // A replica has to come back.
                Err(Refused::TooFew { .. }) => {
                    let able = |_: &mut State| (self.set.able() >= COPIES).then_some(());
                    match self.until(self.cfg.limit, able).await {
                        Ok(()) | Err(LogError::TimedOut) => {}
                        Err(_) => return,
                    }
                }
                Err(Refused::Error(error)) => return self.end(error.into()),
            }
        }
    }

    fn commit_group(&self, state: &mut State) -> Result<(), Refused> {
        let from = state.committed;
        let end = match state.members.len() {
            COPIES.. => state.group_end(),
            // It only repeats the tail, for a replica that came back.
            _ => from,
        };
        let shown = match self.cfg.fault {
            Fault::TailAhead => state.end,
            _ => end,
        };
        let found = state.found.iter().flatten().map(|found| found.tail.epoch);
        let epoch = match self.cfg.fault {
            Fault::KeepsEpoch => found.max().unwrap_or(0),
            _ => self.cfg.epoch,
        };
        let tail = Tail { epoch, end: shown };
        let tail = Some((TAIL, tail.word().to_le_bytes()));
        let id = match from < end {
            true => {
                let (at, group) = (state.ring.offset(from), state.ring.piece(from, end));
                self.set.commit(at, &[group], tail, COPIES)?
            }
            false => self.set.commit(SPARE, &[&[0]], tail, 1)?,
        };
        state.recount = false;
        state.committed = end;
        state.groups.push_back((id, end));
        Ok(())
    }

    /// A replica is slow and holds the memory of its commits. After the limit the others go on.
    async fn make_room(&self) {
        let room = self.set.room(GROUP as usize, self.cfg.limit).await;
        if let Err(Refused::RingFull { held_by }) = room {
            for id in self.set.ids(held_by) {
                let _ = self.set.set_aside(id, self.cfg.limit).await;
            }
        }
    }

    /// Counts the copies of each group. All earlier records are on the replicas that have it.
    async fn count(&self) {
        let copies = match self.cfg.fault {
            Fault::OneCopy => 1,
            _ => COPIES,
        };
        let first = |state: &mut State| state.groups.front().copied();
        while let Ok((id, end)) = self.until(FOREVER, first).await {
            let settled = self.set.settle(id, copies, FOREVER).await;
            self.change(|state| {
                state.groups.pop_front();
                match settled {
                    Ok(outcome) if outcome.copies() >= copies => {
                        (state.durable, state.is_ours) = (state.durable.max(end), true);
                    }
                    // A later group counts this one as well.
                    Ok(_) => {}
                    Err(error) => state.phase = Phase::Ended(error.into()),
                }
            });
        }
    }

    /// Frees the room of truncated records when no member can lose the truncation.
    async fn reclaim(&self) {
        let first = |state: &mut State| state.truncations.front().copied();
        while let Ok((id, to)) = self.until(FOREVER, first).await {
            if self.cfg.fault != Fault::RoomEarly && self.set.everywhere(id).await.is_err() {
                return;
            }
            self.change(|state| {
                state.truncations.pop_front();
                state.free = to;
            });
        }
    }
}

pub(super) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Refused> for LogError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Error(error) => error.into(),
            refused => Self::TooFew(refused.to_string()),
        }
    }
}

impl From<Error> for LogError {
    fn from(error: Error) -> Self {
        Self::Rpma(error.to_string())
    }
}
