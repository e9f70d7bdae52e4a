//! [`State`]: the positions of a log, its records, and its commits.

use std::collections::VecDeque;

use rpma::commit::{CommitId, ReplicaId};
use rpma_async::Replicas;

use crate::cfg::LogCfg;
use crate::fault::Fault;
use crate::format::{HEAD, Header, SPARE, Stored, TAIL, Tail};
use crate::ring::{Ring, record_in, size_of};
use crate::{COMMITS, GROUP, LogError, RECENT};

/// Two copies of a record would be one.
pub(crate) const SAME: &str = "two of the addresses lead to one server";

/// Positions: `free <= kept <= shown <= head <= durable <= committed <= end`.
pub(crate) struct State {
    /// Enough servers were read.
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
    /// The commits that are not acknowledged, in their order.
    pub(crate) commits: VecDeque<Posted>,
    /// The last commits, each with `committed` after it: servers are behind by fewer.
    pub(crate) recent: VecDeque<(CommitId, u64)>,
    /// Truncations that a server of the set may not have yet.
    pub(crate) truncations: VecDeque<(CommitId, u64)>,
    /// Enough servers have the log under this epoch.
    pub(crate) is_ours: bool,
    /// A server came back: the tail is to be committed again.
    pub(crate) recount: bool,
    /// A server that comes back gets the last records: nothing is committed.
    pub(crate) is_gated: bool,
    pub(crate) servers: Vec<Server>,
    pub(crate) counters: Counters,
}

/// A commit that is not acknowledged.
#[derive(Clone, Copy)]
pub(crate) struct Posted {
    pub(crate) id: CommitId,
    /// `committed` and `shown` after it.
    end: u64,
    head: u64,
    /// It has records.
    is_group: bool,
    /// The task that posted it waits for it.
    pub(crate) is_led: bool,
}

/// A server of the log.
pub(crate) struct Server {
    /// What it had when it was last read, without its records once the log is open.
    pub(crate) found: Option<Stored>,
    pub(crate) member: Option<ReplicaId>,
    /// Why it is away.
    pub(crate) away: String,
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
    /// A commit that the caller leads, and the position up to which it has records.
    pub(crate) lead: Option<(CommitId, u64)>,
    /// There is work that the caller does not do.
    pub(crate) has_work: bool,
}

impl State {
    pub(crate) fn new(cfg: &LogCfg, log: u64) -> Self {
        let server = |_| Server {
            found: None,
            member: None,
            away: "not reached yet".to_owned(),
        };
        Self {
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
            commits: VecDeque::with_capacity(COMMITS),
            recent: VecDeque::with_capacity(RECENT),
            truncations: VecDeque::new(),
            is_ours: false,
            recount: false,
            is_gated: false,
            servers: cfg.servers.iter().map(server).collect(),
            counters: Counters::default(),
        }
    }

    /// Up to here tasks that append go on: all of them when the log has ended.
    pub(crate) fn progress(&self) -> u64 {
        match self.ended {
            Some(_) => u64::MAX,
            None => self.durable,
        }
    }

    pub(crate) fn check_position(&self, at: u64) -> Result<(), LogError> {
        let (head, durable) = (self.head, self.durable);
        let is_there = || at == durable || self.ring.entry(at).is_some();
        let is_kept = (head..=durable).contains(&at) && is_there();
        let refused = LogError::NoPosition { at, head, durable };
        is_kept.then_some(()).ok_or(refused)
    }

    /// The reason for which the log has ended.
    pub(crate) fn why(&self) -> Option<LogError> {
        self.ended.clone()
    }

    /// Puts records into the ring, behind the others. `None`: there is no room. The result is the
    /// position of the first one, and the position after the last one.
    pub(crate) fn stage(
        &mut self,
        records: &[&[u8]],
        epoch: u64,
        mut note: impl FnMut(u64),
    ) -> Option<Result<(u64, u64), LogError>> {
        if let Some(why) = &self.ended {
            return Some(Err(why.clone()));
        }
        let mut end = self.end;
        for record in records {
            let size = size_of(record.len());
            end += self.ring.pad_before(end, size) + size;
        }
        let is_room = end <= self.free + self.ring.len() && end < Tail::MOST_END;
        if !self.is_open || !is_room {
            return None;
        }
        let mut first = None;
        for record in records {
            let at = self.put(record, epoch);
            first.get_or_insert(at);
            note(at);
        }
        first.map(|at| Ok((at, end)))
    }

