//! A server, as the writer sees it: connected, read, brought up to date, a member of the set; and
//! again after each end.

use std::convert::Infallible;
use std::future::pending;

use rpma::commit::{ReplicaId, WriterCfg};
use rpma::reconnect::ReconnectCfg;
use rpma::serve::Layout;
use rpma::{ConnCfg, Error, Identity, MrRemote};
use rpma_async::{Reconnect, Writer};

use crate::fault::Fault;
use crate::format::{HEAD, Header, RING, SPARE, Stored, TAIL, Tail, foreign};
use crate::list::{LISTS, List};
use crate::log::{FOREVER, Shared};
use crate::open::{Kind, Role, SAME};
use crate::state::State;
use crate::{GROUP, LogError};

/// A server that is connected.
pub(crate) type Replica = (Writer, MrRemote);

/// A server that is brought up to date.
pub(crate) struct Joining {
    pub(crate) to: Replica,
    /// The head that it shows.
    head: u64,
    /// It has the records up to here.
    pub(crate) at: u64,
}

/// Nothing is committed while there is one.
pub(crate) struct Gate<'a>(&'a Shared);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.state.change(|state| state.is_gated = false);
        self.0.bell.ring();
    }
}

impl Shared {
    /// Keeps a server in the set, until the log ends.
    pub(crate) async fn keep(&self, n: usize) {
        let mut server = match self.server(n) {
            Ok(server) => server,
            Err(error) => return self.end(error),
        };
        loop {
            let error = match self.has_place(n).await {
                true => {
                    let Err(error) = self.visit(n, &mut server).await;
                    error
                }
                false => return self.tell_gone(n, server).await,
            };
            log::info!("server {n}: {error}");
            let ended = self.state.change(|state| {
                let of = &mut state.servers[n];
                (of.member, of.site, of.is_tried) = (None, None, true);
                of.away = error.to_string();
                if let Role::Takes(_) = of.role {
                    // It is none of the log: whatever it has ends no log.
                    (of.role, of.failed) = (Role::Gone, Some(error));
                    state.lists.is_changing = false;
                    return None;
                }
                match &error {
                    LogError::Fenced { .. }
                    | LogError::Exists { .. }
                    | LogError::Nothing
                    | LogError::OtherServers { .. } => Some(error),
                    // A server that comes back so ends no log that the others have.
                    LogError::Settings(_) if !state.is_ours => Some(error),
                    // It was perhaps the last one that the log has waited for.
                    _ => state.adopt(&self.cfg).err(),
                }
            });
            if let Some(error) = ended {
                return self.end(error);
            }
            self.bell.ring();
        }
    }

    fn server(&self, n: usize) -> Result<Reconnect, LogError> {
        let (cfg, mut commits) = (&self.cfg, WriterCfg::new(self.cfg.method));
        commits.set_parts(1)?;
        cfg.fault().set_writers(&mut commits)?;
        let addr = self.state.look(|state| state.servers[n].addr);
        let identity = self.identity;
        let mut server = Reconnect::to_writer(&self.reactor, addr, identity, &commits)?;
        // So a call that waits as long as its limit can give the reason.
        let limit = cfg.fault().until_given_up(cfg.limit / 2);
        server.set_cfg(ReconnectCfg::new().set_limit(limit));
        Ok(server)
    }

    /// One connection: returns when it is over.
    async fn visit(&self, n: usize, server: &mut Reconnect) -> Result<Infallible, LogError> {
        let (replica, found) = self.connect(server).await?;
        let site = replica.0.offer().site();
        let saw = |state: &mut State| state.saw(n, (found.clone(), site), &self.cfg);
        self.state.change(saw)?;
        self.bell.ring();
        self.servers.ring();
        self.until(FOREVER, |of| of.is_read.then_some(())).await?;
        let id = self.join(n, replica, found).await?;
        let failure = self.set.gone(id).await?;
        self.set.set_aside(id, self.cfg.limit).await?;
        let ended = || LogError::Rpma("the server ended the connection".to_owned());
        Err(failure.map_or_else(ended, |failure| Error::from(failure).into()))
    }

