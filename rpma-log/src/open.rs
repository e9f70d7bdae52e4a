//! Opening: the servers that were read, the list of servers that the log has, and the log that a new
//! writer goes on from.
//!
//! The newest list is the one with the highest number. A new writer reads N - K + 1 of its servers,
//! and as many of those before a change that is not finished. Each change was on K servers of the
//! list before it, so a reader of an old list sees it.

use std::net::SocketAddr;

use rpma::commit::ReplicaId;
use rpma::{Identity, Site};

use crate::LogError;
use crate::cfg::LogCfg;
use crate::fault::Fault;
use crate::format::{Header, Stored};
use crate::list::{List, Member, is_same};
use crate::ring::Ring;
use crate::state::State;

/// Two copies of a record would be one.
pub(crate) const SAME: &str = "two of the addresses lead to one server";

/// A server that the log has, had, or is going to have.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    /// Its memory when it was last read, without the records once the log is open.
    pub(crate) found: Option<Stored>,
    /// The identity of its copy, when it was last read.
    pub(crate) server: Option<u64>,
    /// The identity that it gets when the log is created.
    pub(crate) assigned: Option<u64>,
    /// While it is connected.
    pub(crate) site: Option<Site>,
    pub(crate) member: Option<ReplicaId>,
    /// Why it is away.
    pub(crate) away: String,
    /// It was reached, or a try has failed.
    pub(crate) is_tried: bool,
    pub(crate) role: Role,
    /// Why it did not take a place.
    pub(crate) failed: Option<LogError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its identity is in the list, or its address.
    Listed,
    /// Its place is going to be that of another server, and it gets no commits.
    Leaves,
    /// It takes this place in the list, unless that fails.
    Takes(usize),
    /// It has no place any more.
    Gone,
}

/// The role of a server that joins.
pub(crate) enum Kind {
    Member,
    /// It gets its first copy, with this identity.
    Created(u64),
    /// It gets a copy, and takes this place in the list.
    Takes(usize),
    /// It was to take a place, and that was given up.
    Undone,
}

impl Server {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            found: None,
            server: None,
            assigned: None,
            site: None,
            member: None,
            away: "not reached yet".to_owned(),
            is_tried: false,
            role: Role::Listed,
            failed: None,
        }
    }
}

/// The list of servers, as the writer has it.
pub(crate) struct Lists {
    pub(crate) list: List,
    /// The place of that list, on each server of the set.
    pub(crate) at: usize,
    /// In a change: the servers after it count, and those before it no more.
    pub(crate) is_new: bool,
    /// The last number that this writer has given.
    pub(crate) number: u64,
    pub(crate) is_changing: bool,
    /// The list after the change is to stand alone.
    pub(crate) is_settling: bool,
    /// The servers that count, in the order of the settings.
    pub(crate) shown: Vec<usize>,
}

impl Lists {
    pub(crate) fn new(cfg: &LogCfg) -> Self {
        let list = List::first(cfg.epoch, Vec::new());
        Self {
            number: list.number,
            list,
            at: 0,
            is_new: false,
            is_changing: false,
            is_settling: false,
            shown: (0..cfg.servers.len()).collect(),
        }
    }

    /// Gives a number that no other list has.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The servers of which K make a record acknowledged.
    pub(crate) fn counted(&self) -> Vec<Member> {
        if self.is_new {
            self.list.last()
        } else {
            self.list.members.clone()
        }
    }

    fn is_counted(&self, server: u64) -> bool {
        let counted = self.counted();
        counted.iter().any(|member| member.server == server)
    }
}

impl State {
    /// A server was read. When there are enough of them, the newest log becomes this one.
    pub(crate) fn saw(
        &mut self,
        n: usize,
        (found, site): (Stored, Site),
        cfg: &LogCfg,
    ) -> Result<(), LogError> {
        self.servers[n].found = None;
        let header = found.header;
        let others = self.servers.iter().filter(|of| of.role != Role::Gone);
        let mut others = others.filter_map(|other| other.found.as_ref()?.header);
        let is_other = |of: Header| of.key != cfg.key || self.is_read && of.log != self.log;
        let epoch = found.list.as_ref().map_or(0, List::epoch);
        let epoch = epoch.max(found.tail.epoch);
        match header {
            Some(of) if is_other(of) => return another_log(),
            _ if epoch > cfg.epoch && cfg.fault() != Fault::DropsOnly => {
                return Err(LogError::Fenced { epoch });
            }
            Some(of) => {
                check_numbers(of, cfg)?;
                if others.clone().any(|other| other.server == of.server) {
                    return Err(LogError::Settings(SAME.to_owned()));
                }
                if others.any(|other| other.log != of.log) {
                    return another_log();
                }
            }
            None => {}
        }
        self.check_site(n, site, cfg)?;
        let server = &mut self.servers[n];
        (server.site, server.is_tried) = (Some(site), true);
        server.server = header.map(|of| of.server);
        server.away = header.map_or("has no log", |_| "was read").to_owned();
        if let Some(list) = found.list.clone().filter(|_| !self.is_read) {
            self.discover(&list, cfg);
        }
        self.servers[n].found = Some(found);
        self.adopt(cfg)
    }

