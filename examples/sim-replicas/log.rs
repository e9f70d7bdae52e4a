//! The program: a log in the volatile memory of three hosts. A record is acknowledged when two of
//! them have it. It is unaware of the simulation.

use std::time::Duration;

use anyhow::{Result, ensure};
use rpma::commit::{Method, Replicas, Writer, WriterCfg};
use rpma::{Conn, ConnCfg, ConnReq, Ep, Flags, FlushType, Mr, MrUsage, Offer, Peer, PeerCfg};

/// How many replicas have a record when it is acknowledged.
pub(crate) const COPIES: usize = 2;
pub(crate) const RECORD: usize = 104;

/// The log: the first 8 bytes are the number of records (the tail); the records begin at byte 64.
const LOG: usize = 4096;
const FIRST: usize = 64;
/// For so many records the client has memory of its own: those that a slow replica does not have.
const AHEAD: usize = 16;
const PORT: u16 = 7204;
const LIMIT: Duration = Duration::from_secs(10);

/// The log as its only writer has it.
pub(crate) struct Log {
    replicas: Replicas,
    count: u64,
    /// A record is not acknowledged, and may be on a replica: another one in its place could be
    /// shown in part.
    is_over: bool,
}

impl Log {
    /// The log of replicas that have no records yet.
    pub(crate) fn connect(peer: &Peer, addrs: &[String]) -> Result<Self> {
        let mut replicas = Replicas::new(peer, 2 * AHEAD * RECORD, AHEAD)?;
        // By reading, which every device can; a native flush makes bytes visible as well.
        let mut commits = WriterCfg::new(Method::Reading);
        commits
            .set_flush_type(FlushType::Visibility)?
            .set_parts(1)?;
        for addr in addrs {
            let cfg = commits.conn_cfg(&ConnCfg::new())?;
            let req = ConnReq::new(peer, addr, PORT, &cfg)?;
            let writer = Writer::connect(req, &commits, &Offer::default())?.wait(LIMIT)?;
            let region = writer.offer().memory(LOG as u64)?;
            replicas.add(writer, region)?;
        }
        Ok(Self {
            replicas,
            count: 0,
            is_over: false,
        })
    }

    /// Appends a record. When this has returned, the record is in the memory of [`COPIES`]
    /// replicas. After an error the log takes no more records.
    pub(crate) fn append(&mut self, bytes: &[u8; RECORD]) -> Result<()> {
        ensure!(!self.is_over, "an earlier record was not acknowledged");
        self.is_over = true;
        self.replicas.make_room(RECORD, COPIES, LIMIT)?;
        let mut record = self.replicas.record(RECORD)?;
        record.put(0, bytes)?;
        let tail = (0, (self.count + 1).to_le_bytes());
        let id = record.commit(place(self.count), Some(tail), COPIES)?;
        self.replicas.settle(id, COPIES, LIMIT).require(COPIES)?;
        self.count += 1;
        self.is_over = false;
        Ok(())
    }
}

/// The records that the replicas have which can be reached: those of the longest log.
pub(crate) fn recover(addrs: &[String]) -> Vec<[u8; RECORD]> {
    let logs = addrs.iter().filter_map(|addr| read(addr).ok());
    logs.max_by_key(Vec::len).unwrap_or_default()
}

fn read(addr: &str) -> Result<Vec<[u8; RECORD]>> {
    let peer = Peer::toward(addr)?;
    let request = ConnReq::new(&peer, addr, PORT, &ConnCfg::new())?;
    let conn = request.establish(&Offer::default(), LIMIT)?;
    let region = conn.offer()?.memory(LOG as u64)?;
    let local = Mr::reg(&peer, vec![0; LOG], MrUsage::READ_DST)?;
    let read = conn.read(
        local.slice(..)?,
        region.slice(..)?,
        Flags::COMPLETION_ALWAYS,
        0,
    )?;
    conn.wait_for(read, LIMIT, |_| {})?;
    let count = local.load_u64(0)?;
    let mut records = Vec::new();
    for number in 0..count {
        let mut record = [0; RECORD];
        local.read_at(place(number) as usize, &mut record)?;
        records.push(record);
    }
    Ok(records)
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

    /// Offers the memory of one log to every client, for as long as the host is there.
    pub(crate) fn serve(&self) -> Result<()> {
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let log = Mr::reg(&self.peer, vec![0_u8; LOG], usage)?;
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(&log);
        let mut clients: Vec<Conn> = Vec::new();
        while let Ok(req) = self.ep.next_conn_req(&ConnCfg::new()) {
            match offer.judge(req.get_private_data()) {
                Ok(_) => clients.push(req.connect(&offer.encode(Offer::ACCEPT)?)?),
                Err(refusal) => req.reject(&refusal.encode())?,
            }
        }
        Ok(())
    }
}

/// Where a record is.
fn place(number: u64) -> u64 {
    FIRST as u64 + number * RECORD as u64
}
