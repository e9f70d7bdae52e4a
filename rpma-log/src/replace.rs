//! [`Log::replace`]: another server takes the place of one, while the log runs.
//!
//! The new server gets all records, and counts for nothing meanwhile. At the gate it gets the
//! rest, and a header with the *joint* list: the servers before the change, and the new one. Then
//! K servers of the list before get the joint list, and the new list counts. In the end K of its
//! servers get it alone, and so does the old server when it is reached.
//!
//! The page "Building a log" has the reasons, and the steps of a new writer that finds a joint
//! list. `tests/lists.rs` has a model of all this.

use std::future::pending;
use std::net::SocketAddr;

use rpma::commit::{CommitId, ReplicaId};
use rpma::{Error, Identity};
use rpma_async::{Reconnect, Replicas};

use crate::cfg::LogCfg;
use crate::commits::Posted;
use crate::fault::Fault;
use crate::list::{LISTS, List, Member, is_same};
use crate::log::{FOREVER, Log, Shared};
use crate::open::{Role, Server, not_listed};
use crate::replica::Joining;
use crate::state::State;
use crate::{GROUP, LogError};

impl Log {
    /// Replaces a server by one without a log, while the log goes on: both by their addresses. When
    /// it returns, K servers have the new list. From then on open the log with the new address, or
    /// with [`LogCfg::set_follow`].
    ///
    /// The old server may be gone. If it is there, it gets no more commits from the moment at
    /// which the new one counts, and learns that it was replaced. K servers of the log have to be
    /// there, and one change goes on at a time. N and K stay. The limit ([`LogCfg::set_limit`]) is
    /// one of each step towards the new server: the copy of a long log takes longer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait, and not the change.
    ///
    /// # Errors
    ///
    /// [`LogError::Settings`] if `old` is no server of the log, if `new` is one, if it has a log, or
    /// if another change goes on. [`LogError::TooFew`] if fewer than K servers are there. Otherwise
    /// the error with which the new server failed. It is then not in the list, unless the next
    /// writer finds the begin of the change, and finishes it. [`LogError::TimedOut`] after the limit
    /// if the new server counts, and too few servers have the new list: the change goes on.
    pub async fn replace(&self, old: SocketAddr, new: SocketAddr) -> Result<(), LogError> {
        let log = &self.shared;
        let able = log.set.able();
        let begin = |state: &mut State| state.begin_replace(old, new, &log.cfg, able);
        let n = log.state.change(begin)?;
        log.servers.ring();
        let has_place = |state: &State| match (state.servers[n].role, &state.servers[n].failed) {
            (Role::Takes(_), _) => None,
            (_, Some(why)) => Some(Err(why.clone())),
            _ => Some(Ok(())),
        };
        log.until(FOREVER, has_place).await??;
        let is_over = |state: &State| (!state.lists.is_changing).then_some(());
        log.until(log.cfg.limit, is_over).await
    }
}

impl State {
    fn begin_replace(
        &mut self,
        old: SocketAddr,
        new: SocketAddr,
        cfg: &LogCfg,
        able: usize,
    ) -> Result<usize, LogError> {
        self.why().map_or(Ok(()), Err)?;
        let members = self.lists.counted();
        let place = |addr| members.iter().position(|of| is_same(of.addr, addr));
        let refused = |why: String| Err(LogError::Settings(why));
        let Some(at) = place(old) else {
            return refused(format!("the server {old} is not in the list of the log"));
        };
        if place(new).is_some() {
            return refused(format!(
                "the server {new} is in the list of the log already"
            ));
        }
        if self.lists.is_changing {
            return refused("another server is being replaced: one change at a time".to_owned());
        }
        if able < cfg.copies {
            return Err(self.too_few(cfg));
        }
        self.lists.is_changing = true;
        self.servers.push(Server::new(new));
        let n = self.servers.len() - 1;
        self.servers[n].role = Role::Takes(at);
        Ok(n)
    }