    /// A server of a change that is not finished is read, and those of the list if it is followed.
    fn discover(&mut self, list: &List, cfg: &LogCfg) {
        if list.change.is_none() && !cfg.follow {
            return;
        }
        for member in list.members.iter().chain(&list.last()) {
            let is_known = |of: &Server| is_same(of.addr, member.addr);
            if !self.servers.iter().any(is_known) {
                self.servers.push(Server::new(member.addr));
            }
        }
    }

    /// One loss of power ends all servers in one place.
    fn check_site(&self, n: usize, site: Site, cfg: &LogCfg) -> Result<(), LogError> {
        let are_one = |one: Option<u64>, other: Option<u64>| one.is_some() && one == other;
        for (m, other) in self.servers.iter().enumerate().filter(|(m, _)| *m != n) {
            let Some(at) = other.site else { continue };
            // A server may be replaced by another one on its host.
            let is_out = matches!(other.role, Role::Leaves | Role::Gone);
            let place = if is_out {
                continue;
            } else if are_one(site.memory(), at.memory()) {
                return Err(LogError::Settings(SAME.to_owned()));
            } else if cfg.one_host {
                continue;
            } else if are_one(site.host(), at.host()) {
                "on one host"
            } else if are_one(site.failure_domain(), at.failure_domain()) {
                "in one failure domain"
            } else {
                continue;
            };
            let [one, other] = [n.min(m), n.max(m)].map(|n| self.servers[n].addr);
            return Err(LogError::Settings(format!(
                "the servers {one} and {other} are {place}: one loss of power would end both. A test \
                 permits it by LogCfg::permit_one_host"
            )));
        }
        Ok(())
    }

    /// Goes on from the newest log, once enough servers were read.
    pub(crate) fn adopt(&mut self, cfg: &LogCfg) -> Result<(), LogError> {
        if !self.is_read {
            self.adopt_newest(cfg)?;
        }
        if self.is_read {
            let found = self.servers.iter_mut().filter_map(|of| of.found.as_mut());
            found.for_each(|found| found.ring = Ring::default());
        }
        Ok(())
    }

    fn adopt_newest(&mut self, cfg: &LogCfg) -> Result<(), LogError> {
        let (fault, enough) = (cfg.fault(), cfg.read());
        let found = self.servers.iter().filter_map(|of| of.found.as_ref());
        let (logs, blank): (Vec<_>, Vec<_>) = found.partition(|found| found.header.is_some());
        let list = self.newest_list(cfg);
        let makes_anew = fault == Fault::MakesAnew && list.is_none();
        match (cfg.create || makes_anew, list) {
            (true, Some(_)) => return Err(self.exists()),
            (true, None) if blank.len() >= enough.max(cfg.copies) => {
                self.lists.list = self.first_list(cfg)?;
            }
            (false, None) if blank.len() >= enough => return Err(LogError::Nothing),
            (false, Some(list)) => {
                // Only a server that has the log can be asked for its records.
                let all = logs.len() + blank.len();
                let is_enough = match fault {
                    Fault::BlankCounts => all >= enough,
                    Fault::ReadsOne => true,
                    Fault::ReadsOldList => has(&logs, &list.members, enough),
                    _ => has(&logs, &list.members, enough) && has(&logs, &list.last(), enough),
                };
                if !is_enough || !self.may_open(&list, cfg)? {
                    return Ok(());
                }
                let logs = logs.into_iter().filter(|found| is_of(found, &list));
                let logs = Vec::from_iter(logs);
                let Some(newest) = newest(&logs, fault).cloned() else {
                    return Ok(());
                };
                let heads = logs.iter().map(|found| found.head);
                let head = heads.filter(|head| *head <= newest.tail.end).max();
                self.log = newest.header.map_or(0, |of| of.log);
                self.head = head.unwrap_or(newest.head);
                (self.committed, self.end) = (newest.tail.end, newest.tail.end);
                self.ring = newest.ring;
                self.take_list(list, cfg);
            }
            _ => return Ok(()),
        }
        (self.free, self.kept, self.shown) = (self.head, self.head, self.head);
        let early = (true, self.committed);
        (self.is_ours, self.durable) =
            fault.either(Fault::TellsEarly, || early, || (false, self.head));
        (self.recount, self.is_read) = (true, true);
        self.is_open = self.lists.list.change.is_none();
        Ok(())
    }