    /// Connects to a server, and reads its log.
    pub(crate) async fn connect(
        &self,
        server: &mut Reconnect,
    ) -> Result<(Replica, Stored), LogError> {
        let mut cfg = ConnCfg::new();
        cfg.set_keep_alive(Some(self.cfg.silence))?;
        let connected = server.connect(&cfg).await;
        let is_away = connected
            .as_ref()
            .is_err_and(|error| error.other_epoch().is_none());
        if is_away && self.cfg.fault() == Fault::GivesUp {
            return pending().await;
        }
        let writer = Writer::new(&self.reactor, connected?)?;
        let memory = self.memory(&writer)?;
        let replica = (writer, memory);
        let found = self.read(&replica).await?;
        Ok((replica, found))
    }

    /// The memory of a server whose ring has the same length.
    fn memory(&self, writer: &Writer) -> Result<MrRemote, LogError> {
        let (ring, bytes) = (self.cfg.ring, RING + self.cfg.ring);
        let memory = writer.offer().memory(bytes)?;
        let takes = Layout::new(1, bytes as usize)?.part(1).unwrap_or_default();
        let (has, takes) = (memory.get_size(), takes.len());
        if has == takes as u64 {
            return Ok(memory);
        }
        foreign(format!(
            "its memory has {has} bytes, and a ring of {ring} bytes takes {takes}: set the same ring here \
             and there"
        ))
    }

    /// A step towards a server, with its limit.
    pub(crate) async fn step<T>(
        &self,
        step: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, LogError> {
        let done = self.reactor.timeout(self.cfg.limit, step).await;
        Ok(done.ok_or(LogError::TimedOut)??)
    }

    /// Reads the log of a server. No other writer can change it any more.
    async fn read(&self, (writer, memory): &Replica) -> Result<Stored, LogError> {
        let read = writer.read_bytes(&self.pool, memory, 0..RING + self.cfg.ring);
        let mut bytes = self.step(read).await?;
        self.cfg.fault().mend_lengths(&mut bytes);
        Stored::decode(&bytes, self.cfg.ring)
    }

    /// Writes bytes, and then perhaps a word. Both are durable when it returns.
    async fn put(
        &self,
        (writer, memory): &Replica,
        (at, bytes): (u64, &[u8]),
        word: Option<(u64, u64)>,
    ) -> Result<(), LogError> {
        let word = word.map(|(at, word)| (at, word.to_le_bytes()));
        let put = writer.commit_bytes(&self.pool, (memory, at), bytes, word);
        self.step(put).await
    }

    pub(crate) async fn put_word(&self, to: &Replica, at: u64, word: u64) -> Result<(), LogError> {
        self.put(to, (SPARE, &[0]), Some((at, word))).await
    }

    pub(crate) async fn put_tail(
        &self,
        to: &Replica,
        epoch: u64,
        end: u64,
    ) -> Result<(), LogError> {
        self.put_word(to, TAIL, Tail { epoch, end }.word()).await
    }

    /// Names the log on a server without one. The first word comes last.
    pub(crate) async fn put_header(&self, to: &Replica, server: u64) -> Result<(), LogError> {
        let cfg = &self.cfg;
        let header = Header {
            key: cfg.key,
            log: self.state.look(|state| state.log),
            server,
            ring: cfg.ring,
            servers: cfg.servers.len() as u32,
            copies: cfg.copies as u32,
        }
        .encode();
        let first = Some((0, Header::FIRST));
        self.put(to, (8, &header[8..]), first).await
    }

    /// Gives a server a list, in these places one after the other. The last one is that of the set.
    pub(crate) async fn put_list(
        &self,
        to: &Replica,
        list: &List,
        places: &[usize],
    ) -> Result<(), LogError> {
        let bytes = list.encode();
        let one = &places[places.len() - 1..];
        let places = self
            .cfg
            .fault()
            .either(Fault::ListInPlace, || one, || places);
        for place in places {
            self.put(to, (LISTS[*place], &bytes), None).await?;
        }
        Ok(())
    }

    /// Gives a server the present list, and never writes over the one that it has.
    pub(crate) async fn put_present(&self, to: &Replica, found: &Stored) -> Result<(), LogError> {
        let present = |state: &State| (state.lists.list.clone(), state.lists.at);
        let (list, at) = self.state.look(present);
        let number = found.list.as_ref().map(|list| list.number);
        if found.list_at != at {
            return self.put_list(to, &list, &[at]).await;
        }
        if number == Some(list.number) {
            return Ok(());
        }
        self.put_list(to, &list, &[1 - at, at]).await
    }

    /// Makes the words durable that a server shows: their flush may have been lost with the
    /// connection that has written them. The page "Building a log" explains why records need no
    /// such step.
    pub(crate) async fn put_again(&self, to: &Replica, found: &Stored) -> Result<(), LogError> {
        let (Some(header), Some(list)) = (&found.header, &found.list) else {
            return Ok(());
        };
        if self.cfg.fault() == Fault::TrustsWords {
            return Ok(());
        }
        self.put_word(to, HEAD, found.head).await?;
        // The same bytes, so that none of them is torn.
        self.put(to, (LISTS[found.list_at], &list.encode()), None)
            .await?;
        self.put(to, (0, &header.encode()), None).await
    }

    /// Waits until no other server has the gate, and takes it.
    pub(crate) async fn gate(&self) -> Result<Gate<'_>, LogError> {
        let take = |state: &mut State| match state.why() {
            Some(why) => Some(Err(why)),
            None if state.is_gated => None,
            None => {
                state.is_gated = true;
                Some(Ok(Gate(self)))
            }
        };
        let taken = self.state.change_when(FOREVER, take).await;
        taken.unwrap_or(Err(LogError::TimedOut))
    }

