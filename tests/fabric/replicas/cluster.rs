//! Three replicas of any method, each with a program that runs by itself, and their client.

use rpma::commit::{CommitId, Method, Refused, ReplicaId, Replicas};
use rpma::sim::JoinHandle;

use crate::common::failed::Result;
use crate::common::prelude::*;
use crate::replicas::served::Served;
use crate::replicas::set::{LEN, START, Server, Set, Way, record};

pub(crate) struct Cluster {
    pub(crate) log: Replicas,
    pub(crate) ids: Vec<ReplicaId>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) pmems: Vec<Pmem>,
    pub(crate) client: Host,
    pub(crate) way: Way,
    serving: Vec<JoinHandle<()>>,
    _servers: Vec<Server>,
    _peer: Peer,
}

impl Cluster {
    /// A set with a ring for so many records.
    pub(crate) fn new(fabric: &Fabric, way: Way, records: usize) -> Result<Self> {
        if way.method == Method::Server {
            return Self::served(fabric, way, records);
        }
        let set = Set::new(fabric, way, records)?;
        Ok(Self {
            log: set.log,
            ids: set.ids,
            hosts: set.servers.iter().map(|of| of.host.clone()).collect(),
            pmems: set.servers.iter().map(|of| of.pmem.clone()).collect(),
            client: set.client,
            way,
            serving: Vec::new(),
            _servers: set.servers,
            _peer: set.peer,
        })
    }

    fn served(fabric: &Fabric, way: Way, records: usize) -> Result<Self> {
        let client = fabric.host("client");
        let hosts = ["a", "b", "c"].map(|name| fabric.host(name)).to_vec();
        let _entered = client.enter();
        let addr = hosts[0].addr().to_string();
        let device = Device::from_addr(&addr, Side::Remote)?;
        let peer = Peer::new(&device)?;
        let mut log = Replicas::new(&peer, records * LEN, 3 * records)?;
        let (mut ids, mut pmems, mut serving) = (Vec::new(), Vec::new(), Vec::new());
        for host in &hosts {
            let (served, writer) = Served::new(host, &client, &peer, way.retries)?;
            let region = writer.offer().regions()[0];
            ids.push(log.add(writer, region)?);
            pmems.push(served.pmem.clone());
            serving.push(host.spawn(move || served.serve()));
        }
        Ok(Self {
            log,
            ids,
            hosts,
            pmems,
            client: client.clone(),
            way,
            serving,
            _servers: Vec::new(),
            _peer: peer,
        })
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.way.flush_type == FlushType::Persistent
    }

    /// Commits a record, and the tail that shows it.
    pub(crate) fn append(&mut self, number: u64, k: usize) -> Result<CommitId, Refused> {
        let mut made = self.log.record(LEN)?;
        made.put(0, &record(number))?;
        let tail = Some((0, (number + 1).to_le_bytes()));
        made.commit(START + number * LEN as u64, tail, k)
    }

    /// Cuts the power of all replicas, and waits for the ends of their programs.
    pub(crate) fn cut_all(&mut self) {
        cut(&self.hosts);
        for serving in self.serving.drain(..) {
            serving.join().expect("no panic");
        }
    }
}

/// Cuts the power of hosts that have some.
pub(crate) fn cut(hosts: &[Host]) {
    for host in hosts.iter().filter(|host| host.has_power()) {
        host.power_cut();
    }
}