    /// Commits a list to the servers of the set, in the place that none of them uses.
    fn commit_list(
        &mut self,
        set: &Replicas,
        cfg: &LogCfg,
        (list, copies): (&List, usize),
    ) -> rpma::Result<CommitId> {
        let in_place = cfg.fault() == Fault::ListInPlace;
        let at = if in_place {
            self.lists.at
        } else {
            1 - self.lists.at
        };
        let id = set.commit(LISTS[at], &[&list.encode()], None, copies)?;
        (self.lists.list, self.lists.at) = (list.clone(), at);
        self.commits.push(Posted {
            id,
            end: self.committed,
            head: self.shown,
            is_group: false,
            is_shared: false,
            is_led: false,
            is_open: true,
        });
        Ok(id)
    }

    /// From now on the servers after the change count.
    fn switch(&mut self, n: Option<usize>, old: Option<usize>) {
        self.lists.is_new = self.lists.list.change.is_some();
        self.lists.is_settling = self.lists.is_new;
        let new = n.or_else(|| self.find(&self.lists.list.change?.1));
        if let Some(n) = new {
            self.servers[n].role = Role::Listed;
        }
        if let Some(old) = old.filter(|old| Some(*old) != new) {
            self.servers[old].role = Role::Gone;
            let shown = self.lists.shown.iter_mut().find(|of| **of == old);
            if let (Some(shown), Some(n)) = (shown, new) {
                *shown = n;
            }
        }
    }

    /// Servers of the set that the list has before its change.
    fn joined(&self) -> usize {
        let is_before = |of: &&Server| {
            let members = &self.lists.list.members;
            members
                .iter()
                .any(|member| Some(member.server) == of.server)
        };
        let members = self.servers.iter().filter(|of| of.member.is_some());
        members.filter(is_before).count()
    }
}

/// A server that takes a place in the list. It is given up if this is dropped before its end.
pub(crate) struct Change<'a> {
    log: &'a Shared,
    n: usize,
    place: usize,
    /// The identity that the new copy gets.
    server: u64,
    /// The server that has had the place: perhaps the same one, with another memory.
    old: Option<usize>,
    is_posted: bool,
    is_done: bool,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.log.state.change(|state| self.undo(state));
        }
        self.log.bell.ring();
        self.log.servers.ring();
    }
}

impl Change<'_> {
    fn undo(&self, state: &mut State) {
        // The call of `replace` ends with the visit of the server.
        state.lists.is_changing = matches!(state.servers[self.n].role, Role::Takes(_));
        if let Some(old) = self
            .old
            .filter(|old| state.servers[*old].role == Role::Leaves)
        {
            state.servers[old].role = Role::Listed;
        }
        // If it cannot be posted, the joint list stays: nothing counts under its change, and the
        // next change begins at the servers before it.
        if self.is_posted && state.lists.list.change.is_some() && !state.commits.is_full() {
            let members = state.lists.list.members.clone();
            let number = state.lists.next_number();
            let list = List {
                number,
                members,
                change: None,
            };
            let (set, cfg) = (&self.log.set, &self.log.cfg);
            let posted = state.commit_list(set, cfg, (&list, cfg.copies));
            posted.map_or_else(|error| log::info!("{error}"), drop);
        }
    }

    /// Sets the old server aside before the last records are copied, if there are enough others.
    pub(crate) async fn fence(&self) -> Result<(), LogError> {
        let (log, n) = (self.log, self.n);
        let Some(old) = self.old.filter(|old| *old != n) else {
            return Ok(());
        };
        let member = log.state.look(|state| state.servers[old].member);
        let is_there = member.is_some_and(|id| log.set.is_able(id));
        let others = log.set.able() - usize::from(is_there);
        if others >= log.cfg.copies {
            self.set_aside(old).await?;
        }
        Ok(())
    }

    async fn set_aside(&self, old: usize) -> Result<(), LogError> {
        match self.log.cfg.fault() {
            Fault::KeepsOld => Ok(()),
            _ => self.log.leave(old).await,
        }
    }

    /// The list with the new server: a joint one, unless the place was empty. Any K servers of a list
    /// with an empty place are servers of that one.
    fn list(&self, state: &mut State) -> List {
        let addr = state.servers[self.n].addr;
        let server = self.server;
        let mut members = state.lists.counted();
        let member = Member { addr, server };
        let is_empty = members[self.place].server == 0;
        let is_alone = is_empty || self.log.cfg.fault() == Fault::NoJointList;
        if is_alone {
            members[self.place] = member;
        }
        List {
            number: state.lists.next_number(),
            members,
            change: (!is_alone).then_some((self.place, member)),
        }
    }

    /// Gives the new server its header, and lets it count in the place of the old one. Nothing is
    /// committed meanwhile.
    pub(crate) async fn finish(mut self, joining: Joining) -> Result<ReplicaId, LogError> {
        let (log, n) = (self.log, self.n);
        let Joining { to, at, .. } = joining;
        let make = |state: &mut State| (self.list(state), state.lists.at);
        let (list, place) = log.state.change(make);
        log.put_first(&to, (at, self.server), &list, place).await?;
        // With the new server they are enough, if its place was empty.
        let copies = match list.change {
            Some(_) => log.cfg.copies,
            None => (log.cfg.copies - 1).max(1),
        };
        let id = log.post_list(&list, copies, true).await?;
        self.is_posted = true;
        if log.cfg.fault() != Fault::NoJointList {
            let outcome = log.set.settle(id, copies, log.cfg.limit).await?;
            outcome.require(copies)?;
        }
        if let Some(old) = self.old.filter(|old| *old != n) {
            self.set_aside(old).await?;
        }
        let id = log.step(log.set.add_writer(to.0, to.1)).await?;
        self.is_done = true;
        log.state.change(|state| {
            state.servers[n].server = Some(self.server);
            state.switch(Some(n), self.old);
            // A list without a change is all.
            state.lists.is_changing &= state.lists.is_new;
            log.added(state, n, id);
        });
        Ok(id)
    }
}

