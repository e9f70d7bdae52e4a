//! A small log under the scenes: two servers, both of which have each record.
//!
//! `cargo run -p rpma-scenes --features sim --example small-log`

use std::time::Duration;

use rpma::commit::{Limits, Method, Writer, WriterCfg};
use rpma::pmem::PmemMap;
use rpma::reconnect::{Reconnect, ReconnectCfg, ToWriter};
use rpma::serve::{self, Layout};
use rpma::sync::Mutex;
use rpma::{ConnCfg, Flags, Identity, Mr, MrRemote, MrUsage, Offer, Peer};
use rpma_scenes::{
    Ability, Appended, Blocking, Opening, Record, Result, Server, Shape, Suite, blocking,
};

const LIMIT: Duration = Duration::from_secs(10);
/// 8 bytes of tail, and from byte 64 on slots of 64 bytes. A slot has the length of its record in 8
/// bytes, and the record.
const LOG: usize = 4096;
const SLOT: usize = 64;

/// A small log.
#[derive(Debug)]
pub struct SmallLog;

impl blocking::Subject for SmallLog {
    type Log = SharedLog;

    fn shape(&self) -> Shape {
        let len = Layout::new(1, LOG).expect("a layout").len();
        // It needs both servers for everything.
        Shape::new(2, 2, len)
            .with_records(SLOT - 8, LOG / SLOT - 1)
            .without(Ability::GoesOn)
            .without(Ability::Returns)
            .without(Ability::Refills)
            .without(Ability::Replaces)
            .without(Ability::Truncates)
            .without(Ability::DetectsDamage)
    }

    /// The program of a server. Its processor makes each commit durable, so the platform does not
    /// matter. It cuts the old writer off before it accepts the next one.
    fn serve(&self, server: Server) -> Result<()> {
        let layout = Layout::new(1, LOG)?;
        let memory = PmemMap::open(&server.path, layout.len())?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let mut cfg = serve::ServerCfg::new();
        cfg.set_commits(Some(Limits::new(4, 1, LOG as u32)?));
        serve::Server::listen(server.addr, &memory, &layout, usage, &cfg)?.serve(drop)?;
        Ok(())
    }

    fn open(&self, opening: Opening) -> Result<SharedLog> {
        Ok(SharedLog(Mutex::new(Open::new(&opening)?)))
    }
}

/// One server, as the writer has it.
#[derive(Debug)]
struct Replica {
    writer: Writer,
    log: MrRemote,
}

#[derive(Debug)]
struct Open {
    replicas: Vec<Replica>,
    /// The whole log. A slot is written once, so no device reads bytes that change.
    here: Mr<Vec<u8>>,
    epoch: u64,
    count: u64,
    /// The outcome of a record is unknown: nothing is appended after it.
    has_failed: bool,
}

impl Open {
    fn new(opening: &Opening) -> Result<Self> {
        let peer = Peer::at(&opening.addr.to_string())?;
        let here = || Mr::reg(&peer, vec![0; LOG], MrUsage::WRITE_SRC | MrUsage::READ_DST);
        let (mut replicas, mut newest, mut tail) = (Vec::new(), here()?, 0);
        for addr in &opening.servers {
            let mut commits = WriterCfg::new(Method::Server);
            commits.set_in_flight(4)?.set_parts(1)?;
            let mut offer = Offer::default();
            offer.set_identity(Identity::new(1, opening.epoch)?);
            let (addr, port) = (addr.ip().to_string(), addr.port());
            let mut connects = Reconnect::new(&peer, &addr, port, offer, ToWriter::new(&commits))?;
            connects.set_cfg(ReconnectCfg::new().set_limit(LIMIT));
            let writer = connects.connect(&ConnCfg::new())?;
            let (log, found) = (writer.offer().memory(LOG as u64)?, here()?);
            let read = writer.conn().read(
                found.slice(..)?,
                log.slice(..LOG as u64)?,
                Flags::COMPLETION_ALWAYS,
                0,
            )?;
            writer.conn().wait_for(read, LIMIT, |_| {})?;
            // A newer writer has the larger tail, or the same writer the longer log.
            let found_tail = found.load_u64(0)?;
            if found_tail > tail {
                (newest, tail) = (found, found_tail);
            }
            replicas.push(Replica { writer, log });
        }
        let mut open = Self {
            replicas,
            here: newest,
            epoch: opening.epoch,
            count: tail & u64::from(u32::MAX),
            has_failed: false,
        };
        // One of them may lack the last record: both have it, under this epoch, before it is read.
        open.commit(0, open.count.max(1))?;
        Ok(open)
    }

    /// Makes the slots from `first` up to `end` durable on both, and then the tail.
    fn commit(&mut self, first: u64, end: u64) -> Result<()> {
        let tail = (self.epoch << 32 | self.count).to_le_bytes();
        let (from, to) = (SLOT as u64 * (first + 1), SLOT as u64 * (end + 1));
        let mut tickets = Vec::new();
        for Replica { writer, log } in &mut self.replicas {
            let slots = self.here.slice(from as usize..to as usize)?;
            let parts = [(log.slice(from..to)?, slots)];
            tickets.push(writer.commit(&parts, Some((log.slice(..8)?, tail)))?);
        }
        for (replica, ticket) in self.replicas.iter_mut().zip(tickets) {
            replica.writer.wait(ticket, LIMIT, |_| {})?;
        }
        Ok(())
    }

    fn append(&mut self, record: &[u8]) -> Result<u64> {
        let (at, slot) = (self.count, SLOT * (self.count as usize + 1));
        self.here.write_at(slot, &record.len().to_le_bytes())?;
        self.here.write_at(slot + 8, record)?;
        self.count += 1;
        self.commit(at, at + 1)?;
        Ok(at)
    }

    fn record(&self, at: u64) -> Result<Record> {
        let slot = SLOT * (at as usize + 1);
        let mut bytes = vec![0; self.here.load_u64(slot)? as usize];
        self.here.read_at(slot + 8, &mut bytes)?;
        Ok(Record { at, bytes })
    }
}

/// The log of a writer, for several threads.
#[derive(Debug)]
pub struct SharedLog(Mutex<Open>);

impl blocking::Log for SharedLog {
    fn append(&self, record: &[u8]) -> Appended {
        let mut open = self.0.lock().expect("no thread has panicked");
        if open.has_failed {
            return Appended::Refused(
                "an earlier append has failed: open the log again".to_owned(),
            );
        }
        if record.len() > SLOT - 8 {
            return Appended::Refused("it is longer than a slot".to_owned());
        }
        match open.append(record) {
            Ok(at) => Appended::Durable(at),
            Err(error) => {
                open.has_failed = true;
                Appended::Unknown(error.to_string())
            }
        }
    }

    fn read_all(&self) -> Result<Vec<Record>> {
        let open = self.0.lock().expect("no thread has panicked");
        // A record without an outcome is not read before the log is opened again.
        let count = open.count - u64::from(open.has_failed);
        (0..count).map(|at| open.record(at)).collect()
    }
}

fn main() {
    Suite::new(Blocking(SmallLog)).run().check();
}
