//! A log on two replicas, with the client and both servers as tasks of one thread with a paused
//! clock: under every cut of power.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::Result;
use rpma::sim::Visited;
use rpma_async::{Conn, Frozen, Listener, Op, Pool, Reactor, Setup, Sources};
use tokio::time::Instant;

use crate::awaited::support::{CLOSE, joined};
use crate::common::prelude::*;

/// 8 bytes with the number of records, and from byte 64 on records of 64 bytes.
const RECORD: usize = 64;
const RECORDS: u64 = 3;
const SIZE: usize = RECORD * (1 + RECORDS as usize);

/// The step that the program leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The flush of a record, before the number of records counts it.
    Flush,
}

/// A server: offers its log to one client, until that is done.
async fn serve(listener: Listener, peer: Peer, log: Mr<PmemMap>, keeps: bool) -> Result<()> {
    let mut platform = PeerCfg::new();
    platform.set_direct_write_to_pmem(keeps);
    let offer = Offer::new(&platform)
        .add_region(&log)
        .encode(Offer::ACCEPT)?;
    let incoming = listener.accept().await?;
    let conn = incoming.accept(&Setup::default(), &offer).await?;
    conn.closed().await?;
    drop((conn, log, peer));
    Ok(())
}

/// A server's log, as the client has it.
struct Replica {
    conn: Conn,
    log: MrRemote,
}

impl Replica {
    async fn connect(reactor: &Reactor, server: SocketAddr) -> Result<Self> {
        let conn = reactor.connect(server, &Setup::default(), &[]).await?;
        let offer = conn.offer()?;
        let log = offer.regions()[0];
        Ok(Self { conn, log })
    }

    /// Posts a record and the number of records, each with its flush.
    fn append(&self, number: u64, record: Frozen, fault: Fault) -> Result<Op<Sources<4>>> {
        let begin = RECORD as u64 * (1 + number);
        let to = self.log.slice(begin..begin + RECORD as u64)?;
        let count = self.log.slice(..8)?;
        let mut batch = self.conn.batch::<4>();
        batch.write(to, record)?;
        if fault != Fault::Flush {
            batch.flush(to, FlushType::Persistent)?;
        }
        batch.atomic_write(count, (number + 1).to_le_bytes())?;
        batch.flush(count, FlushType::Persistent)?;
        Ok(batch.commit()?)
    }
}

/// The client: a record counts when both replicas have it.
async fn append_all(
    peer: &Peer,
    servers: [SocketAddr; 2],
    fault: Fault,
    promised: &AtomicU64,
) -> Result<()> {
    let reactor = Reactor::spawn(peer)?;
    let pool = Pool::new(peer, RECORD, 1)?;
    let one = Replica::connect(&reactor, servers[0]).await?;
    let other = Replica::connect(&reactor, servers[1]).await?;
    for number in 0..RECORDS {
        let mut record = pool.lease().await;
        record.fill(record_byte(number));
        // Both are posted from one block, before either is awaited.
        let record = record.freeze();
        let appended = one.append(number, record.clone(), fault)?;
        let appended_to_other = other.append(number, record, fault)?;
        appended.await?;
        appended_to_other.await?;
        promised.store(number + 1, Ordering::Relaxed);
    }
    one.conn.close(CLOSE).await?;
    other.conn.close(CLOSE).await
}

/// No such byte is 0.
fn record_byte(number: u64) -> u8 {
    number as u8 + 1
}

/// Whether a log has the promised records, and whole ones.
fn is_good(image: &[u8], promised: u64) -> bool {
    let (head, records) = image.split_at(RECORD);
    let count = u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
    let mut whole = (0..count).zip(records.chunks(RECORD));
    (promised..=RECORDS).contains(&count)
        && whole.all(|(number, bytes)| bytes == [record_byte(number); RECORD])
}

/// Starts a server, which is a task from then on.
fn start(host: &Host, pmem: &Pmem) -> Result<(SocketAddr, tokio::task::JoinHandle<Result<()>>)> {
    let peer = peer_of(host);
    let keeps = host.may_promise_direct_write(peer.is_native_flush_capable());
    let entered = host.enter();
    let map = PmemMap::open(pmem.path(), SIZE)?;
    drop(entered);
    // A fallback flush reads.
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
    let log = Mr::reg(&peer, map, usage)?;
    let reactor = Reactor::spawn(&peer)?;
    let listener = reactor.listen((host.addr(), 0).into())?;
    let at = (host.addr(), listener.port()).into();
    Ok((at, tokio::spawn(serve(listener, peer, log, keeps))))
}

/// The findings of the cuts of one run.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    visited: Visited,
    bad: u64,
    promised: u64,
    /// Virtual time.
    took: Duration,
}

/// Runs the program, and cuts the power of the replicas at every event.
fn cut_everywhere(profile: Profile, platform: Platform, fault: Fault) -> Found {
    let (runtime, fabric) = paused::both(&Rig::of(&profile));
    let client = fabric.host("client");
    let hosts = ["one", "other"].map(|name| fabric.host(name));
    let logs = hosts.each_ref().map(|host| {
        host.set_platform(platform);
        host.pmem("log", SIZE)
    });
    let (promised, bad) = (AtomicU64::new(0), AtomicU64::new(0));
    let look = |cut: &Cut<'_>| {
        let promised = promised.load(Ordering::Relaxed);
        for image in logs.iter().flat_map(|log| cut.images(log)) {
            if !is_good(image.bytes(), promised) {
                bad.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let program = async {
        let began = Instant::now();
        paused::tick(&fabric);
        let [one, other] = [0, 1].map(|at| start(&hosts[at], &logs[at]).expect("serves"));
        let appended = append_all(&peer_of(&client), [one.0, other.0], fault, &promised).await;
        match appended {
            // No platform without native flushes and eADR keeps the flushed writes of a device.
            Err(Error::NotSupported(_)) => assert_eq!(promised.load(Ordering::Relaxed), 0),
            appended => appended.expect("both have all"),
        }
        for server in [one.1, other.1] {
            joined(server).await.expect("served");
        }
        began.elapsed()
    };
    let took = fabric.on_every_event(look, || runtime.block_on(program));
    drop(runtime);
    assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
    let found = Found {
        visited: fabric.visited(),
        bad: bad.into_inner(),
        promised: promised.into_inner(),
        took,
    };
    println!("{platform}, {fault:?}: {found:?}");
    found
}

/// Where a region may promise that it keeps flushed data.
fn persistent() -> impl Iterator<Item = Platform> {
    let all = Platform::ALL.into_iter();
    all.filter(|platform| platform.is_persistent())
}

/// Promise: an async log loses no record under any cut of power, on any platform, and each run of
/// it is the same.
#[test]
fn a_log_survives_every_cut() {
    let mut starts = 0;
    for platform in persistent() {
        let found = cut_everywhere(profile(), platform, Fault::Nothing);
        assert_eq!(found.bad, 0, "{platform}");
        if found.promised > 0 {
            assert_eq!(found.promised, RECORDS, "{platform}");
            assert!(found.visited.images > 100, "{platform}: {found:?}");
            assert_eq!(cut_everywhere(profile(), platform, Fault::Nothing), found);
            starts += 1;
        }
    }
    assert!(starts > 0, "it starts on a platform");
}

/// Promise: the cuts find a log that does not flush its records.
#[test]
fn a_log_without_its_flush_does_not() {
    // (Where it starts, soft-RoCE of Linux 6.1 executes one request after the other.)
    let bad = |platform| cut_everywhere(Profile::STRICT, platform, Fault::Flush).bad;
    assert!(persistent().map(bad).sum::<u64>() > 0);
}
