//! A log of another design: it has no pointer. A record is in the log if its checksum is right, and
//! if the epoch of its writer is not lower than that of the record before it. A new writer appends a
//! mark, so that its log is newer than one with a record that too few servers have.

use std::time::Duration;

use rpma::commit::{Limits, Method, WriterCfg};
use rpma::pmem::PmemMap;
use rpma::reconnect::ReconnectCfg;
use rpma::serve::{self, Layout};
use rpma::{ConnCfg, Identity, MrRemote, MrUsage, Peer};
use rpma_async::{Pool, Reactor, Reconnect, Writer};
use rpma_scenes::{self as scenes, Ability, Appended, Opening, Record, Result, Server, Shape};
use tokio::sync::Mutex;

const SERVERS: usize = 3;
const COPIES: usize = 2;
/// A slot has the checksum and the length of its record, the number of the slot, the epoch, and the
/// record.
const SLOT: usize = 128;
const HEAD: usize = 24;
const SLOTS: usize = 48;
const LOG: usize = SLOT * SLOTS;
const LIMIT: Duration = Duration::from_secs(5);

pub(crate) enum Sums {
    Right,
    /// Of logs with one epoch the first server's is taken, and not the longest one.
    TakesFirst,
}

impl scenes::Subject for Sums {
    type Log = Open;

    fn shape(&self) -> Shape {
        let len = Layout::new(1, LOG).expect("a layout").len();
        // The other slots are for marks.
        Shape::new(SERVERS, COPIES, len)
            .with_records(SLOT - HEAD, SLOTS / 2)
            .without(Ability::Returns)
            .without(Ability::Refills)
            .without(Ability::Replaces)
            .without(Ability::Truncates)
    }

    async fn serve(&self, server: Server) -> Result<()> {
        let layout = Layout::new(1, LOG)?;
        let memory = PmemMap::open(&server.path, layout.len())?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let mut cfg = serve::ServerCfg::new();
        cfg.set_commits(Some(Limits::new(8, 1, LOG as u32)?));
        let reactor = Reactor::spawn(&Peer::at(&server.addr.ip().to_string())?)?;
        let server = serve::Server::listen(server.addr, &memory, &layout, usage, &cfg)?;
        let mut server = rpma_async::Server::new(&reactor, server)?;
        Ok(server.serve(drop).await?)
    }

    async fn open(&self, opening: Opening) -> Result<Open> {
        let mut state = State::connect(&opening).await?;
        state.adopt(opening.epoch, self).await?;
        Ok(Open(Mutex::new(state)))
    }
}

/// A record, or a mark if it has no bytes.
#[derive(Clone, PartialEq, Eq)]
struct Entry {
    epoch: u64,
    record: Vec<u8>,
}

impl Entry {
    fn encode(&self, number: usize) -> [u8; SLOT] {
        let (mut bytes, len) = ([0; SLOT], self.record.len());
        bytes[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&(number as u64).to_le_bytes());
        bytes[16..HEAD].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[HEAD..HEAD + len].copy_from_slice(&self.record);
        let sum = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], number: usize) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (sum, len) = (word(0) as u32, (word(0) >> 32) as usize);
        let entry = Self {
            epoch: word(16),
            record: bytes.get(HEAD..HEAD + len)?.to_vec(),
        };
        let is_whole = sum == crc32c::crc32c(&bytes[4..]) && word(8) == number as u64;
        // Zeros are no entry.
        (is_whole && entry.epoch > 0).then_some(entry)
    }
}

/// The entries of a server's log.
fn entries(memory: &[u8]) -> Vec<Entry> {
    let mut epoch = 0;
    let slots = memory.chunks(SLOT).enumerate();
    let entries = slots.map_while(|(number, slot)| {
        let entry = Entry::decode(slot, number).filter(|entry| entry.epoch >= epoch)?;
        epoch = entry.epoch;
        Some(entry)
    });
    entries.collect()
}

struct Replica {
    writer: Writer,
    memory: MrRemote,
    found: Vec<u8>,
}

struct State {
    reactor: Reactor,
    pool: Pool,
    replicas: Vec<Replica>,
    entries: Vec<Entry>,
    epoch: u64,
}

