//! A server offers persistent memory, and a client writes to it.

use std::time::Duration;

use rpma::pmem::{Ddio, PmemMap};
use rpma::{ConnCfg, ConnReq, Ep, Mr, MrUsage, Offer, Peer, PeerCfg, Result};

/// The limit of each wait.
const LIMIT: Duration = Duration::from_secs(60);

/// Listens on a port of the server's own address. Port 0 is any free one.
pub fn listen(addr: &str, port: u16) -> Result<(Peer, Ep)> {
    let peer = Peer::at(addr)?;
    let ep = Ep::listen(&peer, addr, port)?;
    Ok((peer, ep))
}

/// Lets one client write to persistent memory, such as `/dev/dax0.0`.
pub fn serve(peer: &Peer, ep: &Ep, path: &str) -> Result<Mr<PmemMap>> {
    let map = PmemMap::open(path, 1024)?;
    let platform = PeerCfg::detect(&map, peer, Ddio::On)?;
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    let memory = Mr::reg(peer, map, usage)?;
    let request = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    // The client gets the address and the key of the memory.
    let conn = request.establish(Offer::new(&platform).add_region(&memory), LIMIT)?;
    // The client works with the memory, and then ends the connection.
    conn.wait_ended(LIMIT)?;
    Ok(memory)
}

/// Writes to the memory of a server. After `Ok`, the bytes survive a loss of power there.
pub fn write(addr: &str, port: u16, bytes: &[u8]) -> Result<()> {
    let peer = Peer::toward(addr)?;
    let source = Mr::reg(&peer, bytes.to_vec(), MrUsage::WRITE_SRC)?;
    let request = ConnReq::new(&peer, addr, port, &ConnCfg::new())?;
    let conn = request.establish(&Offer::default(), LIMIT)?;
    let memory = conn.offer()?.memory(bytes.len() as u64)?;
    let target = memory.slice(..bytes.len() as u64)?;
    conn.write_durable(target, source.slice(..)?, LIMIT)
}
