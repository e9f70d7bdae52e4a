//! The program: a log in the persistent memory of replicas. It knows nothing of the simulation.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use rpma::pmem::PmemMap;
use rpma::{Conn, ConnCfg, ConnReq, Ep, FlushType, Mr, MrRemote, MrUsage, Offer, Peer, PeerCfg};

/// The log: 8 bytes say how many records there are (the tail); they begin at byte 64.
pub(crate) const LOG: usize = 4096;
const FIRST: usize = 64;
pub(crate) const RECORD: usize = 104;

const PORT: u16 = 7204;
const LIMIT: Duration = Duration::from_secs(10);

/// What is wrong with the program, if something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// The record is not flushed before the tail shows it.
    Flush,
    /// The tail is a plain write, which may pass the flush of the record.
    Tail,
    /// A replica promises what its platform does not keep.
    Platform,
}

/// A replica as the client has it.
pub(crate) struct Replica {
    conn: Conn,
    log: MrRemote,
    source: Mr<Vec<u8>>,
}

impl Replica {
    pub(crate) fn connect(peer: &Peer, addr: &str) -> Result<Self> {
        let request = ConnReq::new(peer, addr, PORT, &ConnCfg::new())?;
        let conn = request.establish(&Offer::default(), LIMIT)?;
        let log = conn.offer()?.memory(LOG as u64)?;
        let source = Mr::reg(peer, vec![0; RECORD + 8], MrUsage::WRITE_SRC)?;
        Ok(Self { conn, log, source })
    }

    /// Appends a record. When this has returned, it is there whatever happens to the replica's
    /// power.
    pub(crate) fn append(&self, number: usize, record: &[u8; RECORD], fault: Fault) -> Result<()> {
        let conn = &self.conn;
        let (at, count) = (place(number) as u64, (number as u64 + 1).to_le_bytes());
        let (dst, tail) = (
            self.log.slice(at..at + RECORD as u64)?,
            self.log.slice(..8)?,
        );
        self.source.write_at(0, &[&record[..], &count].concat())?;
        conn.post_write(dst, self.source.slice(..RECORD)?)?;
        if fault != Fault::Flush {
            conn.post_flush(dst, FlushType::Persistent)?;
        }
        match fault {
            Fault::Tail => conn.post_write(tail, self.source.slice(RECORD..)?)?,
            // It stays behind the flush before it.
            _ => conn.post_atomic_write(tail, &count)?,
        };
        let flushed = conn.post_flush(tail, FlushType::Persistent)?;
        conn.wait_for(flushed, LIMIT, |_| {})?;
        Ok(())
    }
}

/// The program of a replica.
pub(crate) struct Server {
    peer: Peer,
    ep: Ep,
}

impl Server {
    pub(crate) fn listen(addr: &str) -> Result<Self> {
        let peer = Peer::at(addr)?;
        let ep = Ep::listen(&peer, addr, PORT)?;
        Ok(Self { peer, ep })
    }

    pub(crate) fn flushes_natively(&self) -> bool {
        self.peer.is_native_flush_capable()
    }

    /// Offers a log to one client, and waits until that is done. `keeps` is the word of the
    /// machine's operator: what a device writes there goes straight to persistent memory.
    pub(crate) fn serve(&self, log: &Path, keeps: bool) -> Result<()> {
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
        let log = Mr::reg(&self.peer, PmemMap::open(log, LOG)?, usage)?;
        let mut platform = PeerCfg::new();
        platform.set_direct_write_to_pmem(keeps);
        let request = self.ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
        let conn = request.establish(Offer::new(&platform).add_region(&log), LIMIT)?;
        conn.wait_ended(6 * LIMIT)?;
        Ok(())
    }
}

/// What the program of a replica finds after a loss of power: its records.
pub(crate) fn recover(log: &Path) -> Result<Vec<[u8; RECORD]>> {
    let map = PmemMap::open(log, LOG)?;
    let mut tail = [0; 8];
    map.read_at(0, &mut tail)?;
    let count = usize::try_from(u64::from_le_bytes(tail))?;
    ensure!(count <= (LOG - FIRST) / RECORD, "a tail of {count}");
    let mut records = vec![[0; RECORD]; count];
    for (number, record) in records.iter_mut().enumerate() {
        map.read_at(place(number), record)?;
    }
    Ok(records)
}

fn place(number: usize) -> usize {
    FIRST + number * RECORD
}
