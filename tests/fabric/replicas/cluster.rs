//! Three replicas of any method, each with a program that runs by itself, and their client.

use rpma::sim::JoinHandle;

use crate::replicas::prelude::*;
use crate::replicas::served::Three;

/// The calling thread is on the client for as long as this lives.
pub(crate) struct Cluster {
    pub(crate) log: Replicas,
    pub(crate) ids: Vec<ReplicaId>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) pmems: Vec<Pmem>,
    pub(crate) client: Host,
    pub(crate) way: Way,
    serving: Vec<JoinHandle<()>>,
    _servers: Vec<Server>,
    _entered: Entered,
}

impl Cluster {
    /// A set with a ring for so many records.
    pub(crate) fn new(fabric: &Fabric, way: Way, records: usize) -> Result<Self> {
        if way.method == Method::Server {
            return Self::served(fabric, way, records);
        }
        let set = Set::on(fabric, way, records)?;
        Ok(Self {
            log: set.log,
            ids: set.ids,
            hosts: set.servers.iter().map(|of| of.host.clone()).collect(),
            pmems: set.servers.iter().map(|of| of.pmem.clone()).collect(),
            client: set.client,
            way,
            serving: Vec::new(),
            _servers: set.servers,
            _entered: set.entered,
        })
    }

    fn served(fabric: &Fabric, way: Way, records: usize) -> Result<Self> {
        let three = Three::new(fabric, way.retries, records, 3 * records)?;
        let servers = three.hosts.iter().zip(three.servers);
        let (pmems, serving) = servers
            .map(|(host, served)| (served.pmem.clone(), host.spawn(move || served.serve())))
            .unzip();
        Ok(Self {
            log: three.log,
            ids: three.ids,
            hosts: three.hosts.to_vec(),
            pmems,
            client: three.client,
            way,
            serving,
            _servers: Vec::new(),
            _entered: three.entered,
        })
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.way.flush_type == FlushType::Persistent
    }

    /// Commits a record, and the tail that shows it.
    pub(crate) fn append(&mut self, number: u64, k: usize) -> rpma::Result<CommitId> {
        append(&mut self.log, number, k)
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
