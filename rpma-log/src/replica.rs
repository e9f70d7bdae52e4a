//! A server, as the writer sees it: connected, read, brought up to date, a member of the set; and
//! again after each end.

use std::convert::Infallible;

use rpma::commit::{ReplicaId, WriterCfg};
use rpma::reconnect::ReconnectCfg;
use rpma::serve::Layout;
use rpma::{ConnCfg, Error, Identity, MrRemote};
use rpma_async::{Reconnect, Writer};

use crate::fault::Fault;
use crate::format::{HEAD, Header, RING, SPARE, Stored, TAIL, Tail, foreign};
use crate::log::{FOREVER, Shared};
use crate::state::{SAME, State};
use crate::{GROUP, LogError};

/// A server that is connected.
type Replica = (Writer, MrRemote);

/// A server that is brought up to date.
struct Joining {
    to: Replica,
    /// The head that it shows.
    head: u64,
    /// It has the records up to here.
    at: u64,
    has_header: bool,
}

/// Nothing is committed while there is one.
struct Gate<'a>(&'a Shared);

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
            let Err(error) = self.visit(n, &mut server).await;
            log::info!("server {n}: {error}");
            let is_final = self.state.change(|state| {
                state.servers[n].member = None;
                state.servers[n].site = None;
                state.servers[n].away = error.to_string();
                match error {
                    LogError::Fenced { .. } | LogError::Exists { .. } | LogError::Nothing => true,
                    // A server that comes back so ends no log that the others have.
                    LogError::Settings(_) => !state.is_ours,
                    _ => false,
                }
            });
            if is_final {
                return self.end(error);
            }
        }
    }

    fn server(&self, n: usize) -> Result<Reconnect, LogError> {
        let (cfg, mut commits) = (&self.cfg, WriterCfg::new(self.cfg.method));
        commits.set_parts(1)?;
        cfg.fault().set_writers(&mut commits)?;
        let (addr, identity) = (cfg.servers[n], self.identity);
        let mut server = Reconnect::to_writer(&self.reactor, addr, identity, &commits)?;
        // So a call that waits as long as its limit can give the reason.
        server.set_cfg(ReconnectCfg::new().set_limit(cfg.limit / 2));
        Ok(server)
    }

    /// One connection: returns when it is over.
    async fn visit(&self, n: usize, server: &mut Reconnect) -> Result<Infallible, LogError> {
        let mut cfg = ConnCfg::new();
        cfg.set_keep_alive(Some(self.cfg.silence))?;
        let writer = Writer::new(&self.reactor, server.connect(&cfg).await?)?;
        let memory = self.memory(&writer)?;
        let replica = (writer, memory);
        let found = self.read(&replica).await?;
        let site = replica.0.offer().site();
        let saw = |state: &mut State| state.saw(n, (found.clone(), site), &self.cfg);
        self.state.change(saw)?;
        self.bell.ring();
        self.until(FOREVER, |of| of.is_open.then_some(())).await?;
        let id = self.join(n, replica, found).await?;
        let failure = self.set.gone(id).await?;
        self.set.set_aside(id, self.cfg.limit).await?;
        let ended = || LogError::Rpma("the server ended the connection".to_owned());
        Err(failure.map_or_else(ended, |failure| Error::from(failure).into()))
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
    async fn step<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Result<T, LogError> {
        let done = self.reactor.timeout(self.cfg.limit, step).await;
        Ok(done.ok_or(LogError::TimedOut)??)
    }

    /// Reads the log of a server. No other writer can change it any more.
    async fn read(&self, (writer, memory): &Replica) -> Result<Stored, LogError> {
        let read = writer.read_bytes(&self.pool, memory, 0..RING + self.cfg.ring);
        Stored::decode(&self.step(read).await?, self.cfg.ring)
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

    async fn put_word(&self, to: &Replica, at: u64, word: u64) -> Result<(), LogError> {
        self.put(to, (SPARE, &[0]), Some((at, word))).await
    }

    async fn put_tail(&self, to: &Replica, epoch: u64, end: u64) -> Result<(), LogError> {
        self.put_word(to, TAIL, Tail { epoch, end }.word()).await
    }

    /// Names the log on a server without one. The first word comes last.
    async fn put_header(&self, to: &Replica) -> Result<(), LogError> {
        let cfg = &self.cfg;
        let header = Header {
            key: cfg.key,
            log: self.state.look(|state| state.log),
            server: Identity::new(cfg.key, cfg.epoch)?.instance,
            ring: cfg.ring,
            servers: cfg.servers.len() as u32,
            copies: cfg.copies as u32,
        }
        .encode();
        let first = Some((0, Header::FIRST));
        self.put(to, (8, &header[8..]), first).await
    }

    /// Waits until no other server has the gate, and takes it.
    async fn gate(&self) -> Result<Gate<'_>, LogError> {
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

    /// Brings a server up to date, and makes it a member of the set.
    async fn join(&self, n: usize, to: Replica, found: Stored) -> Result<ReplicaId, LogError> {
        let mut joining = self.begin(to, &found).await?;
        while self.left(&joining) > GROUP {
            self.catch_up(&mut joining).await?;
        }
        // The last records are copied while no other ones are committed.
        let is_gated = self.cfg.fault() != Fault::JoinsUngated;
        let _gate = if is_gated {
            Some(self.gate().await?)
        } else {
            None
        };
        // Appends wait at the gate, and not as long as their limit.
        let last = self.finish_join(n, joining);
        let joined = self.reactor.timeout(self.cfg.limit / 4, last).await;
        joined.unwrap_or(Err(LogError::TimedOut))
    }

    fn left(&self, joining: &Joining) -> u64 {
        let committed = self.state.look(|state| state.committed);
        committed.saturating_sub(joining.at)
    }

    /// Looks for the records of this log that a server has. It shows no others from then on.
    async fn begin(&self, to: Replica, found: &Stored) -> Result<Joining, LogError> {
        let fault = self.cfg.fault();
        let mut has_header = found.header.is_some();
        let has = |state: &State| match state.head.max(found.head) {
            from if from > state.committed => state.head,
            from => {
                let end = state.committed.min(found.tail.end);
                state.ring.common(&found.ring, from, end)
            }
        };
        let at = self.state.look(has);
        if fault == Fault::HeaderFirst && !has_header {
            self.put_header(&to).await?;
            has_header = true;
        }
        // It shows no record that is going to be overwritten.
        if found.tail.end > at && fault != Fault::NoSetBack {
            self.put_tail(&to, found.tail.epoch, at).await?;
        }
        Ok(Joining {
            to,
            head: found.head,
            at,
            has_header,
        })
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

    /// Gives a server the last records, and adds it to the set.
    async fn finish_join(&self, n: usize, mut joining: Joining) -> Result<ReplicaId, LogError> {
        self.catch_up(&mut joining).await?;
        let Joining {
            to, at, has_header, ..
        } = joining;
        if !has_header {
            let now = to.0.read_bytes(&self.pool, &to.1, 0..Header::LEN as u64);
            if Header::decode(&self.step(now).await?)?.is_some() {
                return Err(LogError::Settings(SAME.to_owned()));
            }
            // Last: until then it is a server without a log, whatever it has.
            self.put_tail(&to, self.cfg.epoch, at).await?;
            self.put_header(&to).await?;
        }
        let id = self.step(self.set.add_writer(to.0, to.1)).await?;
        self.state.change(|state| {
            state.recount = self.cfg.fault() != Fault::NoRecount;
            state.servers[n].member = Some(id);
            state.counters.joins += 1;
        });
        Ok(id)
    }
}
