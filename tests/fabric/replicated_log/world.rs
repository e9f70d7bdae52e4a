//! Three simulated hosts with the program of a replica, and one for the writer.

use std::net::SocketAddr;
use std::path::PathBuf;

use rpma::commit::Method;
use rpma::sim::{JoinHandle, sleep};
use rpma::wait::Waker;

pub(crate) use crate::common::prelude::*;
use crate::replicated_log::example::blocking::Log;
use crate::replicated_log::example::format::Found;
use crate::replicated_log::example::log::{LogCfg, REPLICAS};
use crate::replicated_log::example::server::Settings;
use crate::replicated_log::example::{Fault, LogError, Lsn};

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
    pub(crate) hosts: [Host; REPLICAS],
    pub(crate) pmems: Vec<Pmem>,
    running: [Option<Running>; REPLICAS],
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
        let hosts = ["a", "b", "c"].map(|name| fabric.host(name));
        let pmem = |host: &Host| {
            host.set_platform(way.platform);
            host.pmem("log", pool())
        };
        Self {
            client: fabric.host("client"),
            pmems: hosts.iter().map(pmem).collect(),
            hosts,
            running: [const { None }; REPLICAS],
            fabric: fabric.clone(),
            way,
            fault,
        }
    }

    /// Starts the program of a replica.
    pub(crate) fn start(&mut self, n: usize) -> anyhow::Result<()> {
        let host = &self.hosts[n];
        let _entered = host.enter();
        let settings = Settings {
            addr: self.addr(n),
            path: self.pmems[n].path().to_owned(),
            ddio_off: self.way.platform == Platform::AdrDdioOff,
            fault: self.fault,
            ..settings()
        };
        let mut server = settings.open()?;
        let waker = server.waker();
        let thread = host.spawn(move || {
            let served = server.serve(|served| log::info!("{served}"));
            served.map_err(|error| error.to_string())
        });
        self.running[n] = Some(Running { waker, thread });
        Ok(())
    }

    pub(crate) fn start_all(&mut self) {
        (0..REPLICAS).for_each(|n| self.start(n).expect("a replica"));
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
        for n in 0..REPLICAS {
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
        (0..REPLICAS).for_each(|n| self.stop(n));
    }

    fn addr(&self, n: usize) -> SocketAddr {
        // Replicas may share a host.
        (self.hosts[n].addr(), PORT + n as u16).into()
    }

    pub(crate) fn cfg(&self, epoch: u64) -> LogCfg {
        LogCfg {
            replicas: (0..REPLICAS).map(|n| self.addr(n)).collect(),
            key: LOG_KEY,
            epoch,
            method: self.way.method,
            ring: RING_LEN,
            create: epoch == 1,
            take_over: false,
            one_host: false,
            limit: LIMIT,
            silence: SILENCE,
            fault: self.fault,
        }
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
    pub(crate) fn until_they_have(&self, replicas: &[usize], end: Lsn) {
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
        self.until_they_have(&[0, 1, 2], log.bounds().1);
    }

    /// Whether a replica has all records up to there.
    pub(crate) fn has(&self, n: usize, end: Lsn) -> bool {
        self.found(n).is_ok_and(|found| found.tail.end >= end)
    }

    /// The log in a replica's memory.
    pub(crate) fn found(&self, n: usize) -> Result<Found, LogError> {
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
fn settings() -> Settings {
    Settings {
        addr: ([0; 4], 0).into(),
        path: PathBuf::new(),
        keys: 1,
        ring: RING_LEN,
        ddio_off: false,
        silence: SILENCE,
        fault: Fault::Nothing,
    }
}

/// The part of a replica's memory that has the log, without the directory.
pub(crate) fn place() -> std::ops::Range<usize> {
    let layout = settings().layout().expect("a layout");
    layout.part(LOG_KEY).expect("a key")
}

/// The log in these bytes of a replica's memory.
pub(crate) fn found(memory: &[u8]) -> Result<Found, LogError> {
    Found::decode(&memory[place()], RING_LEN)
}