    fn newest_list(&self, cfg: &LogCfg) -> Option<List> {
        let found = self.servers.iter().filter_map(|of| of.found.as_ref());
        let lists = found.filter_map(|found| found.list.as_ref());
        let newest = lists.max_by_key(|list| list.number).cloned()?;
        if cfg.fault() != Fault::IgnoresLists {
            return Some(newest);
        }
        let member = |of: &Server| Member {
            addr: of.addr,
            server: of.server.unwrap_or_default(),
        };
        let servers = self.servers.iter().take(cfg.servers.len());
        Some(List::first(cfg.epoch, servers.map(member).collect()))
    }

    /// Whether the settings have the servers of this list, or may have others. `false`: a server that
    /// was not tried yet may be one of them, at another address.
    fn may_open(&self, list: &List, cfg: &LogCfg) -> Result<bool, LogError> {
        let own = &self.servers[..cfg.servers.len()];
        if cfg.follow || self.has_all(list, cfg) {
            Ok(true)
        } else if own.iter().all(|of| of.is_tried) {
            Err(other_servers(list))
        } else {
            Ok(false)
        }
    }

    fn has_all(&self, list: &List, cfg: &LogCfg) -> bool {
        let own = &self.servers[..cfg.servers.len()];
        let is_there = |member: &Member| {
            let is_it = |of: &Server| {
                is_same(of.addr, member.addr) || of.server.is_some_and(|id| id == member.server)
            };
            own.iter().any(is_it)
        };
        list.last().iter().all(is_there)
    }

    fn first_list(&mut self, cfg: &LogCfg) -> Result<List, LogError> {
        let mut members = Vec::new();
        for of in self.servers.iter_mut().take(cfg.servers.len()) {
            let is_there = of.found.is_some();
            let server = Identity::new(cfg.key, cfg.epoch)?.instance;
            of.assigned = is_there.then_some(server);
            members.push(Member {
                addr: of.addr,
                server: of.assigned.unwrap_or_default(),
            });
        }
        Ok(List::first(cfg.epoch, members))
    }

    /// Takes the list over, under the epoch of this writer.
    fn take_list(&mut self, mut list: List, cfg: &LogCfg) {
        let change = list.change.iter_mut().map(|(_, member)| member);
        for member in list.members.iter_mut().chain(change) {
            let is_it = |of: &&Server| of.server == Some(member.server);
            if let Some(of) = self.servers.iter().find(is_it) {
                member.addr = of.addr;
            }
        }
        list.number = self.lists.number;
        if !self.has_all(&list, cfg) {
            let shown = list.last();
            self.lists.shown = shown.iter().filter_map(|of| self.find(of)).collect();
        }
        self.lists.list = list;
    }

    /// The server of a member of the list.
    pub(crate) fn find(&self, member: &Member) -> Option<usize> {
        let by_id = |of: &Server| member.server != 0 && of.server == Some(member.server);
        let by_addr = |of: &Server| is_same(of.addr, member.addr) && of.role != Role::Gone;
        let found = self.servers.iter().position(by_id);
        found.or_else(|| self.servers.iter().position(by_addr))
    }