impl State {
    async fn connect(opening: &Opening) -> Result<Self> {
        let peer = Peer::at(&opening.addr.to_string())?;
        let reactor = Reactor::spawn(&peer)?;
        let mut state = Self {
            pool: Pool::new(&peer, SLOT, 8)?,
            reactor,
            replicas: Vec::new(),
            entries: Vec::new(),
            epoch: opening.epoch,
        };
        let mut commits = WriterCfg::new(Method::Server);
        commits.set_parts(1)?;
        let identity = Identity::new(1, opening.epoch)?;
        let mut why = String::new();
        for addr in &opening.servers {
            let mut connects = Reconnect::to_writer(&state.reactor, *addr, identity, &commits)?;
            connects.set_cfg(ReconnectCfg::new().set_limit(LIMIT));
            match state.join(&mut connects).await {
                Ok(replica) => state.replicas.push(replica),
                Err(error) if error.other_epoch().is_some() => return Err(error.into()),
                Err(error) => why = error.to_string(),
            }
        }
        match state.replicas.len() >= COPIES.max(SERVERS - COPIES + 1) {
            true => Ok(state),
            false => Err(format!("too few servers: {why}").into()),
        }
    }

    async fn join(&self, connects: &mut Reconnect) -> rpma::Result<Replica> {
        let mut cfg = ConnCfg::new();
        cfg.set_keep_alive(Some(2 * LIMIT))?;
        let writer = Writer::new(&self.reactor, connects.connect(&cfg).await?)?;
        let memory = writer.offer().memory(LOG as u64)?;
        let read = writer.read_bytes(&self.pool, &memory, 0..LOG as u64);
        let found = self.reactor.timeout(LIMIT, read).await;
        let found = found.unwrap_or(Err(rpma::Error::TimedOut("it was not read")))?;
        Ok(Replica {
            writer,
            memory,
            found,
        })
    }

    /// Goes on from the newest log: enough servers have it, and the mark of this writer.
    async fn adopt(&mut self, epoch: u64, subject: &Sums) -> Result<()> {
        let logs = self.replicas.iter().rev();
        let logs = logs.map(|replica| entries(&replica.found));
        let newest = logs.max_by_key(|log| {
            let len = match subject {
                Sums::Right => log.len(),
                Sums::TakesFirst => 0,
            };
            (log.last().map_or(0, |last| last.epoch), len)
        });
        self.entries = newest.unwrap_or_default();
        let record = Vec::new();
        self.entries.push(Entry { epoch, record });
        for number in 0..self.entries.len() {
            self.write(number).await?;
        }
        Ok(())
    }

    /// Writes an entry to each server that does not have it. A server that fails is left.
    async fn write(&mut self, number: usize) -> Result<()> {
        let Some(entry) = self.entries.get(number).filter(|_| number < SLOTS) else {
            return Err("the log is full".into());
        };
        let (bytes, at) = (entry.encode(number), number * SLOT);
        for mut replica in std::mem::take(&mut self.replicas) {
            let there = &mut replica.found[at..at + SLOT];
            if there == bytes {
                self.replicas.push(replica);
                continue;
            }
            there.copy_from_slice(&bytes);
            let to = (&replica.memory, at as u64);
            let put = replica.writer.commit_bytes(&self.pool, to, &bytes, None);
            if let Some(Ok(())) = self.reactor.timeout(LIMIT, put).await {
                self.replicas.push(replica);
            }
        }
        match self.replicas.len() >= COPIES {
            true => Ok(()),
            false => Err(format!("{} servers have it", self.replicas.len()).into()),
        }
    }
}

pub(crate) struct Open(Mutex<State>);

impl scenes::Log for Open {
    async fn append(&self, record: &[u8]) -> Appended {
        let mut state = self.0.lock().await;
        let (number, epoch) = (state.entries.len(), state.epoch);
        if state.replicas.len() < COPIES || number == SLOTS {
            return Appended::Refused("too few servers, or no room".to_owned());
        }
        if record.is_empty() || record.len() > SLOT - HEAD {
            return Appended::Refused("it is a mark, or longer than a slot".to_owned());
        }
        let record = record.to_vec();
        state.entries.push(Entry { epoch, record });
        match state.write(number).await {
            Ok(()) => Appended::Durable(number as u64),
            Err(error) => {
                state.entries.pop();
                Appended::Unknown(error.to_string())
            }
        }
    }

    async fn read_all(&self) -> Result<Vec<Record>> {
        let state = self.0.lock().await;
        let entries = state.entries.iter().enumerate();
        let records = entries.filter(|(_, entry)| !entry.record.is_empty());
        let records = records.map(|(at, entry)| Record {
            at: at as u64,
            bytes: entry.record.clone(),
        });
        Ok(records.collect())
    }
}
