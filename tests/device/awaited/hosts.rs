//! Servers of one log, each on a host of its own, in virtual time: their writers, by each method,
//! and the faults of such a host.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use rpma::commit::{self, Method, WriterCfg};
use rpma::reconnect::ToWriter;
use rpma_async::{Pool, Reactor, Writer};
use tokio::task::JoinHandle;

use crate::awaited::served::{Serving, Stopped, TAIL, cfg, client_of};
use crate::awaited::world::{World, impatient, virtually};
use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, directory_of, identity, new_directory};

/// A byte that no commit has.
const SPOILED: u8 = 0xee;

/// The methods that the device of these tests has.
pub(crate) fn methods() -> impl Iterator<Item = Method> {
    let native = profile().flushes_natively().then_some(Method::Native);
    native.into_iter().chain([Method::Reading, Method::Server])
}

/// A server, on the weakest platform on which commits by its method are durable.
pub(crate) struct Far {
    pub(crate) host: Host,
    /// From the client's host, and to it.
    pub(crate) there: Link,
    pub(crate) back: Link,
    pub(crate) pmem: Pmem,
    method: Method,
    reactor: Reactor,
    addr: SocketAddr,
    serving: Option<Serving>,
    /// The clients that were admitted.
    instances: u64,
    /// Its program, when that does not run any more.
    stopped: Option<Stopped>,
    /// A client that came after a writer, and has ended the writer's connection.
    newer: Option<commit::Writer>,
}

impl Far {
    pub(crate) fn new(world: &World, name: &str, method: Method) -> Result<Self> {
        let host = world.fabric.host(name);
        let mut platforms = [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr].into_iter();
        // By the server's method its program makes bytes durable.
        let keeps = method != Method::Server
            && platforms.any(|platform| {
                host.set_platform(platform);
                host.may_promise_direct_write(method == Method::Native)
            });
        let _entered = host.enter();
        let pmem = host.pmem("log", 2 * LEN);
        let all = PmemMap::open(pmem.path(), 2 * LEN)?;
        let directory = new_directory(directory_of(&all)?, 31)?;
        let mut platform = PeerCfg::new();
        platform.set_direct_write_to_pmem(keeps);
        let mut cfg = cfg()?;
        cfg.set_platform(&platform);
        let site = Site::over(1, &cfg, all, directory)?;
        let reactor = Reactor::spawn(&site.far)?;
        let serving = Serving::of(&reactor, site)?;
        Ok(Self {
            there: world.fabric.between(&world.hosts[0], &host),
            back: world.fabric.between(&host, &world.hosts[0]),
            pmem,
            method,
            addr: serving.addr,
            serving: Some(serving),
            reactor,
            instances: 0,
            stopped: None,
            newer: None,
            host: host.clone(),
        })
    }

    /// A writer of the first host, with so many commits in flight.
    pub(crate) async fn connect(
        &mut self,
        world: &World,
        in_flight: u16,
        conn: &ConnCfg,
    ) -> Result<commit::Writer> {
        self.instances += 1;
        let mut cfg = WriterCfg::new(self.method);
        cfg.set_in_flight(in_flight)?;
        let identity = identity(1, self.instances, self.instances);
        let from = &world.reactors[0];
        let mut client = client_of(from, self.addr, identity, ToWriter::new(&cfg))?;
        Ok(client.connect(conn).await?)
    }

    /// As [`connect`](Self::connect), awaited, by settings that notice a lost host soon.
    pub(crate) async fn writer(&mut self, world: &World, in_flight: u16) -> Result<Writer> {
        let writer = self.connect(world, in_flight, &impatient()).await?;
        Ok(Writer::new(&world.reactors[0], writer)?)
    }

    /// The record and the pointer that the memory has: while the host has power, those that are
    /// visible.
    pub(crate) fn record(&self) -> (Vec<u8>, u64) {
        let bytes = &self.pmem.bytes()[LEN..];
        let tail = bytes[TAIL as usize..][..8].try_into().expect("8 bytes");
        (bytes[64..164].to_vec(), u64::from_ne_bytes(tail))
    }

    /// Cuts the power, and sees that the memory has a commit of these numbers.
    pub(crate) async fn keeps(&mut self, numbers: RangeInclusive<u64>) {
        self.stop().await;
        if self.host.has_power() {
            self.host.power_cut();
        }
        let (record, tail) = self.record();
        assert!(numbers.contains(&tail), "{tail} of {numbers:?}");
        let is_kept = |byte: &u8| (tail..=*numbers.end()).contains(&u64::from(*byte));
        assert!(record.iter().all(is_kept), "{record:?} of {numbers:?}");
    }

    /// Stops its task, which answers no commit any more: its connections live.
    pub(crate) async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            self.stopped = Some(serving.stop().await);
        }
    }

    /// The end of its program.
    pub(crate) async fn end(mut self) {
        drop(self.newer.take());
        self.stop().await;
        drop((self.stopped, self.reactor));
    }
}

