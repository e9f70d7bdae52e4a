//! Two hosts of a simulated fabric, which connect.

use rpma::sim::{Fabric, Host, Link};
use rpma::{Conn, ConnCfg, ConnReq, Ep, Peer, Result};

use super::{Memories, Pair, peer};

/// Two hosts, each with a peer: the client's is the first one, and the server's is the second.
pub(crate) struct World {
    pub(crate) hosts: [Host; 2],
    pub(crate) peers: [Peer; 2],
    /// From the first host to the second.
    pub(crate) link: Link,
    pub(crate) fabric: Fabric,
}

impl World {
    pub(crate) fn on(fabric: &Fabric) -> Self {
        Self::named(fabric, ["client", "server"])
    }

    pub(crate) fn named(fabric: &Fabric, names: [&str; 2]) -> Self {
        let hosts = names.map(|name| fabric.host(name));
        Self {
            peers: hosts.each_ref().map(peer_of),
            link: fabric.between(&hosts[0], &hosts[1]),
            hosts,
            fabric: fabric.clone(),
        }
    }

    /// Two ends of a connection, with the settings of the client and of the server.
    pub(crate) fn connect(&self, client: &ConnCfg, server: &ConnCfg) -> super::Result<Pair> {
        let _entered = self.hosts[0].enter();
        let addr = self.hosts[1].addr().to_string();
        let [near, far] = &self.peers;
        Ok(Pair::between(
            &addr,
            (near, client),
            (far, server),
            (&[], &[]),
        )?)
    }

    /// An endpoint of the server's host.
    pub(crate) fn listen(&self) -> super::Result<Ep> {
        let at = (self.hosts[1].addr(), 0).into();
        Ok(Ep::listen_on(&self.peers[1], at)?)
    }

    /// A request of the client's host to that endpoint. It is not sent yet.
    pub(crate) fn resolve(&self, ep: &Ep, cfg: &ConnCfg) -> Result<ConnReq> {
        let _entered = self.hosts[0].enter();
        let at = (self.hosts[1].addr(), ep.get_port()).into();
        ConnReq::to_addr(&self.peers[0], at, cfg)
    }

    /// A client that asks that endpoint, and has no answer yet.
    pub(crate) fn ask(&self, ep: &Ep, cfg: &ConnCfg) -> super::Result<Conn> {
        let req = self.resolve(ep, cfg)?;
        Ok(req.connect(&[])?)
    }

    /// Memory at both ends.
    pub(crate) fn memories(&self, len: usize) -> super::Result<Memories> {
        let [near, far] = &self.peers;
        Memories::new(near, far, len)
    }
}

/// A peer of a host's device. Objects that are made with it are on that host, whichever host the
/// thread is on.
pub(crate) fn peer_of(host: &Host) -> Peer {
    let _entered = host.enter();
    peer().expect("a peer on the test device")
}
