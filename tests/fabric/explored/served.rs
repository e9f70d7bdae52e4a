//! The log of docs/testing-your-program.md, with a thread for each replica, and a batch in the place
//! of its commit.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpma::pmem::PmemMap;
use rpma::sim::{Explore, Fabric, Host, Platform, Pmem, Profile};
use rpma::{
    Conn, ConnCfg, ConnReq, Ep, Error, Flags, FlushType, Mr, MrRemote, MrUsage, Offer, Peer,
    PeerCfg, Posted, Result,
};

use crate::common::share;

const LIMIT: Duration = Duration::from_secs(10);
/// 8 bytes of tail (how many records there are), and from byte 64 on records of 64 bytes.
const LOG: usize = 4096;

/// The replica's program. With `keeps`, the operator declares that device writes go straight to
/// persistent memory.
fn serve(ep: &Ep, peer: &Peer, path: &Path, keeps: bool) -> Result<()> {
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    let log = Mr::reg(peer, PmemMap::open(path, LOG)?, usage)?;
    let mut platform = PeerCfg::new();
    platform.set_direct_write_to_pmem(keeps);
    let request = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    let conn = request.establish(Offer::new(&platform).add_region(&log), LIMIT)?;
    conn.wait_ended(LIMIT)?; // until the client is done
    Ok(())
}

struct Replica {
    conn: Conn,
    log: MrRemote,
    record: Mr<Vec<u8>>,
    /// The last operation of an append that has not returned `Ok`.
    unfinished: Option<Posted>,
}

impl Replica {
    fn connect(peer: &Peer, addr: &str, port: u16) -> Result<Self> {
        let request = ConnReq::new(peer, addr, port, &ConnCfg::new())?;
        let conn = request.establish(&Offer::default(), LIMIT)?;
        let offer = conn.offer()?;
        let record = Mr::reg(peer, vec![0; 64], MrUsage::WRITE_SRC)?;
        Ok(Self {
            conn,
            log: offer.regions()[0],
            record,
            unfinished: None,
        })
    }

    /// After `Ok`, the record survives a loss of the replica's power. After `TimedOut` the outcome
    /// is unknown: call `finish`, whose `Ok` acknowledges the record. After any other error connect
    /// again.
    fn append(&mut self, number: u64) -> Result<()> {
        // After a time-out the device may still read the record's memory.
        self.finish()?;
        let at = 64 * (number + 1);
        let (record, tail) = (self.log.slice(at..at + 64)?, self.log.slice(..8)?);
        let count = (number + 1).to_le_bytes();
        self.record.write_at(0, &[number as u8; 64])?;
        // All four are posted, or none. `Error::Provider` is the exception: then the connection
        // takes no more operations.
        let mut batch = self.conn.batch::<4>();
        batch.write(
            record,
            self.record.slice(..)?,
            Flags::COMPLETION_ON_ERROR,
            0,
        )?;
        batch.flush(record, FlushType::Persistent, Flags::COMPLETION_ON_ERROR, 0)?;
        // The device executes the atomic write after the flush.
        batch.atomic_write(tail, &count, Flags::COMPLETION_ON_ERROR, 0)?;
        batch.flush(tail, FlushType::Persistent, Flags::COMPLETION_ALWAYS, 0)?;
        self.unfinished = Some(batch.post()?);
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let Some(flushed) = self.unfinished else {
            return Ok(());
        };
        let waited = self.conn.wait_for(flushed, LIMIT, |_| {});
        // After a time-out the operation is still in flight, and the next `finish` waits for it.
        if !matches!(waited, Err(Error::TimedOut(_))) {
            self.unfinished = None;
        }
        waited.map(drop)
    }
}

/// The recovery of a replica's program. It returns the number of records, and whether all of them
/// are whole.
fn recover(path: &Path) -> Result<(u64, bool)> {
    let (log, mut bytes) = (PmemMap::open(path, LOG)?, [0; LOG]);
    log.read_at(0, &mut bytes)?;
    let (tail, records) = bytes.split_at(64);
    let count = u64::from_le_bytes(tail[..8].try_into().expect("8 bytes"));
    let whole = records.chunks(64).take(count as usize).enumerate();
    Ok((
        count,
        count < 60
            && whole
                .into_iter()
                .all(|(number, bytes)| bytes == [number as u8; 64]),
    ))
}

/// Starts a replica on a host that has a log.
fn start(host: &Host, log: &Pmem) -> Result<(String, u16, rpma::sim::JoinHandle<Result<()>>)> {
    let (_entered, addr) = (host.enter(), host.addr().to_string());
    let peer = Peer::at(&addr)?;
    let ep = Ep::listen(&peer, &addr, 0)?;
    let (port, path) = (ep.get_port(), log.path().to_owned());
    let keeps = host.may_promise_direct_write(peer.is_native_flush_capable());
    Ok((
        addr,
        port,
        host.spawn(move || serve(&ep, &peer, &path, keeps)),
    ))
}

pub(crate) fn two_records(fabric: &Fabric, platform: Platform) {
    let client = fabric.host("client");
    let hosts = [fabric.host("one"), fabric.host("other")];
    hosts.iter().for_each(|host| host.set_platform(platform));
    let logs = hosts.each_ref().map(|host| host.pmem("log", LOG));
    let (addr_1, port_1, one) = start(&hosts[0], &logs[0]).expect("listens");
    let (addr_2, port_2, other) = start(&hosts[1], &logs[1]).expect("listens");
    let acknowledged = AtomicU64::new(0);
    let _appended = fabric.on_every_event(
        |cut| {
            for image in logs.iter().flat_map(|log| cut.images(log)) {
                let (count, whole) = recover(image.path()).expect("a log");
                assert!(whole, "a record is torn");
                assert!(
                    count >= acknowledged.load(Ordering::Relaxed),
                    "an acknowledged record is lost"
                );
            }
        },
        || -> Result<()> {
            let _entered = client.enter();
            let peer = Peer::toward(&addr_1)?;
            let mut replicas = [
                Replica::connect(&peer, &addr_1, port_1)?,
                Replica::connect(&peer, &addr_2, port_2)?,
            ];
            for number in 0..2 {
                replicas
                    .iter_mut()
                    .try_for_each(|replica| replica.append(number))?;
                acknowledged.store(number + 1, Ordering::Relaxed);
            }
            Ok(())
        },
    );
    for replica in [one, other] {
        let _served = replica.join().expect("no panic");
    }
}

/// Promise: the log is explored with up to two deviations, of its threads as well.
#[test]
fn a_log_with_a_thread_for_each_replica() {
    for profile in share("profiles of a log with threads", 4, Profile::ALL) {
        let explore = Explore::new(&profile).limit(Duration::from_secs(600));
        let explored = explore.run(|fabric| two_records(fabric, Platform::Eadr));
        println!("{}: {explored}", profile.name());
        assert_eq!(
            (explored.diverged, explored.stopped),
            (0, None),
            "{explored}"
        );
        assert!(explored.choices["thread"].0 > 100, "{explored}");
    }
}
