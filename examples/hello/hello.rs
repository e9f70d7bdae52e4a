//! A server offers memory, and a client writes to it.

use std::error::Error;
use std::time::Duration;

use rpma::{
    ConnCfg, ConnReq, Device, Ep, Flags, FlushType, Mr, MrUsage, Offer, Peer, PeerCfg, Side,
};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The limit of each wait.
const LIMIT: Duration = Duration::from_secs(60);

/// Listens on a port of the server's own address. Port 0 is any free one.
pub fn listen(addr: &str, port: u16) -> Result<(Peer, Ep)> {
    let peer = Peer::new(&Device::from_addr(addr, Side::Local)?)?;
    let ep = Ep::listen(&peer, addr, port)?;
    Ok((peer, ep))
}

/// Lets one client write to memory, and returns the memory.
pub fn serve(peer: &Peer, ep: &Ep) -> Result<Vec<u8>> {
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    let memory = Mr::reg(peer, vec![0; 1024], usage)?;

    // The answer to the client has the address and the key of the memory.
    let offer = Offer::new(&PeerCfg::new())
        .add_region(&memory)
        .encode(Offer::ACCEPT)?;
    let request = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    let conn = request.connect(&offer)?.wait_established(LIMIT)?;

    // The client works with the memory, and then closes the connection.
    conn.wait_ended(LIMIT)?;
    drop(conn);
    Ok(memory.dereg()?)
}

/// Writes to the memory of a server. After `Ok` the server's programs see the bytes there.
pub fn write(addr: &str, port: u16, bytes: &[u8]) -> Result<()> {
    let peer = Peer::new(&Device::from_addr(addr, Side::Remote)?)?;
    let source = Mr::reg(&peer, bytes.to_vec(), MrUsage::WRITE_SRC)?;

    let asking = ConnReq::new(&peer, addr, port, &ConnCfg::new())?.connect(&[])?;
    let conn = asking.wait_established(LIMIT)?;
    let offer = conn.offer()?;
    let memory = offer.memory(bytes.len() as u64)?;
    let target = memory.slice(..bytes.len() as u64)?;

    conn.write(target, source.slice(..)?, Flags::COMPLETION_ON_ERROR, 1)?;
    let flushed = conn.flush(target, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 2)?;
    conn.wait_for(flushed, LIMIT, |_| {})?;
    conn.close(LIMIT)?;
    Ok(())
}