    async fn join(&self, n: usize, to: Replica, found: Stored) -> Result<ReplicaId, LogError> {
        let kind = self.state.look(|state| state.kind(n, &found, &self.cfg))?;
        let change = match kind {
            Kind::Undone => {
                self.put_word(&to, 0, 0).await?;
                return foreign("its copy was of a change that was given up, and is cleared");
            }
            Kind::Takes(place) => Some(self.begin_change(n, place).await?),
            Kind::Member | Kind::Created(_) => None,
        };
        let mut joining = self.begin(to, &found, &kind).await?;
        while self.left(&joining) > GROUP {
            self.catch_up(&mut joining).await?;
        }
        if let Some(change) = &change {
            change.fence().await?;
        }
        // The last records are copied while no other ones are committed.
        let is_gated = self.cfg.fault() != Fault::JoinsUngated;
        let _gate = if is_gated {
            Some(self.gate().await?)
        } else {
            None
        };
        // Appends wait at the gate, and not as long as their limit.
        let last = async {
            self.catch_up(&mut joining).await?;
            match (change, kind) {
                (Some(change), _) => change.finish(joining).await,
                (None, Kind::Created(server)) => self.create(n, joining, server).await,
                (None, _) => self.finish_join(n, joining, &found).await,
            }
        };
        let joined = self.reactor.timeout(self.cfg.limit / 4, last).await;
        if !is_gated {
            self.bell.ring();
        }
        joined.unwrap_or(Err(LogError::TimedOut))
    }

    fn left(&self, joining: &Joining) -> u64 {
        let committed = self.state.look(|state| state.committed);
        committed.saturating_sub(joining.at)
    }

    /// Looks for the records of this log that a server has. It shows no others from then on.
    async fn begin(&self, to: Replica, found: &Stored, kind: &Kind) -> Result<Joining, LogError> {
        let fault = self.cfg.fault();
        self.put_again(&to, found).await?;
        let keeps_count = fault == Fault::KeepsCount && found.header.is_none();
        let has = |state: &State| match state.head.max(found.head) {
            // Each server was in the set before.
            _ if keeps_count && state.counters.joins >= state.servers.len() as u64 => {
                state.committed
            }
            from if from > state.committed => state.head,
            from => {
                let (end, shown) = (state.committed, state.committed.min(found.tail.end));
                let end = fault.either(Fault::TrustsRecords, || end, || shown);
                state.ring.common(&found.ring, from, end)
            }
        };
        let at = self.state.look(has);
        if fault == Fault::CountsShown {
            self.count_shown(found);
        }
        if fault == Fault::HeaderFirst && found.header.is_none() {
            self.put_header_first(&to, kind).await?;
        }
        // It shows no record that is going to be overwritten.
        if found.tail.end > at && fault != Fault::NoSetBack {
            self.put_tail(&to, found.tail.epoch, at).await?;
        }
        Ok(Joining {
            to,
            head: found.head,
            at,
        })
    }

    /// A fault: the server counts for the records that were read there.
    fn count_shown(&self, found: &Stored) {
        let last = self
            .state
            .look(|state| state.commits.last().next().map(|of| of.id));
        let has = last.map(|id| self.set.durable(self.set.outcome(id)));
        let mut has = has.unwrap_or_default();
        has.retain(|id| self.set.is_able(*id));
        if has.len() + 1 < self.cfg.copies {
            return;
        }
        self.state.change(|state| {
            let shown = state.ring.common(&found.ring, state.head, state.committed);
            state.durable = state.durable.max(shown);
        });
    }