    fn put(&mut self, record: &[u8], epoch: u64) -> u64 {
        let size = size_of(record.len());
        let pad = self.ring.pad_before(self.end, size);
        if pad > 0 {
            self.ring.encode(self.end, epoch, None);
        }
        let at = self.end + pad;
        self.ring.encode(at, epoch, Some(record));
        self.end = at + size;
        self.counters.records += 1;
        self.counters.bytes += record.len() as u64;
        at
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
        if self.end - from <= GROUP && (self.end - 1) / len == from / len {
            return self.end;
        }
        let fits = |next: u64| next - from <= GROUP && (next - 1) / len == from / len;
        let entries = self.ring.entries(from, self.end);
        let group = entries.take_while(|entry| fits(entry.next));
        group.last().map_or(from, |entry| entry.next)
    }

    /// Whether the next commit may be posted.
    pub(crate) fn may_commit(&self) -> bool {
        if !self.is_open || self.is_gated || self.ended.is_some() || self.commits.len() >= COMMITS {
            return false;
        }
        // A group that is not full waits for the one before it, so that it grows.
        let staged = self.end - self.committed;
        let has_group = || self.commits.iter().any(|of| of.is_group);
        let is_group = staged >= GROUP || staged > 0 && !has_group();
        is_group || self.recount || self.shown < self.head
    }

