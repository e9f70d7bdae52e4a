//! A replica, as the writer sees it: connected, read, brought up to date, a member of the set; and
//! again after each end.

use std::convert::Infallible;
use std::ops::Range;
use std::time::Duration;

use rpma::commit::{ReplicaId, WriterCfg};
use rpma::reconnect::{self, ReconnectCfg, ToWriter, Why};
use rpma::{Error, FlushType, Identity, MrRemote, Offer, PeerCfg, RefusalCode};
use rpma_async::{Reconnect, Writer};

use super::format::{Found, HEAD, Header, RING, SPARE, TAIL, Tail};
use super::log::{GROUP, Phase, Shared, State};
use super::{Fault, LogError};

/// After a refusal that may stay.
const REST: Duration = Duration::from_secs(1);

/// Two copies of a record would be one.
pub(super) const SAME: &str = "two of the addresses lead to one replica";

type Reconnects = Reconnect<ToWriter>;

impl Shared {
    /// Keeps replica `n` in the set, until the log ends.
    pub(super) async fn keep(&self, n: usize) {
        let mut server = match self.reconnects(n) {
            Ok(server) => server,
            Err(error) => return self.end(error),
        };
        loop {
            let Err(error) = self.visit(n, &mut server).await;
            log::info!("replica {n}: {error}");
            match error {
                LogError::Fenced { .. }
                | LogError::Arguments(_)
                | LogError::Exists
                | LogError::Nothing => {
                    return self.end(error);
                }
                error => self.change(|state| state.away[n] = error.to_string()),
            }
        }
    }

    fn reconnects(&self, n: usize) -> Result<Reconnects, LogError> {
        let mut commits = WriterCfg::new(self.cfg.method);
        commits.set_parts(1)?;
        if self.cfg.fault == Fault::Visible {
            commits.set_flush_type(FlushType::Visibility)?;
        }
        let mut offer = Offer::new(&PeerCfg::new());
        offer.set_identity(self.identity);
        let (addrs, to_writer) = ([self.cfg.replicas[n]], ToWriter::new(&commits));
        let mut server =
            reconnect::Reconnect::to_addrs(self.reactor.peer(), &addrs, offer, to_writer)?;
        let mut cfg = ReconnectCfg::new();
        // So a call that waits as long as its limit can give the reason.
        server.set_cfg(cfg.set_limit(self.cfg.limit / 2));
        Ok(Reconnect::new(&self.reactor, server)?)
    }

    /// One connection: returns when it is over.
    async fn visit(&self, n: usize, server: &mut Reconnects) -> Result<Infallible, LogError> {
        let writer = match server.connect(&self.conn_cfg).await {
            Ok(writer) => Writer::new(&self.reactor, writer)?,
            Err(gave_up) => match &gave_up.why {
                Why::Refused(refusal)
                    if matches!(refusal.code(), RefusalCode::Taken | RefusalCode::OldEpoch) =>
                {
                    return Err(LogError::Fenced {
                        epoch: refusal.epoch(),
                    });
                }
                _ => {
                    self.rest().await;
                    return Err(LogError::Rpma(gave_up.to_string()));
                }
            },
        };
        let Some(memory) = writer.offer().regions().first().copied() else {
            self.rest().await;
            return Err(LogError::Foreign("the server offers no memory".to_owned()));
        };
        let found = self.read(&writer, &memory).await?;
        self.change(|state| state.saw(n, found.clone(), &self.cfg))?;
        self.until(Duration::MAX, |state| {
            matches!(state.phase, Phase::Open).then_some(())
        })
        .await?;
        let id = self.join(writer, memory, found).await?;
        let failure = self.set.gone(id).await?;
        self.change(|state| state.members.retain(|member| *member != id));
        self.set.set_aside(id, self.cfg.limit).await?;
        Err(LogError::Rpma(failure.map_or(
            "the server ended the connection".to_owned(),
            |of| of.to_string(),
        )))
    }

    async fn rest(&self) {
        let _ = self
            .reactor
            .timeout(REST, std::future::pending::<()>())
            .await;
    }

    /// Reads the log of a replica. No other writer can change it any more.
    async fn read(&self, writer: &Writer, memory: &MrRemote) -> Result<Found, LogError> {
        let (needed, has) = (RING + self.cfg.ring, memory.get_size());
        if has < needed {
            let why = format!("the server offers {has} bytes, and the log has {needed}");
            return Err(LogError::Foreign(why));
        }
        let mut bytes = Vec::with_capacity(needed as usize);
        while (bytes.len() as u64) < needed {
            let at = bytes.len() as u64;
            let range = at..needed.min(at + GROUP);
            bytes.extend(self.fetch((writer, memory), range).await?);
        }
        Found::decode(&bytes, self.cfg.ring)
    }

