//! [`State`]: the positions of a log, its records, and its commits.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpma::commit::CommitId;
use rpma_async::Replicas;

use crate::cfg::LogCfg;
use crate::clock::now;
use crate::commits::{Commits, Posted};
use crate::fault::Fault;
use crate::format::{HEAD, LINE, SPARE, TAIL, Tail};
use crate::open::{Lists, Server};
use crate::ring::{Ring, place, record_in, size_of};
use crate::{GROUP, LogError};

/// Positions: `free <= kept <= shown <= head <= durable <= committed <= end`.
pub(crate) struct State {
    /// Enough servers were read. A change of their list that was cut is finished before the log is
    /// open.
    pub(crate) is_read: bool,
    pub(crate) is_open: bool,
    pub(crate) ended: Option<LogError>,
    /// The records from `head` up to `end`.
    pub(crate) ring: Ring,
    /// Up to here the room may be used again.
    pub(crate) free: u64,
    /// The head that is on enough servers, and the one that was posted to the set.
    pub(crate) kept: u64,
    pub(crate) shown: u64,
    pub(crate) head: u64,
    /// Up to here records are acknowledged.
    pub(crate) durable: u64,
    /// Up to here they were posted to the set.
    pub(crate) committed: u64,
    pub(crate) end: u64,
    /// The log's name: [`Header::log`].
    pub(crate) log: u64,
    pub(crate) commits: Commits,
    /// The appends whose records are not committed, and whether the last group that was acknowledged
    /// had those of several ones.
    appends: usize,
    is_shared: bool,
    /// The ends of appended records, each with the instant of its limit; and the end of those whose
    /// limit has passed.
    limits: VecDeque<(Instant, u64)>,
    expired: u64,
    /// Truncations that a server of the set may not have yet.
    pub(crate) truncations: VecDeque<(CommitId, u64)>,
    /// Enough servers have the log under this epoch.
    pub(crate) is_ours: bool,
    /// A server came back: the tail is to be committed again.
    pub(crate) recount: bool,
    /// A server that comes back gets the last records: nothing is committed.
    pub(crate) is_gated: bool,
    /// Those of the settings, and then those of lists and of changes.
    pub(crate) servers: Vec<Server>,
    pub(crate) lists: Lists,
    pub(crate) counters: Counters,
}

/// Counts of a log since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Records that were appended, acknowledged or not.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Commits, each of a group of records, of a truncation, or of the tail.
    pub commits: u64,
    /// How often a server was brought up to date, and became one of the set.
    pub joins: u64,
}

/// Records that have their place.
pub(crate) struct Staged {
    /// The position of the first one, and the position after the last one.
    pub(crate) at: u64,
    pub(crate) end: u64,
    /// A commit that the caller leads.
    pub(crate) lead: Option<CommitId>,
    /// It has all of the records.
    pub(crate) is_whole: bool,
    /// Records wait for the work of the log, or for the commit before them, which may be led by a
    /// task that is not polled any more. The work learns of the first of them, unless it waits for
    /// that commit itself, and of a full group.
    pub(crate) has_work: bool,
}

impl State {
    pub(crate) fn new(cfg: &LogCfg, log: u64) -> Self {
        Self {
            is_read: false,
            is_open: false,
            ended: None,
            ring: Ring::new(cfg.ring),
            free: 0,
            kept: 0,
            shown: 0,
            head: 0,
            durable: 0,
            committed: 0,
            end: 0,
            log,
            commits: Commits::new(),
            appends: 0,
            is_shared: false,
            limits: VecDeque::new(),
            expired: 0,
            truncations: VecDeque::new(),
            is_ours: false,
            recount: false,
            is_gated: false,
            servers: cfg.servers.iter().copied().map(Server::new).collect(),
            lists: Lists::new(cfg),
            counters: Counters::default(),
        }
    }

    /// Up to here tasks that append go on: all of them when the log has ended.
    pub(crate) fn progress(&self) -> u64 {
        match self.ended {
            Some(_) => u64::MAX,
            None => self.durable.max(self.expired),
        }
    }

    /// The outcome of records up to `end`, once it is known.
    pub(crate) fn outcome(&self, end: u64) -> Option<Result<(), LogError>> {
        match &self.ended {
            _ if self.durable >= end => Some(Ok(())),
            Some(why) => Some(Err(why.clone())),
            None => None,
        }
    }

