//! A set of replicas, each on a host of its own, and their client.

use std::sync::atomic::{AtomicU64, Ordering};

use rpma::commit::{
    CommitId, Connecting, Method, Outcome, Record, ReplicaId, Replicas, Writer, WriterCfg,
};
use rpma::sim::{Entered, Errno, Failing};

pub(crate) use crate::common::prelude::*;

pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// The size of each region.
pub(crate) const SIZE: usize = 4096;
/// Where the records begin, and their length.
pub(crate) const START: u64 = 64;
pub(crate) const LEN: usize = 104;

/// How the replicas are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) method: Method,
    pub(crate) flush_type: FlushType,
    pub(crate) platform: Platform,
    pub(crate) in_flight: u16,
    pub(crate) retries: u8,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) spin: Duration,
}

impl Way {
    pub(crate) fn visible() -> Self {
        Self {
            method: Method::Reading,
            flush_type: FlushType::Visibility,
            platform: Platform::AdrDdioOff,
            in_flight: 4,
            retries: 2,
            keep_alive: None,
            spin: Duration::ZERO,
        }
    }

    pub(crate) fn durable(method: Method, platform: Platform) -> Self {
        Self {
            method,
            flush_type: FlushType::Persistent,
            platform,
            in_flight: 2,
            ..Self::visible()
        }
    }

    /// With so many requests in flight, which the device sends again so often.
    pub(crate) fn sending(self, in_flight: u16, retries: u8) -> Self {
        Self {
            in_flight,
            retries,
            ..self
        }
    }

    /// The settings of the client's connections.
    fn conn_cfg(&self) -> Result<ConnCfg> {
        let mut cfg = ConnCfg::new();
        cfg.set_retry_count(self.retries)?.set_spin(self.spin);
        cfg.set_keep_alive(self.keep_alive)?;
        Ok(cfg)
    }

    /// Whether a host of this profile may promise that writes are durable.
    pub(crate) fn may_be_durable(&self, profile: &Profile) -> bool {
        let host = Rig::of(profile).seed(1).fabric().host("server");
        host.set_platform(self.platform);
        host.may_promise_direct_write(self.method == Method::Native)
    }
}

/// A replica's host, its memory, and its end of the connection.
pub(crate) struct Server {
    pub(crate) host: Host,
    pub(crate) pmem: Pmem,
    pub(crate) target: Mr<PmemMap>,
    pub(crate) peer: Peer,
    pub(crate) ends: Vec<Conn>,
}

impl Server {
    pub(crate) fn new(fabric: &Fabric, name: &str, way: Way) -> Result<Self> {
        let host = fabric.host(name);
        host.set_platform(way.platform);
        let pmem = host.pmem("log", SIZE);
        let _entered = host.enter();
        let peer = peer()?;
        let map = PmemMap::open(pmem.path(), SIZE)?;
        let usage = MrUsage::WRITE_DST
            | MrUsage::READ_SRC
            | MrUsage::FLUSH_TYPE_VISIBILITY
            | MrUsage::FLUSH_TYPE_PERSISTENT;
        Ok(Self {
            target: Mr::reg(&peer, map, usage)?,
            host,
            pmem,
            peer,
            ends: Vec::new(),
        })
    }

    /// A writer of the client, whose peer this is.
    pub(crate) fn writer(&mut self, peer: &Peer, way: Way) -> Result<Writer> {
        let (writer, far) = self.connect(peer, way, &self.target)?;
        self.ends.push(far);
        Ok(writer)
    }

    /// A writer to this memory, and the replica's end of the connection.
    pub(crate) fn connect<M>(&self, peer: &Peer, way: Way, to: &Mr<M>) -> Result<(Writer, Conn)> {
        let addr = self.host.addr().to_string();
        let ep = Ep::listen(&self.peer, &addr, 0)?;
        let mut cfg = WriterCfg::new(way.method);
        cfg.set_flush_type(way.flush_type)?
            .set_in_flight(way.in_flight)?;
        let connecting = ask(peer, &addr, &ep, &cfg, &way.conn_cfg()?)?;
        let native = way.method == Method::Native;
        let mut platform = PeerCfg::new();
        platform.set_direct_write_to_pmem(self.host.may_promise_direct_write(native));
        let mut offer = Offer::new(&platform);
        offer.add_region(to);
        let req = request(&ep, &ConnCfg::new())?;
        let far = req.connect(&offer.encode(Offer::ACCEPT)?)?;
        Ok((connecting.wait(LIMIT)?, far.wait_established(LIMIT)?))
    }

    /// The region as the replica's program finds it.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; SIZE];
        self.target.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// A writer of the client that asks this endpoint.
pub(crate) fn ask(
    peer: &Peer,
    addr: &str,
    ep: &Ep,
    cfg: &WriterCfg,
    settings: &ConnCfg,
) -> Result<Connecting> {
    let settings = cfg.conn_cfg(settings)?;
    let req = ConnReq::new(peer, addr, ep.get_port(), &settings)?;
    Ok(Writer::connect(req, cfg, &Offer::default())?)
}

/// Adds a replica, with the region that it offers.
pub(crate) fn add(log: &mut Replicas, writer: Writer) -> Result<ReplicaId> {
    let region = writer.offer().regions()[0];
    Ok(log.add(writer, region)?)
}

/// The replicas of an outcome, with a bit for the place of each.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) durable: u64,
    pub(crate) failed: u64,
    pub(crate) unknown: u64,
}

