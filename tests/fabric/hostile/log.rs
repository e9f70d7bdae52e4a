//! The servers of a log, its honest writer, and hostile clients, whose steps are chosen by bytes: a
//! fuzzer's (`fuzz/fuzz_targets/log.rs`), or those of the corpus.
//!
//! The servers and the log have threads of their own, in the order of a seed, so that a run is
//! repeated by its bytes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use rpma::Peer;
use rpma::commit::Method;
use rpma::pmem::PmemMap;
use rpma::sim::{Fabric, Host, JoinHandle, Platform, Pmem, Profile, sleep};
use rpma::wait::Waker;
use rpma_log::blocking::Log;
use rpma_log::format::{RING, Stored};
use rpma_log::{LogCfg, ServerCfg};

use super::bytes::Bytes;
use super::stranger::Hostile;

/// The key of the log. The epochs of hostile clients have 8 bits, and those of the log are higher: a
/// key is not a proof of its client (docs/security.md).
const KEY: u64 = 1;
const FIRST_EPOCH: u64 = 256;
/// The keys of a server, and the bytes of a ring.
const KEYS: u32 = 3;
const RING_LEN: u64 = 1024;
/// The servers, and the copies of an acknowledged record: a server that is away would be noticed.
const SERVERS: usize = 2;
/// Longer than each step takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Promise: whatever hostile clients do, appends are acknowledged, both servers have all acknowledged
/// records and no others, the next writer finds them, and nothing is left at the end. Returns a
/// summary of the run, the same for the same bytes.
pub(crate) fn run(bytes: &[u8]) -> String {
    let mut bytes = Bytes(bytes);
    let profile = Profile::ALL[usize::from(bytes.next()) % Profile::ALL.len()].clone();
    let fabric = Fabric::seeded(profile, u64::from(bytes.next()));
    let mut site = Site::new(&fabric, bytes.next());
    while let Some(step) = bytes.step() {
        site.step(step, &mut bytes);
        site.check();
    }
    site.end();
    // The threads of a log end some time after it.
    for _ in 0..150 {
        if fabric.objects().is_empty() {
            break;
        }
        sleep(Duration::from_secs(1));
    }
    let left = fabric.objects();
    assert!(left.is_empty(), "objects are left: {left:?}");
    format!("{:?}", fabric.trace())
}

struct Site {
    servers: [Server; SERVERS],
    honest: Honest,
    hostile: Hostile,
}

struct Server {
    host: Host,
    cfg: ServerCfg,
    addr: SocketAddr,
    pmem: Pmem,
    waker: Waker,
    thread: JoinHandle<rpma::Result<()>>,
}

struct Honest {
    host: Host,
    peer: Peer,
    cfg: LogCfg,
    epoch: u64,
    log: Option<Log>,
    /// The positions and the bytes of the records.
    records: VecDeque<(u64, Vec<u8>)>,
}

impl Site {
    fn new(fabric: &Fabric, method: u8) -> Self {
        let mut seen = Vec::new();
        let servers = ["one", "two"].map(|name| Server::new(fabric.host(name), &mut seen));
        let addrs = servers.each_ref().map(|server| server.addr);
        let method = [Method::Reading, Method::Server][usize::from(method) % 2];
        Self {
            honest: Honest::new(fabric.host("honest"), &addrs, method),
            hostile: Hostile::new(fabric.host("hostile"), addrs[0], seen),
            servers,
        }
    }

    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) {
        match step % 12 {
            0 | 1 => self.honest.append(bytes.take(150)),
            2 => sleep(Duration::from_millis(u64::from(bytes.next()).pow(2))),
            3 => self.honest.comes_back(),
            step => {
                let server = usize::from(bytes.next()) % SERVERS;
                let _entered = self.hostile.host.enter();
                self.hostile.step(step, self.servers[server].addr, bytes);
            }
        }
    }

    /// Both servers have the acknowledged records.
    fn check(&self) {
        for server in &self.servers {
            let stored = server.stored();
            let found: VecDeque<_> = stored
                .records()
                .map(|(at, record)| (at, record.to_vec()))
                .collect();
            assert_eq!(found, self.honest.records, "the records of a server");
        }
    }

    fn end(mut self) {
        self.honest.comes_back();
        self.check();
        self.honest.leaves();
        self.hostile.conns.clear();
        for server in self.servers {
            server.waker.wake();
            let served = server.thread.join().expect("no panic");
            served.expect("the server goes on to its end");
        }
    }
}