    async fn fetch(
        &self,
        (writer, memory): (&Writer, &MrRemote),
        range: Range<u64>,
    ) -> Result<Vec<u8>, LogError> {
        let from = memory.slice(range)?;
        let read = async {
            let mut to = self.pool.lease().await;
            to.truncate(from.len() as usize);
            Ok::<_, Error>(writer.read(to, from)?.await?.to_vec())
        };
        let read = self.reactor.timeout(self.cfg.limit, read).await;
        Ok(read.ok_or(LogError::TimedOut)??)
    }

    /// Writes bytes, and then perhaps a word. Both are durable when it returns.
    async fn put(
        &self,
        (writer, memory): (&Writer, &MrRemote),
        (at, bytes): (u64, &[u8]),
        word: Option<(u64, u64)>,
    ) -> Result<(), LogError> {
        let to = memory.slice(at..at + bytes.len() as u64)?;
        let word = match word {
            Some((at, word)) => Some((memory.slice(at..at + 8)?, word.to_le_bytes())),
            None => None,
        };
        let put = async {
            let mut from = self.pool.lease().await;
            from.truncate(bytes.len());
            from.copy_from_slice(bytes);
            let ticket = writer.commit([(to, from.freeze())], word)?;
            writer.durable(ticket).await
        };
        let put = self.reactor.timeout(self.cfg.limit, put).await;
        Ok(put.ok_or(LogError::TimedOut)??)
    }

    /// Names the log on a replica without one. The first word comes last.
    async fn put_header(&self, to: (&Writer, &MrRemote)) -> Result<(), LogError> {
        let replica = Identity::new(self.cfg.key, self.cfg.epoch)?.instance;
        let log = self.with(|state| state.log);
        let header = Header {
            key: self.cfg.key,
            log,
            replica,
            ring: self.cfg.ring,
        }
        .encode();
        self.put(to, (8, &header[8..]), Some((0, Header::MAGIC)))
            .await
    }

    /// Brings a replica up to date, and makes it a member of the set.
    async fn join(
        &self,
        writer: Writer,
        memory: MrRemote,
        found: Found,
    ) -> Result<ReplicaId, LogError> {
        let to = (&writer, &memory);
        let (spare, fault) = ((SPARE, &[0][..]), self.cfg.fault);
        let (mut head, mut has_header) = (found.head, found.header.is_some());
        // What it has of this log. The rest of its records is wrong, or missing.
        let mut at = self.with(|state| match state.head {
            kept if kept < found.head => kept,
            kept => state
                .ring
                .common(&found.ring, kept, state.committed.min(found.tail.end)),
        });
        if fault == Fault::HeaderFirst && !has_header {
            self.put_header(to).await?;
            has_header = true;
        }
        // It shows no record that is going to be overwritten.
        if found.tail.end > at && fault != Fault::NoSetBack {
            let tail = Tail {
                end: at,
                ..found.tail
            };
            self.put(to, spare, Some((TAIL, tail.word()))).await?;
        }
        loop {
            let left = self.with(|state| state.committed.saturating_sub(at));
            // The last records are copied while no other ones are committed.
            let is_last = left <= GROUP;
            let gate = match is_last && fault != Fault::JoinsUngated {
                true => Some(self.gate.lock().await),
                false => None,
            };
            let (kept, end) = self.with(|state| (state.head, state.committed));
            if head != kept {
                self.put(to, spare, Some((HEAD, kept))).await?;
                (head, at) = (kept, at.max(kept));
            }
            while at < end && fault != Fault::JoinsEarly {
                let piece = |state: &mut State| state.ring.piece(at, end.min(at + GROUP)).to_vec();
                let piece = self.with(piece);
                self.put(to, (RING + at % self.cfg.ring, &piece), None)
                    .await?;
                at += piece.len() as u64;
            }
            if !is_last {
                continue;
            }
            if !has_header {
                let now = self.fetch(to, 0..Header::LEN as u64).await?;
                if Header::decode(&now)?.is_some() {
                    return Err(LogError::Arguments(SAME.to_owned()));
                }
                // Last: until then it is a replica without a log, whatever it has.
                let tail = Tail {
                    epoch: self.cfg.epoch,
                    end: at,
                };
                self.put(to, spare, Some((TAIL, tail.word()))).await?;
                self.put_header(to).await?;
            }
            let added = self.add(writer, memory);
            drop(gate);
            return added;
        }
    }

    fn add(&self, writer: Writer, memory: MrRemote) -> Result<ReplicaId, LogError> {
        let writer = writer
            .into_inner()
            .map_err(|_| LogError::Rpma("the writer is in use".to_owned()))?;
        let id = self
            .set
            .add(writer, memory)
            .map_err(|refused| refused.error)?;
        self.change(|state| {
            state.members.push(id);
            state.recount = self.cfg.fault != Fault::NoRecount;
        });
        Ok(id)
    }
}