    /// Commits the next head, or the next group with its tail, or the tail alone.
    pub(crate) fn commit(
        &mut self,
        set: &Replicas,
        cfg: &LogCfg,
        is_led: bool,
    ) -> rpma::Result<CommitId> {
        let (fault, from, is_head) = (cfg.fault(), self.committed, self.shown < self.head);
        let end = if is_head || self.end == from {
            from
        } else {
            self.group_end()
        };
        let tail = Tail {
            epoch: fault.either(Fault::KeepsEpoch, self.found_epoch(), cfg.epoch),
            end: fault.either(Fault::TailAhead, self.end, end),
        };
        let tail = (TAIL, tail.word());
        let (at, piece, (word_at, word)) = match (is_head, self.ring.piece(from, end)) {
            (true, _) => (SPARE, &[0][..], (HEAD, self.head)),
            (_, []) => (SPARE, &[0][..], tail),
            (_, group) => (self.ring.offset(from), group, tail),
        };
        let word = Some((word_at, word.to_le_bytes()));
        let id = set.commit(at, &[piece], word, cfg.copies)?;
        if is_head {
            self.shown = self.head;
            self.truncations.push_back((id, self.head));
        } else {
            (self.committed, self.recount) = (end, false);
        }
        self.commits.push_back(Posted {
            id,
            end: self.committed,
            head: self.shown,
            is_group: end > from,
            is_led,
        });
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((id, self.committed));
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

    /// A commit has enough copies, and with it all earlier ones: each server executes them in their
    /// order.
    pub(crate) fn acknowledge(&mut self, id: CommitId) {
        let Some(at) = self.commits.iter().position(|of| of.id == id) else {
            return;
        };
        let Posted { end, head, .. } = self.commits[at];
        self.commits.drain(..=at);
        (self.durable, self.kept) = (self.durable.max(end), self.kept.max(head));
        self.is_ours = true;
    }

    /// The commit can have too few copies. A later one counts its records as well.
    pub(crate) fn forget(&mut self, id: CommitId) {
        self.commits.retain(|of| of.id != id);
    }

    /// The first commit for which no task waits. While records wait behind a commit, that is the
    /// first of all: its task may not be polled any more.
    pub(crate) fn left(&self) -> Option<CommitId> {
        let is_waited = self.end > self.committed;
        let left = self.commits.iter().find(|of| is_waited || !of.is_led);
        left.map(|of| of.id)
    }

    /// The tasks that led commits do so no more.
    pub(crate) fn unlead_all(&mut self) {
        self.commits.iter_mut().for_each(|of| of.is_led = false);
    }

    /// The task that led a commit does so no more.
    pub(crate) fn unlead(&mut self, id: CommitId) {
        if let Some(of) = self.commits.iter_mut().find(|of| of.id == id) {
            of.is_led = false;
        }
    }

    /// A server was read. When there are enough of them, the newest log becomes this one.
    pub(crate) fn saw(&mut self, n: usize, found: Stored, cfg: &LogCfg) -> Result<(), LogError> {
        self.servers[n].found = None;
        let header = found.header;
        let others = self.servers.iter().filter_map(|other| other.found.as_ref());
        let mut others = others.filter_map(|other| other.header);
        let is_other = |of: Header| of.key != cfg.key || self.is_open && of.log != self.log;
        match header {
            _ if found.tail.epoch > cfg.epoch => {
                let epoch = found.tail.epoch;
                return Err(LogError::Fenced { epoch });
            }
            Some(of) => {
                check_numbers(of, cfg)?;
                if others.clone().any(|other| other.server == of.server) {
                    return Err(LogError::Settings(SAME.to_owned()));
                }
                if is_other(of) || others.any(|other| other.log != of.log) {
                    return Err(LogError::Foreign("it has another log".to_owned()));
                }
            }
            None => {}
        }
        self.servers[n].found = Some(found);
        self.servers[n].away = header.map_or("has no log", |_| "was read").to_owned();
        if !self.is_open {
            self.adopt(cfg)?;
        }
        if self.is_open {
            let found = self.servers.iter_mut().filter_map(|of| of.found.as_mut());
            found.for_each(|found| found.ring = Ring::default());
        }
        Ok(())
    }

    fn adopt(&mut self, cfg: &LogCfg) -> Result<(), LogError> {
        let (fault, enough) = (cfg.fault(), cfg.read());
        let found = self.servers.iter().filter_map(|of| of.found.as_ref());
        let (logs, blank): (Vec<_>, Vec<_>) = found.partition(|found| found.header.is_some());
        // Only a server that has the log can be asked for its records.
        let all = logs.len() + blank.len();
        let read = fault.either(Fault::BlankCounts, all, logs.len());
        let read = fault.either(Fault::ReadsOne, enough, read);
        match (cfg.create, newest(&logs, fault)) {
            (true, Some(_)) => return Err(LogError::Exists),
            (true, None) if blank.len() >= enough => {}
            (false, None) if blank.len() >= enough => return Err(LogError::Nothing),
            (false, Some(newest)) if read >= enough => {
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
        (self.is_ours, self.durable) = fault.either(Fault::TellsEarly, early, (false, self.head));
        (self.recount, self.is_open) = (true, true);
        Ok(())
    }

    /// Why each server is away.
    pub(crate) fn reasons(&self) -> String {
        let servers = self.servers.iter().enumerate();
        let reasons = servers.map(|(n, of)| format!("server {n}: {}", of.away));
        Vec::from_iter(reasons).join("; ")
    }
}

/// The log from which a new writer goes on.
fn newest<'a>(logs: &[&'a Stored], fault: Fault) -> Option<&'a Stored> {
    let longest = logs.iter().copied().max_by_key(|found| found.tail.end);
    fault.either(Fault::IgnoresEpochs, longest, Stored::newest(logs))
}

/// The numbers of servers and copies are those of the log.
fn check_numbers(of: Header, cfg: &LogCfg) -> Result<(), LogError> {
    let (servers, copies) = (cfg.servers.len(), cfg.copies);
    if (of.servers as usize, of.copies as usize) == (servers, copies) {
        return Ok(());
    }
    Err(LogError::Settings(format!(
        "the log was created with {} copies on {} servers, and is opened with {copies} on {servers}",
        of.copies, of.servers
    )))
}

/// Whether the log has entries for these records.
pub(crate) fn check_records(records: &[&[u8]], cfg: &LogCfg) -> Result<(), LogError> {
    let most = cfg.most_entry();
    if records.is_empty() || records.iter().any(|record| record.is_empty()) {
        return Err(LogError::Empty);
    }
    let too_long = records.iter().find(|record| size_of(record.len()) > most);
    if let Some(record) = too_long {
        let (len, most) = (record.len(), record_in(most));
        return Err(LogError::TooLong { len, most });
    }
    let bytes = records.iter().map(|record| size_of(record.len())).sum();
    let most = cfg.ring / 2;
    if bytes > most {
        return Err(LogError::TooMany { bytes, most });
    }
    Ok(())
}