impl Named {
    pub(crate) fn by(log: &Replicas, outcome: Outcome) -> Self {
        Self {
            durable: mask(log.durable(outcome)),
            failed: mask(log.failed(outcome)),
            unknown: mask(log.unknown(outcome)),
        }
    }
}

/// Three replicas, and their client, on which the calling thread is.
pub(crate) struct Set {
    pub(crate) log: Replicas,
    pub(crate) ids: Vec<ReplicaId>,
    pub(crate) servers: Vec<Server>,
    pub(crate) client: Host,
    pub(crate) peer: Peer,
    pub(crate) fabric: Fabric,
    pub(crate) entered: Entered,
}

impl Set {
    /// A set with a ring of the bytes of so many records.
    pub(crate) fn new(rig: &Rig, way: Way, records: usize) -> Result<Self> {
        Self::on(&rig.fabric(), way, records)
    }

    pub(crate) fn on(fabric: &Fabric, way: Way, records: usize) -> Result<Self> {
        let client = fabric.host("client");
        let servers = ["a", "b", "c"].map(|name| Server::new(fabric, name, way));
        let mut servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
        let entered = client.enter();
        let peer = peer()?;
        let mut log = Replicas::new(&peer, records * LEN, 3 * records)?;
        let mut ids = Vec::new();
        for server in &mut servers {
            ids.push(add(&mut log, server.writer(&peer, way)?)?);
        }
        Ok(Self {
            log,
            ids,
            servers,
            client,
            peer,
            fabric: fabric.clone(),
            entered,
        })
    }

    /// Commits a record, and the tail that shows it.
    pub(crate) fn append(&mut self, number: u64, k: usize) -> rpma::Result<CommitId> {
        append(&mut self.log, number, k)
    }

    /// Commits a record, and waits for so many copies of it.
    pub(crate) fn commit(&mut self, number: u64, k: usize) -> rpma::Result<Named> {
        let id = self.append(number, k)?;
        Ok(self.settle(id, k, LIMIT))
    }

    pub(crate) fn settle(&mut self, id: CommitId, k: usize, limit: Duration) -> Named {
        let outcome = self.log.settle(id, k, limit);
        self.named(outcome)
    }

    pub(crate) fn outcome(&self, id: CommitId) -> Named {
        self.named(self.log.outcome(id))
    }

    /// The replicas of an outcome which was made now: each copy has a name.
    fn named(&self, outcome: Outcome) -> Named {
        let named = Named::by(&self.log, outcome);
        assert_eq!(named.durable.count_ones() as usize, outcome.copies());
        named
    }

    /// The queue pair of the replica that is set aside next stays, and may read the ring.
    pub(crate) fn keeps_queue_pair(&self) -> [Failing; 3] {
        let fails = |call| self.fabric.fail(call).on(&self.client);
        [
            fails("rdma_disconnect").next(Errno::IO),
            fails("ibv_modify_qp").next(Errno::IO),
            fails("ibv_destroy_qp").how(How::Refused).next(Errno::IO),
        ]
    }

    /// How many records each replica shows, when all is executed.
    pub(crate) fn shown(&self) -> Result<Vec<u64>> {
        self.fabric.settle();
        let servers = self.servers.iter();
        servers.map(|of| Ok(whole(&of.bytes()?))).collect()
    }
}

/// A record with its bytes.
pub(crate) fn made(log: &mut Replicas, number: u64) -> rpma::Result<Record<'_>> {
    let mut made = log.record(LEN)?;
    made.put(0, record(number)).expect("inside");
    Ok(made)
}

/// Commits a record, and the tail that shows it.
pub(crate) fn append(log: &mut Replicas, number: u64, k: usize) -> rpma::Result<CommitId> {
    let at = START + number * LEN as u64;
    let tail = (number + 1).to_le_bytes();
    made(log, number)?.commit(at, Some((0, tail)), k)
}

/// Fails if a cut leaves the acknowledged records on fewer than two of three replicas.
pub(crate) fn on_two(cut: &Cut<'_>, pmems: &[Pmem], acknowledged: &AtomicU64) {
    let told = acknowledged.load(Ordering::Relaxed);
    for images in cut.joint_images_up_to(&Vec::from_iter(pmems), 20) {
        let copies = images.iter().filter(|of| whole(of.bytes()) >= told).count();
        assert!(copies >= 2, "{told} records are on {copies} of 3 replicas");
    }
}

/// The bytes of a record.
pub(crate) fn record(number: u64) -> &'static [u8; LEN] {
    records::record(number)
}

/// How many records a region shows. Each of them is whole.
pub(crate) fn whole(bytes: &[u8]) -> u64 {
    let tail = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    for number in 0..tail {
        let at = START as usize + number as usize * LEN;
        let is_whole = bytes[at..at + LEN] == *record(number);
        assert!(is_whole, "record {number} of {tail} is another one");
    }
    tail
}

/// The methods of the devices of this profile.
pub(crate) fn methods(profile: &Profile) -> Vec<Method> {
    if profile.flushes_natively() {
        vec![Method::Native, Method::Reading]
    } else {
        vec![Method::Reading]
    }
}