    /// As [`outcome`](Self::outcome), of records with a [limit](Self::limit).
    pub(crate) fn outcome_in_time(&self, end: u64) -> Option<Result<(), LogError>> {
        let late = || (self.expired >= end).then_some(Err(LogError::TimedOut));
        self.outcome(end).or_else(late)
    }

    /// Sets the limit of records up to `end`. Later ones have a later one.
    pub(crate) fn limit(&mut self, end: u64, limit: Duration) {
        let limit = now().checked_add(limit);
        self.limits.extend(limit.map(|limit| (limit, end)));
    }

    pub(crate) fn next_limit(&self) -> Option<Instant> {
        self.limits.front().map(|limit| limit.0)
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((_, end)) = self.limits.front().copied().filter(|limit| limit.0 <= now) {
            self.limits.pop_front();
            self.expired = end;
        }
    }

    pub(crate) fn check_position(&self, at: u64) -> Result<(), LogError> {
        let (head, durable) = (self.head, self.durable);
        let is_there = || at == durable || self.ring.entry(at).is_some();
        let is_kept = (head..=durable).contains(&at) && is_there();
        let refused = LogError::NoPosition { at, head, durable };
        is_kept.then_some(()).ok_or(refused)
    }

    pub(crate) fn why(&self) -> Option<LogError> {
        self.ended.clone()
    }

    /// Puts records into the ring, after the others: their entries have so many bytes without pads.
    /// `None`: there is no room, or the log is not open. The result is the position of the first one,
    /// and the position after the last one.
    pub(crate) fn stage(
        &mut self,
        records: &[&[u8]],
        bytes: u64,
        cfg: &LogCfg,
    ) -> Option<(u64, u64)> {
        let (epoch, fault) = (cfg.epoch, cfg.fault());
        let (begin, len) = (self.end, self.ring.len());
        let mut most = (self.free + len).min(Tail::MOST_END - LINE);
        if !self.is_open || self.ended.is_some() {
            return None;
        }
        if begin + bytes > most {
            most = self.more_room(fault, bytes, most)?;
        }
        let (mut first, mut end, mut lengths) = (None, begin, 0);
        for record in records {
            let (at, next) = place(len, end, record.len());
            if next > most {
                // The pads do not fit. Entries after the end are those of no record.
                return None;
            }
            if at > end {
                let kept = fault.either(
                    Fault::KeepsOlder,
                    || self.ring.encode_older(end, epoch),
                    || end,
                );
                if at > kept {
                    self.ring.encode(kept, epoch, None);
                }
            }
            self.ring.encode(at, epoch, Some(record));
            lengths += record.len() as u64;
            first.get_or_insert(at);
            end = next;
        }
        self.end = end;
        self.appends += 1;
        self.counters.bytes += lengths;
        self.counters.records += records.len() as u64;
        first.map(|at| (at, end))
    }

    /// A fault: records that are not acknowledged take no room.
    #[cold]
    fn more_room(&self, fault: Fault, bytes: u64, most: u64) -> Option<u64> {
        let (next, end) = (self.end + bytes, self.durable + self.ring.len());
        let has_more = fault == Fault::TakesNoRoom && self.durable + bytes <= most;
        (has_more && next <= end).then_some(end)
    }

    pub(crate) fn room(&self) -> u64 {
        (self.free + self.ring.len()).saturating_sub(self.end)
    }

    pub(crate) fn stage_head(&mut self, to: u64) -> Result<(), LogError> {
        self.check_position(to)?;
        self.why().map_or(Ok(()), Err)?;
        self.head = self.head.max(to);
        Ok(())
    }

    /// The end of the next group: of whole entries that are in one piece.
    fn group_end(&self) -> u64 {
        let (from, len) = (self.committed, self.ring.len());
        let most = from + GROUP.min(len - from % len);
        if self.end <= most {
            return self.end;
        }
        let entries = self.ring.entries(from, self.end);
        let group = entries.take_while(|entry| entry.next <= most);
        group.last().map_or(from, |entry| entry.next)
    }

    /// A fault: the place of the last record is free again.
    pub(crate) fn give_back(&mut self, at: u64, end: u64) {
        if self.end == end {
            (self.end, self.committed) = (at, self.committed.min(at));
        }
    }

    /// A fault: a server that was in the set before is one more copy.
    pub(crate) fn count_again(&mut self) {
        if self.counters.joins > self.servers.len() as u64 {
            self.durable = self.committed;
        }
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.end - self.committed
    }

