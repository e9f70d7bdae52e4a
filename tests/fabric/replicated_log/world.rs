//! Three simulated hosts with the program of a replica, and one for the writer.

use std::net::SocketAddr;
use std::path::Path;

use rpma::commit::Method;
use rpma::pmem::Ddio;
use rpma::sim::{JoinHandle, sleep};
use rpma::wait::Waker;
use rpma_log::blocking::Log;
use rpma_log::format::Stored;
use rpma_log::{Fault, LogCfg, LogError, ServerCfg};

pub(crate) use crate::common::prelude::*;

pub(crate) const REPLICAS: usize = 3;
const COPIES: usize = 2;
pub(crate) const LOG_KEY: u64 = 1;
const PORT: u16 = 7204;
pub(crate) const RING_LEN: u64 = 1024;

/// The bytes of each replica's memory: what the log needs, or more by the variable
/// `RPMA_SIM_POOL`, for a run with memories of a real size.
fn pool() -> usize {
    let more = std::env::var("RPMA_SIM_POOL").ok();
    let more = more.map_or(0, |bytes| bytes.parse().expect("a number of bytes"));
    place().end.max(more)
}
pub(crate) const LIMIT: Duration = Duration::from_secs(15);
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// How a world commits, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) method: Method,
    pub(crate) platform: Platform,
}

pub(crate) const READING: Way = Way {
    method: Method::Reading,
    platform: Platform::Eadr,
};

/// A replica's program that runs.
struct Running {
    waker: Waker,
    thread: JoinHandle<Result<(), String>>,
}

pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) client: Host,
    pub(crate) hosts: Vec<Host>,
    pub(crate) pmems: Vec<Pmem>,
    running: Vec<Option<Running>>,
    copies: usize,
    pub(crate) way: Way,
    pub(crate) fault: Fault,
}

impl World {
    /// With replicas that serve.
    pub(crate) fn new(fabric: &Fabric, way: Way) -> Self {
        let mut world = Self::idle(fabric, way, Fault::Nothing);
        world.start_all();
        world
    }