/// So many servers, each with a host.
pub(crate) fn fars(world: &World, count: usize, method: Method) -> Vec<Far> {
    let names = ["one", "two", "three"].into_iter().take(count);
    names
        .map(|name| Far::new(world, name, method).expect("a reactor"))
        .collect()
}

/// The end of their programs.
pub(crate) async fn end_all(fars: impl IntoIterator<Item = Far>) {
    for far in fars {
        far.end().await;
    }
}

/// Takes all blocks of a pool as they come back, and writes over them.
pub(crate) fn spoil(pool: &Pool) -> JoinHandle<()> {
    let pool = pool.clone();
    tokio::spawn(async move {
        let mut all = Vec::new();
        while all.len() < pool.blocks() {
            let mut block = pool.lease().await;
            block.fill(SPOILED);
            all.push(block);
        }
    })
}

/// The outage of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// Its host stands still.
    Frozen,
    /// No message arrives, in either direction.
    Parted,
    /// No message arrives at the server.
    NothingArrives,
    /// No message of the server arrives.
    NothingReturns,
    /// Its program is killed.
    Killed,
    /// Its host loses its power.
    NoPower,
    /// It cuts the client off, because another one with this key has come.
    CutOff,
}

impl Outage {
    pub(crate) const ALL: [Self; 7] = [
        Self::Frozen,
        Self::Parted,
        Self::NothingArrives,
        Self::NothingReturns,
        Self::Killed,
        Self::NoPower,
        Self::CutOff,
    ];

    pub(crate) async fn begin(self, world: &World, far: &mut Far) -> Result {
        if matches!(self, Self::Killed | Self::NoPower) {
            // The threads of a program that is killed stop.
            far.stop().await;
        }
        match self {
            Self::Frozen => far.host.freeze(),
            Self::Parted => far.there.partition(),
            Self::NothingArrives => far.there.block(),
            Self::NothingReturns => far.back.block(),
            Self::Killed => far.host.kill(),
            Self::NoPower => far.host.power_cut(),
            Self::CutOff => far.newer = Some(far.connect(world, 1, &impatient()).await?),
        }
        Ok(())
    }

    pub(crate) fn end(self, far: &Far) {
        match self {
            Self::Frozen => far.host.thaw(),
            Self::Parted | Self::NothingArrives | Self::NothingReturns => far.there.heal(),
            Self::Killed | Self::NoPower | Self::CutOff => {}
        }
    }

    /// Whether the client gets an event of the end.
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Self::Killed | Self::CutOff)
    }

    /// Whether commits by this method go on after [`end`](Self::end), if the retries last.
    pub(crate) fn passes(self, method: Method) -> bool {
        // It refuses a native flush that is sent again.
        let refuses = method == Method::Native && profile().name() == Profile::RXE_6_12.name();
        match self {
            Self::Frozen | Self::Parted | Self::NothingArrives => true,
            Self::NothingReturns => !refuses,
            Self::Killed | Self::NoPower | Self::CutOff => false,
        }
    }
}

/// Runs a test for each method and each fault.
pub(crate) fn with_each(test: impl AsyncFn(&World, Method, Outage) -> Result) -> Result {
    for method in methods() {
        for outage in Outage::ALL {
            println!("{method}, {outage:?}");
            virtually(async |world| test(world, method, outage).await)?;
        }
    }
    Ok(())
}

/// Promise: a task that waits for a commit, and sleeps, gets the reason when a keep-alive ends the
/// connection: no event of the end comes then. This holds for each method.
#[test]
fn a_keep_alive_wakes_a_commit() -> Result {
    const MINUTE: Duration = Duration::from_secs(60);
    for method in methods() {
        virtually(async |world| {
            let mut far = Far::new(world, "far", method)?;
            let mut conn = ConnCfg::new();
            conn.set_keep_alive(Some(Duration::from_secs(5)))?;
            // The retries of an operation take longer.
            conn.set_ack_timeout(Some(18))?;
            let client = &world.reactors[0];
            let writer =
                Writer::new(client, far.connect(world, 4, &conn).await.expect("C")).expect("W");
            let pool = Pool::new(client.peer(), 100, 4)?;
            far.there.partition();
            far.back.partition();
            let to = writer.offer().regions()[0].slice(64..164)?;
            let from = pool.try_lease().ok_or("a block")?.freeze();
            let ticket = writer.commit([(to, from)], None).expect("T");
            let waiting = writer.durable(ticket);
            let ended = client.timeout(MINUTE, waiting).await;
            let ended = ended.unwrap_or_else(|| panic!("{method:?}: it does not end"));
            let error = ended.expect_err("nothing has arrived");
            let is_silent = matches!(error, Error::NotConnected(NotConnected::Silent));
            assert!(is_silent, "{method:?}: {error:?}");
            drop(writer);
            far.end().await;
            Ok(())
        })?;
    }
    Ok(())
}