    /// Gives a server the records that are committed.
    async fn catch_up(&self, joining: &mut Joining) -> Result<(), LogError> {
        let (mut kept, end) = self.state.look(|state| (state.head, state.committed));
        let Joining { to, head, at, .. } = joining;
        if kept < *head {
            // It has truncated more than the log. It shows the records before its own ones when it
            // has them, and keeps its own ones meanwhile: they may be acknowledged.
            self.copy(to, kept, *head).await?;
            // The room of those before this head may have been used again.
            kept = self.state.look(|state| state.head);
        }
        if *head != kept {
            if self.cfg.fault() == Fault::HeadLast {
                self.copy(to, (*at).max(kept), end).await?;
            }
            self.put_word(to, HEAD, kept).await?;
            (*head, *at) = (kept, (*at).max(kept));
        }
        if *at < end && self.cfg.fault() != Fault::JoinsEarly {
            self.copy(to, *at, end).await?;
            *at = end;
        }
        Ok(())
    }

    async fn copy(&self, to: &Replica, from: u64, end: u64) -> Result<(), LogError> {
        let mut at = from;
        while at < end {
            let piece = |state: &State| state.ring.piece(at, end.min(at + GROUP)).to_vec();
            let piece = self.state.look(piece);
            let place = RING + at % self.cfg.ring;
            self.put(to, (place, &piece), None).await?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Adds a server to the set that has all records.
    async fn finish_join(
        &self,
        n: usize,
        joining: Joining,
        found: &Stored,
    ) -> Result<ReplicaId, LogError> {
        // It may have been replaced meanwhile.
        let takes_back = self.cfg.fault() == Fault::TakesBack;
        let is_listed = |state: &State| takes_back || state.servers[n].role == Role::Listed;
        if !self.state.look(is_listed) {
            return foreign("it is being replaced");
        }
        self.put_present(&joining.to, found).await?;
        self.add(n, joining.to).await
    }

    /// Gives a server of a log that is created its first copy. The header comes last: until then it
    /// is a server without a log, whatever it has.
    async fn create(&self, n: usize, joining: Joining, server: u64) -> Result<ReplicaId, LogError> {
        let Joining { to, at, .. } = joining;
        let present = |state: &mut State| {
            state.servers[n].assigned = None;
            state.servers[n].server = Some(server);
            (state.lists.list.clone(), state.lists.at)
        };
        let (list, place) = self.state.change(present);
        self.put_first(&to, (at, server), &list, place).await?;
        self.add(n, to).await
    }

    /// Gives a server its first tail, list and header. All of them are durable when it returns.
    pub(crate) async fn put_first(
        &self,
        to: &Replica,
        (at, server): (u64, u64),
        list: &List,
        place: usize,
    ) -> Result<(), LogError> {
        let now = to.0.read_bytes(&self.pool, &to.1, 0..Header::LEN as u64);
        let is_blank = Header::decode(&self.step(now).await?)?.is_none();
        if !is_blank && self.cfg.fault() != Fault::HeaderFirst {
            return Err(LogError::Settings(SAME.to_owned()));
        }
        self.put_tail(to, self.cfg.epoch, at).await?;
        // Both places: there may be a list from an earlier use.
        self.put_list(to, list, &[1 - place, place]).await?;
        self.put_header(to, server).await
    }

    /// A fault: a server is a witness before it has a record.
    async fn put_header_first(&self, to: &Replica, kind: &Kind) -> Result<(), LogError> {
        let server = Identity::new(self.cfg.key, self.cfg.epoch)?.instance;
        let list = self.state.change(|state| {
            let mut members = state.lists.counted();
            if let Kind::Takes(place) = kind {
                members[*place].server = server;
            }
            List {
                number: state.lists.next_number(),
                members,
                change: None,
            }
        });
        self.put_list(to, &list, &[0, 1]).await?;
        self.put_header(to, server).await
    }

    async fn add(&self, n: usize, to: Replica) -> Result<ReplicaId, LogError> {
        let id = self.step(self.set.add_writer(to.0, to.1)).await?;
        self.state.change(|state| self.added(state, n, id));
        Ok(id)
    }

    pub(crate) fn added(&self, state: &mut State, n: usize, id: ReplicaId) {
        state.recount = self.cfg.fault() != Fault::NoRecount;
        state.servers[n].member = Some(id);
        state.counters.joins += 1;
        if self.cfg.fault() == Fault::CountsAgain {
            state.count_again();
        }
    }
}