    /// With replicas that serve, in the order of this seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self::new(&Rig::new().seed(seed).fabric(), READING)
    }

    /// With replicas that do not serve yet.
    pub(crate) fn idle(fabric: &Fabric, way: Way, fault: Fault) -> Self {
        Self::of(fabric, way, fault, (REPLICAS, COPIES))
    }

    /// With so many replicas and copies.
    pub(crate) fn of(
        fabric: &Fabric,
        way: Way,
        fault: Fault,
        (replicas, copies): (usize, usize),
    ) -> Self {
        let names = ["a", "b", "c", "d", "e"];
        let hosts: Vec<_> = names[..replicas]
            .iter()
            .map(|name| fabric.host(name))
            .collect();
        let pmem = |host: &Host| {
            host.set_platform(way.platform);
            host.pmem("log", pool())
        };
        Self {
            client: fabric.host("client"),
            pmems: hosts.iter().map(pmem).collect(),
            hosts,
            running: (0..replicas).map(|_| None).collect(),
            copies,
            fabric: fabric.clone(),
            way,
            fault,
        }
    }

    /// Starts the program of a replica.
    pub(crate) fn start(&mut self, n: usize) -> anyhow::Result<()> {
        let host = &self.hosts[n];
        let _entered = host.enter();
        let mut server = self.server_cfg(n).listen()?;
        let waker = server.waker();
        let thread = host.spawn(move || {
            let served = server.serve(|served| log::info!("{served}"));
            served.map_err(|error| error.to_string())
        });
        self.running[n] = Some(Running { waker, thread });
        Ok(())
    }

    /// The settings of a replica.
    pub(crate) fn server_cfg(&self, n: usize) -> ServerCfg {
        let mut cfg = settings(self.addr(n), self.pmems[n].path());
        cfg.set_fault(self.fault);
        if self.way.platform == Platform::AdrDdioOff {
            cfg.set_ddio(Ddio::Off);
        }
        cfg
    }

    pub(crate) fn start_all(&mut self) {
        (0..self.hosts.len()).for_each(|n| self.start(n).expect("a replica"));
    }

    /// Starts the host of a replica, and its program, if it has no power.
    pub(crate) fn restart(&mut self, n: usize) -> anyhow::Result<()> {
        if self.hosts[n].has_power() {
            return Ok(());
        }
        self.stop(n);
        self.hosts[n].restart();
        self.start(n)
    }

    /// Whether the program of a replica runs.
    pub(crate) fn is_serving(&self, n: usize) -> bool {
        let running = self.running[n].as_ref();
        running.is_some_and(|running| !running.thread.is_finished())
    }

    /// Another host takes the place of a replica: its memory has no log.
    pub(crate) fn replace(&mut self, n: usize) {
        self.stop(n);
        self.pmems[n] = self.hosts[n].pmem("new", pool());
    }

    /// Starts the replicas of this list, and ends the others.
    pub(crate) fn only(&mut self, up: &[usize]) {
        for n in 0..self.hosts.len() {
            match (up.contains(&n), self.running[n].is_some()) {
                (true, false) => self.start(n).expect("a replica"),
                (false, true) => self.stop(n),
                _ => {}
            }
        }
    }

    /// Ends the program of a replica.
    pub(crate) fn stop(&mut self, n: usize) {
        if let Some(running) = self.running[n].take() {
            running.waker.wake();
            let _ = running.thread.join().expect("no panic");
        }
    }

    pub(crate) fn cut_all(&self) {
        self.hosts.iter().for_each(cut_power);
    }

    pub(crate) fn stop_all(&mut self) {
        (0..self.hosts.len()).for_each(|n| self.stop(n));
    }

    pub(crate) fn addr(&self, n: usize) -> SocketAddr {
        // Replicas may share a host.
        (self.hosts[n].addr(), PORT + n as u16).into()
    }

    pub(crate) fn cfg(&self, epoch: u64) -> LogCfg {
        let servers: Vec<_> = (0..self.hosts.len()).map(|n| self.addr(n)).collect();
        self.cfg_on(&servers, self.copies, epoch)
    }

    /// A log on these servers.
    pub(crate) fn cfg_on(&self, servers: &[SocketAddr], copies: usize, epoch: u64) -> LogCfg {
        let mut cfg = LogCfg::new(servers, copies, epoch);
        cfg.set_key(LOG_KEY)
            .set_method(self.way.method)
            .set_ring(RING_LEN)
            .set_create(epoch == 1)
            .set_limit(LIMIT)
            .set_silence(SILENCE)
            .set_fault(self.fault);
        cfg
    }

    /// Opens the log as a writer on the client's host; with the epoch 1 it makes it.
    pub(crate) fn open(&self, epoch: u64) -> Result<Log, LogError> {
        self.open_with(&self.cfg(epoch))
    }

    pub(crate) fn open_with(&self, cfg: &LogCfg) -> Result<Log, LogError> {
        Self::open_on(&self.client, cfg)
    }

    /// Opens the log as a writer on another host.
    pub(crate) fn open_on(host: &Host, cfg: &LogCfg) -> Result<Log, LogError> {
        let _entered = host.enter();
        let addr = host.addr().to_string();
        let peer = Peer::at(&addr)?;
        Log::open(&peer, cfg)
    }

    /// The client's connection to a replica.
    pub(crate) fn link(&self, n: usize) -> Link {
        self.fabric.between(&self.client, &self.hosts[n])
    }

    /// Lets time pass until each of these replicas has all records, for a minute at most.
    pub(crate) fn until_they_have(&self, replicas: &[usize], end: u64) {
        let has = |n: &usize| self.has(*n, end);
        let _entered = self.client.enter();
        for _ in 0..600 {
            if replicas.iter().all(has) {
                return;
            }
            sleep(Duration::from_millis(100));
        }
        panic!("a replica does not get the records up to {end}");
    }

    /// The same for all replicas, and the records of an open log.
    pub(crate) fn until_all_have(&self, log: &Log) {
        let all: Vec<_> = (0..self.hosts.len()).collect();
        self.until_they_have(&all, log.bounds().1);
    }

    /// Whether a replica has all records up to there.
    pub(crate) fn has(&self, n: usize, end: u64) -> bool {
        self.found(n).is_ok_and(|found| found.tail.end >= end)
    }

    /// The log in a replica's memory.
    pub(crate) fn found(&self, n: usize) -> Result<Stored, LogError> {
        let _entered = self.hosts[n].enter();
        let map = PmemMap::open(self.pmems[n].path(), 0)?;
        let mut bytes = vec![0; place().end];
        map.read_at(0, &mut bytes)?;
        found(&bytes)
    }

    /// The directory and the log of a replica.
    pub(crate) fn bytes(&self, n: usize) -> Vec<u8> {
        self.pmems[n].bytes()[..place().end].to_vec()
    }

    /// Gives a replica another memory, which begins with these bytes.
    pub(crate) fn refill(&mut self, n: usize, name: &str, bytes: &[u8]) {
        let pmem = self.hosts[n].pmem(name, pool());
        {
            let _entered = self.hosts[n].enter();
            let map = PmemMap::open(pmem.path(), 0).expect("a map");
            map.write_at(0, bytes).expect("inside");
            map.persist(..bytes.len()).expect("durable");
        }
        self.pmems[n] = pmem;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop_all();
    }
}

/// Cuts the power of a host that has some.
pub(crate) fn cut_power(host: &Host) {
    if host.has_power() {
        host.power_cut();
    }
}

/// The settings of a replica that are the same for all.
fn settings(addr: SocketAddr, path: &Path) -> ServerCfg {
    let mut cfg = ServerCfg::new(addr, path);
    cfg.set_keys(1).set_ring(RING_LEN).set_silence(SILENCE);
    cfg
}

/// The part of a replica's memory that has the log, without the directory.
pub(crate) fn place() -> std::ops::Range<usize> {
    let cfg = settings(([0; 4], 0).into(), Path::new(""));
    cfg.place(LOG_KEY).expect("a key")
}

/// The log in these bytes of a replica's memory.
pub(crate) fn found(memory: &[u8]) -> Result<Stored, LogError> {
    Stored::decode(&memory[place()], RING_LEN)
}
