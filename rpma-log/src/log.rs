//! [`Log`]: the log, as its only writer has it.
//!
//! A task whose record waits for no other one posts it at once, and *leads* its commit: it waits
//! for the copies, and acknowledges. All other commits are posted and settled by the work of the
//! log (`work.rs`). The page "Building a log" has the reasons.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpma::Identity;
use rpma::commit::{CommitId, Replicas as Set};
use rpma_async::{Monitor, Pool, Reactor, Replicas, Task};

use crate::cfg::LogCfg;
use crate::clock::now;
use crate::commits::Posted;
use crate::fault::Fault;
use crate::ring::place;
use crate::state::{Counters, Staged, State, check_records};
use crate::tasks::Bell;
use crate::{COMMITS, GROUP, LogError};

pub(crate) const FOREVER: Duration = Duration::MAX;

/// A log on several servers, for its only writer. Clones are handles of the same log: any task and
/// any thread may append, and records of tasks that append at the same time share commits.
///
/// The log ends with [`close`](Self::close), with its last handle, or when another writer takes it
/// over ([`LogError::Fenced`]). Records that are in flight then may become durable or not.
#[derive(Clone)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
    /// It ends with the last handle.
    _work: Arc<[Task; 2]>,
}

pub(crate) struct Shared {
    pub(crate) cfg: LogCfg,
    pub(crate) identity: Identity,
    pub(crate) reactor: Reactor,
    pub(crate) set: Replicas,
    pub(crate) pool: Pool,
    pub(crate) state: Monitor<State>,
    /// There is work that no appender does.
    pub(crate) bell: Bell,
    /// A truncation was posted.
    pub(crate) truncated: Bell,
    /// There are other servers, or a change of the list of servers goes on.
    pub(crate) servers: Bell,
}

/// A record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its position.
    pub at: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The position after it: of the next record, or before it.
    pub next: u64,
}

/// The state of a log: [`Log::state`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogState {
    /// The position of the first record that is kept.
    pub head: u64,
    /// The end of the acknowledged records.
    pub durable: u64,
    /// The end of all records.
    pub end: u64,
    /// Each server, in the order of the settings. A server that was replaced is not there any more:
    /// the new one has its place.
    pub servers: Vec<ServerState>,
}

/// The state of a server of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// Its address.
    pub addr: SocketAddr,
    /// It has all records up to this position durably. `None`: it is away, or gets the records that
    /// it has missed.
    pub durable: Option<u64>,
    /// Why it is away, or the step at which it is.
    pub away: Option<String>,
}

impl Log {
    /// Opens a log. It connects to the servers, which cut off the writer before, and reads the log
    /// of N - K + 1 of them. Each record that it finds is durable on K servers under the new epoch
    /// when the call returns. The other servers get the records that they have missed, also later.
    ///
    /// The log's work runs as [`Reactor::run`] does: as tasks of tokio, or on threads. The reactor's
    /// `Peer` is one of the device that leads to the servers ([`rpma::Peer::toward_any`]).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the connections. The epoch counts as used, as after an error.
    ///
    /// # Errors
    ///
    /// [`LogError::Settings`]. [`LogError::TooFew`] after the limit, with the reason of each server.
    /// [`LogError::Nothing`] and [`LogError::Exists`]: [`LogCfg::set_create`].
    /// [`LogError::OtherServers`] if a server was [replaced](Self::replace).
    /// [`LogError::Fenced`] if another writer, or an earlier call, has this epoch or a higher one.
    /// [`LogError::Rpma`] as [`Reactor::run`].
    pub async fn open(reactor: &Reactor, cfg: &LogCfg) -> Result<Self, LogError> {
        let shared = Arc::new(Shared::new(reactor, cfg)?);
        let (servers, commits) = (Arc::clone(&shared), Arc::clone(&shared));
        let work = [
            reactor.run(async move { servers.keep_servers().await })?,
            reactor.run(async move { commits.commit().await })?,
        ];
        let log = Self {
            shared,
            _work: Arc::new(work),
        };
        let shared = &log.shared;
        let is_open = |state: &State| (state.is_open && state.is_ours).then_some(());
        match shared.until(cfg.limit, is_open).await {
            Err(LogError::TimedOut) => Err(shared.state.look(|state| state.too_few(cfg))),
            opened => opened.map(|()| log),
        }
    }