    pub(crate) fn kind(&self, n: usize, found: &Stored, cfg: &LogCfg) -> Result<Kind, LogError> {
        let (server, lists) = (&self.servers[n], &self.lists);
        let Some(header) = found.header else {
            let is_here = |of: &Member| is_same(of.addr, server.addr);
            let place = || lists.counted().iter().position(is_here);
            return match (server.assigned, server.role) {
                (Some(assigned), _) => Ok(Kind::Created(assigned)),
                (None, Role::Takes(place)) => Ok(Kind::Takes(place)),
                (None, _) => place().map(Kind::Takes).ok_or_else(not_listed),
            };
        };
        let is_member = match self.is_open {
            true => lists.is_counted(header.server),
            false => lists.list.has(header.server),
        };
        // It was the new one of a change, or it was to fill a place that is empty.
        let was_new = |list: &List| {
            let is_it = |of: &Member| of.server == header.server;
            let fills = list.members.iter().zip(lists.counted());
            let mut fills = fills.filter(|(_, now)| now.server == 0);
            list.change.is_some_and(|(_, of)| is_it(&of)) || fills.any(|(of, _)| is_it(of))
        };
        if is_member || cfg.fault() == Fault::IgnoresLists {
            Ok(Kind::Member)
        } else if found.list.as_ref().is_some_and(was_new) {
            Ok(Kind::Undone)
        } else if matches!(server.role, Role::Takes(_)) {
            let addr = server.addr;
            Err(LogError::Settings(format!(
                "the server {addr} has a copy of the log: clear its memory (ServerCfg::place)"
            )))
        } else {
            Err(not_listed())
        }
    }

    /// Whether a server that was read is not in the list.
    fn has_replaced(&self, list: &List) -> bool {
        let mut found = self.servers.iter().filter_map(|of| of.server);
        found.any(|server| !list.has(server))
    }

    fn exists(&self) -> LogError {
        let has_log = |of: &&Server| {
            of.found
                .as_ref()
                .is_some_and(|found| found.header.is_some())
        };
        let first = self.servers.iter().find(has_log);
        let server = first.unwrap_or(&self.servers[0]).addr;
        LogError::Exists { server }
    }

    pub(crate) fn too_few(&self, cfg: &LogCfg) -> LogError {
        let list = self.newest_list(cfg).filter(|_| !self.is_read);
        let other = list.as_ref().filter(|list| !self.has_all(list, cfg));
        if let Some(list) = other.filter(|list| !cfg.follow && self.has_replaced(list)) {
            return other_servers(list);
        }
        let counts = |of: &&Server| match &of.found {
            _ if self.is_read => of.member.is_some(),
            Some(found) => found.header.is_none() == cfg.create,
            None => false,
        };
        let has = self.servers.iter().filter(counts).count();
        let needed = match cfg.create {
            _ if self.is_read => cfg.copies,
            true => cfg.read().max(cfg.copies),
            false => cfg.read(),
        };
        let reasons = self.servers.iter().map(|of| {
            let reason = of.member.map_or(&*of.away, |_| "has the log");
            format!("{}: {reason}", of.addr)
        });
        let mut reasons = Vec::from_iter(reasons).join("; ");
        if let Some(list) = other {
            let addrs = addrs(&list.last());
            reasons += &format!(". The log has the servers {addrs}");
        }
        if list.is_some_and(|list| list.change.is_some()) {
            reasons += ". A change of its servers was cut: so many of those before it are needed, and \
                        of those after it";
        }
        let (all, limit) = (cfg.servers.len(), cfg.limit);
        LogError::TooFew(format!(
            "{has} of the {needed} that are needed, of {all}, within {limit:?}. {reasons}"
        ))
    }
}

/// Whether enough of these servers were read.
fn has(logs: &[&Stored], members: &[Member], enough: usize) -> bool {
    let is_one = |found: &&&Stored| {
        let of = found.header.map_or(0, |of| of.server);
        members.iter().any(|member| member.server == of)
    };
    logs.iter().filter(is_one).count() >= enough
}

fn is_of(found: &Stored, list: &List) -> bool {
    found.header.is_some_and(|of| list.has(of.server))
}

/// The log from which a new writer goes on.
fn newest<'a>(logs: &[&'a Stored], fault: Fault) -> Option<&'a Stored> {
    let longest = || logs.iter().copied().max_by_key(|found| found.tail.end);
    fault.either(Fault::IgnoresEpochs, longest, || Stored::newest(logs))
}

fn another_log() -> Result<(), LogError> {
    Err(LogError::Foreign("it has another log".to_owned()))
}

pub(crate) fn not_listed() -> LogError {
    LogError::Foreign("it is not in the log's list of servers: it was replaced".to_owned())
}

fn other_servers(list: &List) -> LogError {
    let servers = list.last().iter().map(|member| member.addr).collect();
    LogError::OtherServers { servers }
}

fn addrs(members: &[Member]) -> String {
    let addrs = members.iter().map(|member| member.addr.to_string());
    Vec::from_iter(addrs).join(" ")
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
