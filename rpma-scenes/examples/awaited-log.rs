//! An awaited log under the scenes: one server has it.
//!
//! `cargo run -p rpma-scenes --features sim --example awaited-log`

use std::time::Duration;

use rpma::commit::{Limits, Method, WriterCfg};
use rpma::pmem::PmemMap;
use rpma::reconnect::ReconnectCfg;
use rpma::serve::{self, Layout};
use rpma::{ConnCfg, Identity, MrRemote, MrUsage, Peer};
use rpma_async::{Pool, Reactor, Reconnect, Writer};
use rpma_scenes::{
    self as scenes, Ability, Appended, Opening, Record, Result, Server, Shape, Suite,
};
use tokio::sync::Mutex;

const LIMIT: Duration = Duration::from_secs(10);
/// 8 bytes of tail, and from byte 64 on slots of 64 bytes. A slot has the length of its record in 8
/// bytes, and the record.
const LOG: usize = 4096;
const SLOT: usize = 64;
const RECORDS: usize = LOG / SLOT - 1;

/// An awaited log.
#[derive(Debug)]
pub struct AwaitedLog;

impl scenes::Subject for AwaitedLog {
    type Log = SharedLog;

    fn shape(&self) -> Shape {
        let len = Layout::new(1, LOG).expect("a layout").len();
        // Without its server nothing goes on: the suite knows that from these numbers.
        Shape::new(1, 1, len)
            .with_records(SLOT - 8, RECORDS)
            .without(Ability::Truncates)
    }

    /// The program of the server, as a task. Its processor makes each commit durable. It cuts the old
    /// writer off before it accepts the next one.
    async fn serve(&self, server: Server) -> Result<()> {
        let layout = Layout::new(1, LOG)?;
        let memory = PmemMap::open(&server.path, layout.len())?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let mut cfg = serve::ServerCfg::new();
        cfg.set_commits(Some(Limits::new(4, 1, LOG as u32)?));
        let reactor = Reactor::spawn(&Peer::at(&server.addr.ip().to_string())?)?;
        let server = serve::Server::listen(server.addr, &memory, &layout, usage, &cfg)?;
        let mut server = rpma_async::Server::new(&reactor, server)?;
        Ok(server.serve(drop).await?)
    }

    async fn open(&self, opening: Opening) -> Result<SharedLog> {
        let peer = Peer::at(&opening.addr.to_string())?;
        let reactor = Reactor::spawn(&peer)?;
        let mut commits = WriterCfg::new(Method::Server);
        commits.set_parts(1)?;
        let identity = Identity::new(1, opening.epoch)?;
        let mut connects = Reconnect::to_writer(&reactor, opening.servers[0], identity, &commits)?;
        connects.set_cfg(ReconnectCfg::new().set_limit(LIMIT));
        let writer = Writer::new(&reactor, connects.connect(&ConnCfg::new()).await?)?;
        let memory = writer.offer().memory(LOG as u64)?;
        let pool = Pool::new(&peer, LOG, 1)?;
        let read = writer.read_bytes(&pool, &memory, 0..LOG as u64);
        let here = reactor.timeout(LIMIT, read).await.ok_or("no answer")??;
        let open = Open {
            reactor,
            pool,
            count: u64::from_le_bytes(here[..8].try_into()?) as usize,
            here,
            writer,
            memory,
            has_failed: false,
        };
        // The records may only have been visible: they are durable before they are read.
        open.commit(0).await?;
        Ok(SharedLog(Mutex::new(open)))
    }
}

#[derive(Debug)]
struct Open {
    reactor: Reactor,
    pool: Pool,
    writer: Writer,
    memory: MrRemote,
    /// The whole log.
    here: Vec<u8>,
    count: usize,
    /// The outcome of a record is unknown: nothing is appended after it.
    has_failed: bool,
}

impl Open {
    /// Makes the slots from `first` on durable, and then the tail.
    async fn commit(&self, first: usize) -> Result<()> {
        let (from, to) = (SLOT * (first + 1), SLOT * (self.count.max(1) + 1));
        let tail = Some((0, (self.count as u64).to_le_bytes()));
        let at = (&self.memory, from as u64);
        let bytes = &self.here[from..to];
        let commit = self.writer.commit_bytes(&self.pool, at, bytes, tail);
        let done = self.reactor.timeout(LIMIT, commit).await;
        Ok(done.ok_or("no answer")??)
    }

    async fn append(&mut self, record: &[u8]) -> Result<u64> {
        let (at, slot) = (self.count, SLOT * (self.count + 1));
        self.here[slot..slot + 8].copy_from_slice(&record.len().to_le_bytes());
        self.here[slot + 8..][..record.len()].copy_from_slice(record);
        self.count += 1;
        self.commit(at).await?;
        Ok(at as u64)
    }

    fn record(&self, at: usize) -> Record {
        let (len, rest) = self.here[SLOT * (at + 1)..].split_at(8);
        let len = u64::from_le_bytes(len.try_into().expect("8 bytes")) as usize;
        Record {
            at: at as u64,
            bytes: rest[..len].to_vec(),
        }
    }
}

/// The log of a writer, for several tasks.
#[derive(Debug)]
pub struct SharedLog(Mutex<Open>);

impl scenes::Log for SharedLog {
    async fn append(&self, record: &[u8]) -> Appended {
        let mut open = self.0.lock().await;
        if open.has_failed || open.count == RECORDS {
            return Appended::Refused("it is full, or is to be opened again".to_owned());
        }
        if record.len() > SLOT - 8 {
            return Appended::Refused("it is longer than a slot".to_owned());
        }
        match open.append(record).await {
            Ok(at) => Appended::Durable(at),
            Err(error) => {
                open.has_failed = true;
                Appended::Unknown(error.to_string())
            }
        }
    }

    async fn read_all(&self) -> Result<Vec<Record>> {
        let open = self.0.lock().await;
        // A record without an outcome is not read before the log is opened again.
        let count = open.count - usize::from(open.has_failed);
        Ok((0..count).map(|at| open.record(at)).collect())
    }
}

fn main() {
    Suite::new(AwaitedLog).run().check();
}