impl Server {
    /// A server that runs. The descriptors of its memory are seen by others.
    fn new(host: Host, seen: &mut Vec<Vec<u8>>) -> Self {
        host.set_platform(Platform::Eadr);
        let addr: SocketAddr = (host.addr(), 7204).into();
        let len = 2 * KEYS as usize * (RING + RING_LEN) as usize;
        let pmem = host.pmem("log", len.next_multiple_of(4096));
        let mut cfg = ServerCfg::new(addr, pmem.path());
        cfg.set_keys(KEYS).set_ring(RING_LEN);
        let mut server = {
            let _entered = host.enter();
            cfg.listen().expect("it listens")
        };
        let regions = (1..=KEYS).filter_map(|key| server.region(key.into()));
        seen.extend(regions.map(|region| region.get_descriptor().to_vec()));
        let waker = server.waker();
        let thread = host.spawn(move || server.serve(drop));
        Self {
            host,
            cfg,
            addr,
            pmem,
            waker,
            thread,
        }
    }

    /// What a program on the server's host would read.
    fn stored(&self) -> Stored {
        let _entered = self.host.enter();
        let place = self.cfg.place(KEY).expect("it has the key");
        let map = PmemMap::open(self.pmem.path(), 0).expect("mapped");
        let mut bytes = vec![0; place.len()];
        map.read_at(place.start, &mut bytes).expect("inside");
        Stored::decode(&bytes[..(RING + RING_LEN) as usize], RING_LEN).expect("a log")
    }
}

impl Honest {
    fn new(host: Host, servers: &[SocketAddr], method: Method) -> Self {
        let peer = {
            let _entered = host.enter();
            Peer::at(&host.addr().to_string()).expect("a device")
        };
        let mut cfg = LogCfg::new(servers, SERVERS, FIRST_EPOCH);
        cfg.set_key(KEY)
            .set_ring(RING_LEN)
            .set_method(method)
            .set_limit(LIMIT);
        let mut honest = Self {
            host,
            peer,
            cfg,
            epoch: FIRST_EPOCH,
            log: None,
            records: VecDeque::new(),
        };
        honest.cfg.set_create(true);
        honest.opens();
        honest.cfg.set_create(false);
        honest
    }

    /// As the next writer, which finds all records.
    fn opens(&mut self) {
        let _entered = self.host.enter();
        self.cfg.set_epoch(self.epoch);
        self.epoch += 1;
        let log = Log::open(&self.peer, &self.cfg).expect("the log opens");
        let (mut at, mut found) = (log.bounds().0, VecDeque::new());
        while let Some(record) = log.read(at).expect("inside") {
            found.push_back((record.at, record.bytes.to_vec()));
            at = record.next;
        }
        assert_eq!(found, self.records, "the records of a log");
        self.log = Some(log);
    }

    fn leaves(&mut self) {
        let _entered = self.host.enter();
        if let Some(log) = self.log.take() {
            log.close().expect("both servers have all records");
        }
    }

    fn comes_back(&mut self) {
        self.leaves();
        self.opens();
    }

    /// A record is acknowledged by both servers. The oldest ones make room for it.
    fn append(&mut self, bytes: &[u8]) {
        let _entered = self.host.enter();
        // A record is not empty.
        let record = [&[bytes.len() as u8], bytes].concat();
        let log = self.log.as_ref().expect("it is open");
        while log.room() < RING_LEN / 2 {
            self.records.pop_front();
            let to = self.records.front().map_or(log.bounds().1, |first| first.0);
            log.truncate(to).expect("both servers are there");
        }
        let at = log.append(&record).expect("both servers are there");
        self.records.push_back((at, record));
    }
}
