//! Two ends of one connection, on one host or on two, and the steps to them.

use rpma::{Conn, ConnCfg, ConnReq, Ep, Flags, Mr, MrUsage, Peer, Posted, RemoteSlice, Result};

use super::{LIMIT, Memory, addr, pattern, region, remote};

/// Two ends of one connection. Both are established.
pub(crate) struct Pair {
    pub(crate) client: Conn,
    pub(crate) server: Conn,
}

impl Pair {
    pub(crate) fn new(peer: &Peer) -> Self {
        Self::with(peer, &ConnCfg::new(), &ConnCfg::new())
    }

    pub(crate) fn with(peer: &Peer, client: &ConnCfg, server: &ConnCfg) -> Self {
        Self::of_peers((peer, client), (peer, server))
    }

    /// A client of one peer and a server of another, of the same device.
    pub(crate) fn of_peers(client: (&Peer, &ConnCfg), server: (&Peer, &ConnCfg)) -> Self {
        Self::between(&addr(), client, server, (&[], &[])).expect("established")
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
pub(crate) fn listen(peer: &Peer) -> Ep {
    Ep::listen(peer, &addr(), 0).expect("listens")
}

/// A client that asks an endpoint of this host, and has no answer yet.
pub(crate) fn ask(peer: &Peer, ep: &Ep, cfg: &ConnCfg) -> Conn {
    let req = ConnReq::new(peer, &addr(), ep.get_port(), cfg).expect("resolves");
    req.connect(&[]).expect("asks")
}

/// The next request, in time.
pub(crate) fn request(ep: &Ep, cfg: &ConnCfg) -> ConnReq {
    ep.next_conn_req_timeout(cfg, LIMIT).expect("a request")
}

/// Accepts the next request. Neither end has taken its event yet.
pub(crate) fn accept(ep: &Ep, cfg: &ConnCfg) -> Conn {
    request(ep, cfg).connect(&[]).expect("accepts")
}

/// Bytes of the client, and memory of the server that has others.
pub(crate) struct Memories {
    pub(crate) source: Mr<Memory>,
    pub(crate) target: Mr<Memory>,
}

impl Memories {
    pub(crate) fn new(client: &Peer, server: &Peer, len: usize) -> Self {
        let source = MrUsage::WRITE_SRC | MrUsage::READ_DST | MrUsage::SEND;
        let source = region(client, len, source);
        source.write_at(0, &pattern(len, 1)).expect("inside");
        let target = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(server, len, target);
        Self { source, target }
    }

    /// The target, as the client sees it.
    pub(crate) fn to(&self) -> RemoteSlice {
        remote(&self.target).slice(..).expect("all")
    }

    /// Writes all bytes, if the connection takes operations.
    pub(crate) fn write(&self, conn: &Conn, op_context: u64) -> Result<Posted> {
        let (to, from) = (self.to(), self.source.slice(..)?);
        conn.write(to, from, Flags::COMPLETION_ALWAYS, op_context)
    }
}