impl Shared {
    /// Waits while a server is perhaps replaced. `false`: it was, or it never had a place.
    pub(crate) async fn has_place(&self, n: usize) -> bool {
        loop {
            let rings = self.servers.rings();
            match self.state.look(|state| state.servers[n].role) {
                Role::Leaves => _ = self.servers.after(rings).await,
                Role::Gone => return false,
                Role::Listed | Role::Takes(_) => return true,
            }
        }
    }

    /// Begins the change by which a server takes a place: one at a time.
    pub(crate) async fn begin_change(
        &self,
        n: usize,
        place: usize,
    ) -> Result<Change<'_>, LogError> {
        let server = Identity::new(self.cfg.key, self.cfg.epoch)?.instance;
        let take = |state: &mut State| match (state.why(), state.servers[n].role) {
            (Some(why), _) => Some(Err(why)),
            (None, Role::Leaves | Role::Gone) => Some(Err(not_listed())),
            (None, Role::Listed) if !state.is_open || state.lists.is_changing => None,
            (None, Role::Listed | Role::Takes(_)) => {
                state.lists.is_changing = true;
                Some(Ok(state.find(&state.lists.counted()[place])))
            }
        };
        let taken = self.state.change_when(FOREVER, take).await;
        let old = taken.unwrap_or(Err(LogError::TimedOut))?;
        Ok(Change {
            log: self,
            n,
            place,
            server,
            old,
            is_posted: false,
            is_done: false,
        })
    }

    /// Takes a server out of the set, until the change ends.
    async fn leave(&self, n: usize) -> Result<(), LogError> {
        let member = self.state.change(|state| {
            state.servers[n].role = Role::Leaves;
            state.servers[n].member
        });
        match member {
            Some(id) => Ok(self.set.set_aside(id, self.cfg.limit / 8).await?),
            None => Ok(()),
        }
    }

    async fn post_list(
        &self,
        list: &List,
        copies: usize,
        has_gate: bool,
    ) -> Result<CommitId, LogError> {
        let post = |state: &mut State| match state.why() {
            Some(why) => Some(Err(why)),
            None if state.commits.is_full() || state.is_gated && !has_gate => None,
            None => {
                let posted = state.commit_list(&self.set, &self.cfg, (list, copies));
                if posted.is_ok() && list.change.is_none() {
                    state.lists.is_new = false;
                }
                Some(Ok(posted))
            }
        };
        loop {
            let posted = self.state.change_when(self.cfg.limit, post).await;
            match posted.unwrap_or(Err(LogError::TimedOut))? {
                Err(Error::RingFull) => {
                    let (len, k) = (GROUP as usize, self.cfg.copies);
                    self.set.make_room(len, k, self.cfg.limit / 2).await?;
                }
                posted => {
                    self.bell.ring();
                    return Ok(posted?);
                }
            }
        }
    }

    /// Finishes changes: one that the log had when it was opened, and those of this writer.
    pub(crate) async fn keep_list(&self) {
        loop {
            let rings = self.servers.rings();
            let (is_found, is_settling) = self.state.look(|state| {
                let is_found = state.is_read && !state.is_open;
                (is_found, state.lists.is_settling)
            });
            let done = match () {
                () if is_found => self.finish_found().await,
                () if is_settling => self.settle_list().await,
                () if self.servers.after(rings).await.is_some() => Ok(()),
                () => return,
            };
            if done.is_err() {
                // A server has to come back.
                let pause = self.cfg.limit / 16;
                self.reactor.timeout(pause, pending::<()>()).await;
                if self.state.look(|state| state.why().is_some()) {
                    return;
                }
            }
        }
    }

    /// Finishes a change that the log had when it was opened, and opens the log.
    async fn finish_found(&self) -> Result<(), LogError> {
        let is_early = self.cfg.fault() == Fault::FinishesEarly;
        let is_joint = |state: &State| {
            let is_joint = state.joined() >= self.cfg.copies || is_early;
            is_joint.then_some(())
        };
        self.until(FOREVER, is_joint).await?;
        let _gate = self.gate().await?;
        let old = |state: &State| {
            let (place, _) = state.lists.list.change?;
            let new = state.find(&state.lists.list.change?.1);
            let old = state.find(&state.lists.list.members[place]);
            old.filter(|old| Some(*old) != new)
        };
        let old = self.state.look(old);
        if let Some(old) = old {
            self.leave(old).await?;
        }
        self.state.change(|state| {
            state.switch(None, old);
            state.lists.is_changing = true;
            state.is_open = true;
        });
        self.servers.ring();
        Ok(())
    }

    /// Writes the list after a change alone, once K of its servers have all records.
    async fn settle_list(&self) -> Result<(), LogError> {
        let is_ours = |state: &State| state.is_ours.then_some(());
        self.until(FOREVER, is_ours).await?;
        let last = |state: &mut State| List {
            number: state.lists.next_number(),
            members: state.lists.list.last(),
            change: None,
        };
        let (list, copies) = (self.state.change(last), self.cfg.copies);
        loop {
            let id = self.post_list(&list, copies, false).await?;
            let outcome = self.set.settle(id, copies, self.cfg.limit).await?;
            if outcome.copies() >= copies {
                break;
            }
        }
        self.state.change(|state| {
            (state.lists.is_settling, state.lists.is_changing) = (false, false);
        });
        self.servers.ring();
        Ok(())
    }

    /// Tells a server that it was replaced, when it is reached: it gets the list without it.
    pub(crate) async fn tell_gone(&self, n: usize, mut server: Reconnect) {
        let is_given_up = |state: &State| {
            let (of, servers) = (&state.servers[n], &state.servers);
            // It may be back as another one.
            let is_back = |other: &Server| other.role != Role::Gone && is_same(other.addr, of.addr);
            of.failed.is_some() || servers.iter().any(is_back)
        };
        while !self.state.look(is_given_up) {
            let rings = self.servers.rings();
            let is_over = |state: &State| !state.lists.is_changing;
            if !self.state.look(is_over) {
                _ = self.servers.after(rings).await;
                continue;
            }
            let told = async {
                let (replica, found) = self.connect(&mut server).await?;
                let log = self.state.look(|state| state.log);
                if found.header.is_some_and(|of| of.log == log) {
                    self.put_again(&replica, &found).await?;
                    self.put_present(&replica, &found).await?;
                }
                Ok::<_, LogError>(())
            };
            match told.await {
                Ok(()) => break,
                Err(error) => log::info!("server {n}, which was replaced: {error}"),
            }
        }
        pending().await
    }
}
