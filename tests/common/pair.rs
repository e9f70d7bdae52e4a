//! Two ends of one connection, on one host or on two, and the steps to them.

use rpma::{Conn, ConnCfg, ConnReq, Ep, Flags, Mr, MrUsage, Peer, Posted, RemoteSlice, Result};

use super::{LIMIT, Memory, addr, pattern, region, remote};

/// Two ends of one connection. Both are established.
pub(crate) struct Pair {
    pub(crate) client: Conn,
    pub(crate) server: Conn,
}

impl Pair {
    pub(crate) fn new(peer: &Peer) -> super::Result<Self> {
        Self::with(peer, &ConnCfg::new(), &ConnCfg::new())
    }

    pub(crate) fn with(peer: &Peer, client: &ConnCfg, server: &ConnCfg) -> super::Result<Self> {
        Self::of_peers((peer, client), (peer, server))
    }

    /// A client of one peer and a server of another, of the same device.
    pub(crate) fn of_peers(
        client: (&Peer, &ConnCfg),
        server: (&Peer, &ConnCfg),
    ) -> super::Result<Self> {
        Ok(Self::between(&addr(), client, server, (&[], &[]))?)
    }

    /// A client of one peer, and a server of another at this address of its host. Each sends its
    /// private data to the other.
    pub(crate) fn between(
        addr: &str,
        (client_peer, client): (&Peer, &ConnCfg),
        (server_peer, server): (&Peer, &ConnCfg),
        (question, answer): (&[u8], &[u8]),
    ) -> Result<Self> {
        let ep = Ep::listen(server_peer, addr, 0)?;
        let req = ConnReq::new(client_peer, addr, ep.get_port(), client)?;
        let client = req.connect(question)?;
        let req = ep.next_conn_req_timeout(server, LIMIT)?;
        let server = req.connect(answer)?;
        Ok(Self {
            client: client.wait_established(LIMIT)?,
            server: server.wait_established(LIMIT)?,
        })
    }

    pub(crate) fn ends(self) -> (Conn, Conn) {
        (self.client, self.server)
    }
}

/// An endpoint of this host.
pub(crate) fn listen(peer: &Peer) -> super::Result<Ep> {
    Ok(Ep::listen(peer, &addr(), 0)?)
}

/// A client that asks an endpoint of this host, and has no answer yet.
pub(crate) fn ask(peer: &Peer, ep: &Ep, cfg: &ConnCfg) -> super::Result<Conn> {
    let req = ConnReq::new(peer, &addr(), ep.get_port(), cfg)?;
    Ok(req.connect(&[])?)
}

/// The next request, in time.
pub(crate) fn request(ep: &Ep, cfg: &ConnCfg) -> super::Result<ConnReq> {
    Ok(ep.next_conn_req_timeout(cfg, LIMIT)?)
}

/// Accepts the next request. Neither end has taken its event yet.
pub(crate) fn accept(ep: &Ep, cfg: &ConnCfg) -> super::Result<Conn> {
    Ok(request(ep, cfg)?.connect(&[])?)
}

/// Bytes of the client, and memory of the server that has others.
pub(crate) struct Memories {
    pub(crate) source: Mr<Memory>,
    pub(crate) target: Mr<Memory>,
}

impl Memories {
    pub(crate) fn new(client: &Peer, server: &Peer, len: usize) -> super::Result<Self> {
        let source = MrUsage::WRITE_SRC | MrUsage::READ_DST | MrUsage::SEND;
        let source = region(client, len, source)?;
        source.write_at(0, &pattern(len, 1))?;
        let target = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(server, len, target)?;
        Ok(Self { source, target })
    }

    /// The target, as the client sees it.
    pub(crate) fn to(&self) -> super::Result<RemoteSlice> {
        Ok(remote(&self.target).slice(..)?)
    }

    /// Writes all bytes, if the connection takes operations.
    pub(crate) fn write(&self, conn: &Conn, op_context: u64) -> Result<Posted> {
        let (to, from) = (self.to().expect("all"), self.source.slice(..)?);
        conn.write(to, from, Flags::COMPLETION_ALWAYS, op_context)
    }
}