    pub(crate) fn may_commit(&self) -> bool {
        if !self.is_open || self.is_gated || self.ended.is_some() || self.commits.is_full() {
            return false;
        }
        // A group that is not full waits for the one before it, so that it grows.
        let staged = self.waiting();
        let has_group = || self.commits.open().any(|of| of.is_group);
        let is_group = staged >= GROUP || staged > 0 && !has_group();
        is_group || self.recount || self.shown < self.head
    }

    /// Whether a task whose records come next may lead their commit. It may be polled no more: so
    /// no other record, and no truncation, waits for this commit. Tasks that the last acknowledgement
    /// has woken append together: their records are one group, which the work of the log posts after
    /// them.
    pub(crate) fn may_lead(&self) -> bool {
        let is_all = self.end == self.committed && self.shown == self.head;
        is_all && !self.recount && !self.is_shared
    }

    /// Commits the next head, or the next group with its tail, or the tail alone.
    pub(crate) fn commit(
        &mut self,
        set: &Replicas,
        cfg: &LogCfg,
        is_led: bool,
    ) -> rpma::Result<CommitId> {
        let (fault, from, is_head) = (cfg.fault(), self.committed, self.shown < self.head);
        let end = if is_head { from } else { self.group_end() };
        let tail = Tail {
            epoch: fault.either(Fault::KeepsEpoch, || self.found_epoch(), || cfg.epoch),
            end: fault.either(Fault::TailAhead, || self.end, || end),
        };
        let (at, piece) = match self.ring.piece(from, end) {
            [] => (SPARE, &[0][..]),
            group => (self.ring.offset(from), group),
        };
        let (word_at, word) = if is_head {
            (HEAD, self.head)
        } else {
            (TAIL, tail.word())
        };
        let word = Some((word_at, word.to_le_bytes()));
        let id = set.commit(at, &[piece], word, cfg.copies)?;
        if is_head {
            self.shown = self.head;
            self.truncations.push_back((id, self.head));
        } else {
            (self.committed, self.recount) = (end, false);
        }
        let is_shared = self.appends > 1;
        if self.committed == self.end {
            self.appends = 0;
        }
        self.commits.push(Posted {
            id,
            end,
            head: self.shown,
            is_group: end > from,
            is_shared,
            is_led,
            is_open: true,
        });
        self.counters.commits += 1;
        Ok(id)
    }

    /// The highest epoch of a tail that was read.
    fn found_epoch(&self) -> u64 {
        let found = self
            .servers
            .iter()
            .filter_map(|server| server.found.as_ref());
        found.map(|found| found.tail.epoch).max().unwrap_or(0)
    }

    pub(crate) fn acknowledge(&mut self, id: CommitId) {
        let Some(of) = self.commits.acknowledge(id) else {
            return;
        };
        self.kept = self.kept.max(of.head);
        self.is_ours = true;
        if of.is_group {
            self.is_shared = of.is_shared;
        }
        self.durable = self.durable.max(of.end);
        let is_over = |limit: &(Instant, u64)| limit.1 <= self.durable;
        let over = self
            .limits
            .iter()
            .take_while(|limit| is_over(limit))
            .count();
        self.limits.drain(..over);
    }

    /// Whether the work of the log waits for a commit, and then looks for the next one.
    pub(crate) fn is_settling(&self) -> bool {
        self.commits.open().any(|of| !of.is_led)
    }

    /// The first commit for which no task waits. While records wait for a commit, that is the
    /// first of all: its task may not be polled any more.
    pub(crate) fn left(&self) -> Option<CommitId> {
        let is_waited = self.end > self.committed;
        let left = self.commits.open().find(|of| is_waited || !of.is_led);
        left.map(|of| of.id)
    }
}

/// The bytes of the entries of these records, if the log has entries for them.
pub(crate) fn check_records(records: &[&[u8]], cfg: &LogCfg) -> Result<u64, LogError> {
    let (entry, most) = (cfg.most_entry(), cfg.ring / 2);
    let mut bytes = 0;
    for record in records {
        let (len, size) = (record.len(), size_of(record.len()));
        if size > entry {
            let most = record_in(entry);
            return Err(LogError::TooLong { len, most });
        }
        if len == 0 && cfg.fault() != Fault::LosesEmpty {
            return Err(LogError::Empty);
        }
        bytes += size;
    }
    match bytes {
        0 => Err(LogError::Empty),
        _ if bytes > most => Err(LogError::TooMany { bytes, most }),
        _ => Ok(bytes),
    }
}