    /// Appends a record, and returns its position when it and all records before it are durable on K
    /// servers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait. The record may still become durable, and is then
    /// among the records of the log. A future that is kept and not polled holds up no other
    /// append.
    ///
    /// # Errors
    ///
    /// [`LogError::Empty`], [`LogError::TooLong`] and [`LogError::Full`]: nothing was written.
    /// [`LogError::Closed`] and [`LogError::Fenced`] before the record has a place, or as the reason
    /// of [`LogError::Unknown`]. The limits are those of [`LogCfg::set_limit`]: for room, and then
    /// for the copies.
    pub async fn append(&self, record: &[u8]) -> Result<u64, LogError> {
        let staged = self.shared.stage(&[record]).await?;
        let at = staged.at;
        self.shared.finish(staged).await.map(|()| at)
    }

    /// Appends several records, one after the other, and returns their positions. They share
    /// commits, and each of them may be durable without the later ones.
    ///
    /// # Cancel safety
    ///
    /// As [`append`](Self::append).
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append), with the position of the first record.
    /// [`LogError::TooMany`] if they have more bytes together than half of the ring.
    /// [`LogError::Empty`] also for no record.
    pub async fn append_many<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Vec<u64>, LogError> {
        let records: Vec<&[u8]> = records.iter().map(AsRef::as_ref).collect();
        let staged = self.shared.stage(&records).await?;
        let mut end = staged.at;
        let positions = records.iter().map(|record| {
            let (at, next) = place(self.shared.cfg.ring, end, record.len());
            end = next;
            at
        });
        let positions = positions.collect();
        self.shared.finish(staged).await.map(|()| positions)
    }

    /// The record at a position, from the memory of the writer: an acknowledged one. `None` at the
    /// end of them.
    ///
    /// # Errors
    ///
    /// [`LogError::NoPosition`].
    pub fn read(&self, from: u64) -> Result<Option<Record>, LogError> {
        let loses_empty = self.shared.cfg.fault() == Fault::LosesEmpty;
        self.shared.state.look(|state| {
            state.check_position(from)?;
            let mut entries = state.ring.entries(from, state.durable);
            Ok(entries.find_map(|entry| {
                let is_kept = |record: &&[u8]| !loses_empty || !record.is_empty();
                Some(Record {
                    at: entry.at,
                    bytes: entry.record.filter(is_kept)?.to_vec(),
                    next: entry.next,
                })
            }))
        })
    }

    /// The position of the first record that is kept, and the end of the acknowledged ones.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        self.shared.state.look(|state| (state.head, state.durable))
    }

    /// Forgets the records before a position. It returns when K servers have done so. Their room is
    /// used again when no server can lose the truncation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait, and not the truncation.
    ///
    /// # Errors
    ///
    /// [`LogError::NoPosition`]. [`LogError::Unknown`] after the limit.
    pub async fn truncate(&self, to: u64) -> Result<(), LogError> {
        let log = &self.shared;
        if log.cfg.fault() == Fault::ForgetsAtOnce && self.bounds().0 >= to {
            return Ok(());
        }
        log.state.change(|state| state.stage_head(to))?;
        log.bell.ring();
        let is_kept = |state: &State| (state.kept >= to).then_some(());
        let kept = log.until(log.cfg.limit, is_kept).await;
        kept.map_err(|why| unknown(to, why))
    }

    /// Waits until all records are acknowledged, and ends the log for all handles.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the log open.
    ///
    /// # Errors
    ///
    /// [`LogError::TimedOut`] after the limit: the log has ended, and the outcome of records without
    /// an acknowledgement is unknown. The reason for which the log has ended before.
    pub async fn close(&self) -> Result<(), LogError> {
        let end = self.shared.state.change(|state| {
            state.commits.unlead_all();
            state.end
        });
        self.shared.bell.ring();
        let closed = self.shared.until_durable(end, self.shared.cfg.limit).await;
        self.shared.end(LogError::Closed);
        closed
    }

    /// The bytes of entries ([`entry_len`](crate::format::entry_len)) for which the ring has room
    /// besides the records from the head on. An append may still have to wait until no server can
    /// lose the last truncation. A record that does not fit before the end of the ring takes more.
    #[must_use]
    pub fn room(&self) -> u64 {
        let kept = |state: &State| state.end - state.head;
        self.shared.cfg.ring - self.shared.state.look(kept)
    }

    /// The positions of the log, and how far each server is.
    #[must_use]
    pub fn state(&self) -> LogState {
        let Shared { state, set, .. } = &*self.shared;
        state.look(|state| {
            let server = |n: &usize| {
                let of = &state.servers[*n];
                let Some(id) = of.member else {
                    return ServerState {
                        addr: of.addr,
                        durable: None,
                        away: Some(of.away.clone()),
                    };
                };
                let has = |of: &&Posted| set.durable(set.outcome(of.id)).contains(&id);
                let last = state.commits.last().find(has);
                ServerState {
                    addr: of.addr,
                    durable: Some(last.map_or(state.head, |of| of.end)),
                    away: None,
                }
            };
            LogState {
                head: state.head,
                durable: state.durable,
                end: state.end,
                servers: state.lists.shown.iter().map(server).collect(),
            }
        })
    }

    /// Counts since the log was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.state.look(|state| state.counters)
    }
}

