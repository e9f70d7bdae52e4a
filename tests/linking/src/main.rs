//! Writes to a host, and flushes: see tests/linking.rs.

use std::time::Duration;

use rpma::{
    Conn, ConnCfg, ConnReq, Device, Flags, FlushType, Mr, MrUsage, Offer, Peer, PeerCfg, Side,
};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).ok_or("usage: linking ADDR")?;
    write(&addr, 7204, b"hello")
}

/// Writes to the first region that the server offers.
fn write(addr: &str, port: u16, bytes: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    let peer = Peer::toward(addr)?;
    let source = Mr::reg(&peer, bytes.to_vec(), MrUsage::WRITE_SRC)?;
    let asking = ConnReq::new(&peer, addr, port, &ConnCfg::new())?.connect(&[])?;
    let conn: Conn = asking.wait_established(LIMIT)?;
    let offer = conn.offer()?;
    let region = offer.memory(bytes.len() as u64)?;
    let target = region.slice(..bytes.len() as u64)?;
    conn.write(target, source.slice(..)?, Flags::COMPLETION_ON_ERROR, 1)?;
    let flushed = conn.flush(target, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 2)?;
    conn.wait_for(flushed, LIMIT, |_| {})?;
    conn.close(LIMIT)?;
    Ok(())
}

/// Offers memory to one client, and returns it when the client has gone.
#[cfg_attr(not(test), allow(dead_code))]
fn serve(ep: &rpma::Ep, memory: Mr<Vec<u8>>) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(&memory);
    let req = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    let conn = req
        .connect(&offer.encode(Offer::ACCEPT)?)?
        .wait_established(LIMIT)?;
    conn.next_event_timeout(LIMIT)?;
    Ok(memory.dereg()?)
}

#[test]
fn a_write_arrives() {
    use rpma::sim::{Fabric, Profile};

    let fabric = Fabric::new(Profile::STRICT);
    let (client, server) = (fabric.host("client"), fabric.host("server"));
    let addr = server.addr().to_string();
    let entered = server.enter();
    let device = Device::from_addr(&addr, Side::Local).expect("the server's device");
    let peer = Peer::new(&device).expect("a peer");
    let ep = rpma::Ep::listen(&peer, &addr, 0).expect("listens");
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    let memory = Mr::reg(&peer, vec![0; 5], usage).expect("registers");
    drop(entered);
    let (to, port) = (addr.clone(), ep.get_port());
    let writing = client.spawn(move || write(&to, port, b"hello").map_err(|e| e.to_string()));
    assert_eq!(serve(&ep, memory).expect("serves"), b"hello");
    writing.join().expect("no panic").expect("writes");
}

#[test]
fn without_a_fabric() {
    let error = std::thread::spawn(|| Device::from_addr("10.77.0.1", Side::Local))
        .join()
        .expect("no panic")
        .expect_err("there is no device");
    let text = error.to_string();
    // The other test may have one at this moment; then the text has the place of each thread.
    assert!(text.contains("rpma::sim::"), "{text}");
}
