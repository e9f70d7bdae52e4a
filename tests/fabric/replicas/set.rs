//! A set of replicas, each on a host of its own, and their client.

use rpma::Result;
use rpma::commit::{CommitId, Method, Record, Refused, ReplicaId, Replicas, Writer, WriterCfg};

use crate::common::prelude::*;

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
}

impl Way {
    pub(crate) fn visible() -> Self {
        Self {
            method: Method::Reading,
            flush_type: FlushType::Visibility,
            platform: Platform::AdrDdioOff,
            in_flight: 4,
            retries: 2,
        }
    }

    pub(crate) fn writer_cfg(&self) -> failed::Result<WriterCfg> {
        let mut cfg = WriterCfg::new(self.method);
        cfg.set_flush_type(self.flush_type)?;
        cfg.set_in_flight(self.in_flight)?;
        Ok(cfg)
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

/// A connection of a replica.
pub(crate) struct Made {
    pub(crate) writer: Writer,
    pub(crate) region: MrRemote,
    /// The replica's end.
    pub(crate) far: Conn,
}

impl Server {
    pub(crate) fn new(fabric: &Fabric, name: &str, way: Way) -> failed::Result<Self> {
        let host = fabric.host(name);
        host.set_platform(way.platform);
        let pmem = host.pmem("log", SIZE);
        let _entered = host.enter();
        let addr = host.addr().to_string();
        let device = Device::from_addr(&addr, Side::Local)?;
        let peer = Peer::new(&device)?;
        let map = PmemMap::open(pmem.path(), SIZE)?;
        let usage = MrUsage::WRITE_DST
            | MrUsage::READ_SRC
            | MrUsage::FLUSH_TYPE_VISIBILITY
            | MrUsage::FLUSH_TYPE_PERSISTENT;
        let target = Mr::reg(&peer, map, usage)?;
        Ok(Self {
            host: host.clone(),
            pmem,
            target,
            peer,
            ends: Vec::new(),
        })
    }

    /// A writer of the client, and the region. `peer` is the client's.
    pub(crate) fn writer(
        &mut self,
        client: &Host,
        peer: &Peer,
        way: Way,
    ) -> failed::Result<(Writer, MrRemote)> {
        let made = self.connect(client, peer, way, &self.target)?;
        self.ends.push(made.far);
        Ok((made.writer, made.region))
    }

    /// A writer to this memory.
    pub(crate) fn connect<M>(
        &self,
        client: &Host,
        peer: &Peer,
        way: Way,
        target: &Mr<M>,
    ) -> failed::Result<Made> {
        let addr = self.host.addr().to_string();
        let ep = {
            let _entered = self.host.enter();
            Ep::listen(&self.peer, &addr, 0)?
        };
        let _entered = client.enter();
        let cfg = way.writer_cfg()?;
        let mut settings = ConnCfg::new();
        settings.set_retry_count(way.retries)?;
        let settings = cfg.conn_cfg(&settings)?;
        let req = ConnReq::new(peer, &addr, ep.get_port(), &settings)?;
        let connecting = Writer::connect(req, &cfg, &Offer::new(&PeerCfg::new()))?;
        let far = {
            let _entered = self.host.enter();
            let asked = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT);
            let native = way.method == Method::Native;
            let mut platform = PeerCfg::new();
            platform.set_direct_write_to_pmem(self.host.may_promise_direct_write(native));
            let mut offer = Offer::new(&platform);
            offer.add_region(target);
            let offer = offer.encode(Offer::ACCEPT)?;
            asked?.connect(&offer)?
        };
        let writer = connecting.wait(LIMIT)?;
        let far = far.wait_established(LIMIT)?;
        let region = writer.offer().regions()[0];
        Ok(Made {
            writer,
            region,
            far,
        })
    }

    /// The region as the replica's program finds it.
    pub(crate) fn bytes(&self) -> failed::Result<Vec<u8>> {
        let mut bytes = vec![0; SIZE];
        self.target.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Three replicas.
pub(crate) struct Set {
    pub(crate) log: Replicas,
    pub(crate) ids: Vec<ReplicaId>,
    pub(crate) servers: Vec<Server>,
    pub(crate) client: Host,
    pub(crate) peer: Peer,
}

impl Set {
    /// A set with a ring of the bytes of so many records.
    pub(crate) fn new(fabric: &Fabric, way: Way, records: usize) -> failed::Result<Self> {
        let client = fabric.host("client");
        let names = ["a", "b", "c"];
        let mut servers: Vec<_> = names
            .iter()
            .map(|name| Server::new(fabric, name, way))
            .collect::<Result<_, _>>()?;
        let peer = {
            let _entered = client.enter();
            let addr = servers[0].host.addr().to_string();
            Peer::new(&Device::from_addr(&addr, Side::Remote)?)?
        };
        let mut log = Replicas::new(&peer, records * LEN, 3 * records)?;
        let mut ids = Vec::new();
        for server in &mut servers {
            let (writer, region) = server.writer(&client, &peer, way)?;
            ids.push(log.add(writer, region)?);
        }
        Ok(Self {
            log,
            ids,
            servers,
            client,
            peer,
        })
    }

    /// A record with its bytes.
    pub(crate) fn record(&mut self, number: u64) -> Result<Record<'_>, Refused> {
        let mut made = self.log.record(LEN)?;
        made.put(0, &record(number))?;
        Ok(made)
    }

    /// Commits a record, and the tail that shows it.
    pub(crate) fn append(&mut self, number: u64, k: usize) -> Result<CommitId, Refused> {
        let at = START + number * LEN as u64;
        let tail = (number + 1).to_le_bytes();
        self.record(number)?.commit(at, Some((0, tail)), k)
    }
}

/// The bytes of a record.
pub(crate) fn record(number: u64) -> [u8; LEN] {
    std::array::from_fn(|at| (number * 31 + at as u64 * 7 + 1) as u8)
}

/// How many records a region shows. Each of them is whole.
pub(crate) fn whole(bytes: &[u8]) -> u64 {
    let tail = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    for number in 0..tail {
        let at = START as usize + number as usize * LEN;
        assert!(
            bytes[at..at + LEN] == record(number),
            "record {number} of {tail} is not what was written"
        );
    }
    tail
}

/// The methods of the devices of this profile.
pub(crate) fn methods(profile: &Profile) -> Vec<Method> {
    match profile.flushes_natively() {
        true => vec![Method::Native, Method::Reading],
        false => vec![Method::Reading],
    }
}