impl Shared {
    fn new(reactor: &Reactor, cfg: &LogCfg) -> Result<Self, LogError> {
        cfg.check()?;
        let mut identity = Identity::new(cfg.key, cfg.epoch)?;
        cfg.fault().set_identity(&mut identity);
        let set = Set::new(reactor.peer(), 2 * GROUP as usize * COMMITS, 2 * COMMITS)?;
        let set = Replicas::new(reactor, set)?;
        if cfg.one_host {
            set.permit_one_host();
        }
        let state = State::new(cfg, identity.instance);
        Ok(Self {
            cfg: cfg.clone(),
            identity,
            reactor: reactor.clone(),
            set,
            // Those of a change, too.
            pool: Pool::new(reactor.peer(), GROUP as usize, cfg.servers.len() + 1)?,
            state: Monitor::with_progress(reactor, state, State::progress),
            bell: Bell::new(reactor),
            truncated: Bell::new(reactor),
            servers: Bell::new(reactor),
        })
    }

    /// Gives records their places, as soon as there is room, and posts them if no group is in
    /// flight.
    async fn stage(&self, records: &[&[u8]]) -> Result<Staged, LogError> {
        let bytes = check_records(records, &self.cfg)?;
        let stage = |state: &mut State| self.stage_now(state, records, bytes);
        let staged = match self.state.change(stage) {
            Some(staged) => staged,
            None => self.stage_later(bytes, stage).await?,
        };
        if staged.has_work {
            self.ring_for_records();
        }
        Ok(staged)
    }

    async fn stage_later(
        &self,
        bytes: u64,
        stage: impl Fn(&mut State) -> Option<Staged>,
    ) -> Result<Staged, LogError> {
        let limit = self.cfg.room_limit.unwrap_or(self.cfg.limit);
        let stage = |state: &mut State| match state.why() {
            Some(why) => Some(Err(why)),
            None => stage(state).map(Ok),
        };
        let staged = self.state.change_when(limit, stage).await;
        staged.unwrap_or_else(|| {
            let room = self.state.look(State::room);
            Err(LogError::Full { bytes, room })
        })
    }

    fn stage_now(&self, state: &mut State, records: &[&[u8]], bytes: u64) -> Option<Staged> {
        let (may_lead, waited) = (state.may_lead(), state.waiting());
        let (at, end) = state.stage(records, bytes, &self.cfg)?;
        let leads = may_lead && state.may_commit();
        let posted = leads.then(|| state.commit(&self.set, &self.cfg, true));
        let lead = posted.and_then(Result::ok);
        if lead.is_none() {
            state.limit(end, self.cfg.limit);
        }
        let is_whole = state.committed >= end;
        let fills = waited < GROUP && state.waiting() >= GROUP;
        let is_next = fills || waited == 0 && !state.is_settling();
        Some(Staged {
            at,
            end,
            lead,
            is_whole,
            has_work: !is_whole && (is_next || leads),
        })
    }

    async fn finish(&self, staged: Staged) -> Result<(), LogError> {
        let Staged {
            at,
            end,
            lead,
            is_whole,
            ..
        } = staged;
        let (limit, began) = (self.cfg.limit, now());
        let there = match lead {
            _ if self.cfg.fault() == Fault::Posted => {
                let is_posted = |state: &State| (state.committed >= end).then_some(());
                self.until(limit, is_posted).await
            }
            Some(id) => match self.lead(id, limit).await {
                Ok(true) if is_whole => Ok(()),
                // If there will not be enough copies, a later commit may count the record.
                Ok(_) => {
                    let left = limit.saturating_sub(now() - began);
                    self.until_durable(end, left).await
                }
                Err(error) => Err(error),
            },
            None => {
                let look = |state: &State| state.outcome_in_time(end);
                let found = self.state.until_reached(end, FOREVER, look).await;
                found.unwrap_or(Err(LogError::TimedOut))
            }
        };
        match there {
            Ok(()) => Ok(()),
            Err(why) => self.unknown(at, end, why),
        }
    }

    #[cold]
    fn unknown(&self, at: u64, end: u64, why: LogError) -> Result<(), LogError> {
        match self.cfg.fault() {
            Fault::UnknownIsDone => return Ok(()),
            Fault::TakesPlace => self.state.change(|state| state.give_back(at, end)),
            _ => {}
        }
        Err(unknown(at, why))
    }

    /// As [`settle`](Self::settle), for the caller's own commit.
    async fn lead(&self, id: CommitId, limit: Duration) -> Result<bool, LogError> {
        let mut led = Led {
            shared: self,
            id: Some(id),
        };
        let is_there = self.settle(id, limit).await?;
        if is_there {
            led.id = None;
        }
        Ok(is_there)
    }

    /// Waits for the copies of a commit, and acknowledges it. `false`: the limit has passed, or there
    /// will not be enough.
    pub(crate) async fn settle(&self, id: CommitId, limit: Duration) -> Result<bool, LogError> {
        let copies = self
            .cfg
            .fault()
            .either(Fault::OneCopy, || 1, || self.cfg.copies);
        let outcome = self.set.settle(id, copies, limit).await?;
        let is_there = outcome.copies() >= copies;
        if !is_there && limit != FOREVER {
            // The work of the log waits for it without a limit.
            return Ok(false);
        }
        let is_staged = self.state.change(|state| {
            if is_there {
                state.acknowledge(id);
            } else {
                // A later commit counts its records as well.
                state.commits.forget(id);
            }
            state.may_commit()
        });
        if is_staged {
            self.ring_for_records();
        }
        Ok(is_there)
    }

    fn ring_for_records(&self) {
        if self.cfg.fault() != Fault::LostWakeUp {
            self.bell.ring();
        }
    }

    /// Waits until a look at the state finds something, for at most `limit`, or until the log ends.
    pub(crate) async fn until<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, LogError> {
        let look = |state: &State| look(state).map(Ok).or_else(|| state.why().map(Err));
        let found = self.state.until(limit, look).await;
        found.unwrap_or(Err(LogError::TimedOut))
    }

    /// Waits until all records up to `end` are acknowledged, or until the log ends.
    async fn until_durable(&self, end: u64, limit: Duration) -> Result<(), LogError> {
        let look = |state: &State| state.outcome(end);
        let found = self.state.until_reached(end, limit, look).await;
        found.unwrap_or(Err(LogError::TimedOut))
    }

    pub(crate) fn end(&self, why: LogError) {
        self.state
            .change(|state| state.ended.get_or_insert(why).clone());
        self.bell.ring();
    }
}

/// A task that leads a commit. If its future is dropped, the work of the log leads it.
struct Led<'a> {
    shared: &'a Shared,
    /// `None`: it is settled.
    id: Option<CommitId>,
}

impl Drop for Led<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.state.change(|state| state.commits.unlead(id));
            self.shared.bell.ring();
        }
    }
}

fn unknown(at: u64, why: LogError) -> LogError {
    let why = Box::new(why);
    LogError::Unknown { at, why }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
