//! The shared parts of these tests: both kinds of sides, their offers to each other, and the memory
//! that they expect.

pub(crate) use crate::common::prelude::*;
use crate::common::program::{Program, free_port};

/// How much memory each side offers to the other.
pub(crate) const SHARED: usize = 8192;
/// Where the writes and reads of the tests go, and how long they are; `client.c` has the same.
pub(crate) const PARTS: [(usize, usize); 5] = [(13, 1), (20, 7), (40, 8), (64, 1000), (2000, 4096)];
/// How long the messages are; `client.c` has the same.
pub(crate) const MESSAGES: [usize; 5] = [1, 8, 1000, 4096, 0];
pub(crate) const MESSAGE_MAX: usize = 4096;

/// Begins a test, with a peer.
pub(crate) fn begin() -> Result<(Counted, Peer)> {
    let test = device_test();
    Ok((test, peer()?))
}

/// A client that connects to `ep`.
pub(crate) fn client(ep: &Ep, operation: &[&str]) -> Program {
    let (addr, port) = (addr(), ep.get_port().to_string());
    let args = [&[&*addr, &*port], operation].concat();
    Program::c("tests/programs/interop/client", &args)
}

/// A server that offers memory which it has registered for this, and a connection to it.
pub(crate) fn exposed(
    peer: &Peer,
    cfg: &ConnCfg,
    usage: MrUsage,
    path: Option<&str>,
) -> Result<(Program, Conn, MrRemote)> {
    let usage = usage.bits().to_string();
    let operation: Vec<&str> = ["expose", &usage].into_iter().chain(path).collect();
    let (server, port) = server(&operation);
    let conn = connect(peer, port, cfg, &[], &[])?;
    let remote = take_offer(&conn)?;
    Ok((server, conn, remote))
}

/// A server, once it listens, and its port.
pub(crate) fn server(operation: &[&str]) -> (Program, u16) {
    let port = free_port(&addr());
    let (addr, name) = (addr(), port.to_string());
    let args = [&[&*addr, &*name], operation].concat();
    let server = Program::c("tests/programs/interop/server", &args);
    (server.listening(), port)
}

/// The `offer` of `interop.h`: the descriptor of a region and of its platform.
pub(crate) fn offer<M>(mr: &Mr<M>, direct_write: bool) -> Vec<u8> {
    let mut cfg = PeerCfg::new();
    cfg.set_direct_write_to_pmem(direct_write);
    [&mr.get_descriptor()[..], &cfg.get_descriptor()].concat()
}

/// Takes the other side's offer.
pub(crate) fn take_offer(conn: &Conn) -> Result<MrRemote> {
    let data = conn.get_private_data();
    let (mr, cfg) = data.split_at(21);
    conn.apply_remote_peer_cfg(&PeerCfg::from_descriptor(cfg)?);
    Ok(MrRemote::from_descriptor(mr)?)
}

/// Where messages go, each with an `op_context`.
pub(crate) type Receives<'a> = [(MrSlice<'a>, u64)];

/// Connects to a C server, with `receives` posted before.
pub(crate) fn connect(
    peer: &Peer,
    port: u16,
    cfg: &ConnCfg,
    data: &[u8],
    receives: &Receives<'_>,
) -> Result<Conn> {
    let req = ConnReq::new(peer, &addr(), port, cfg)?;
    establish(req, data, receives)
}

pub(crate) fn establish(req: ConnReq, data: &[u8], receives: &Receives<'_>) -> Result<Conn> {
    for (dst, op_context) in receives {
        req.recv(*dst, *op_context)?;
    }
    let conn = req.connect(data)?;
    assert_eq!(event(&conn)?, ConnEvent::Established);
    Ok(conn)
}

/// Disconnects from a program that waits for that.
pub(crate) fn disconnect(conn: Conn) {
    conn.disconnect().expect("disconnects");
    assert_eq!(event(&conn).expect("an event in time"), ConnEvent::Closed);
    conn.delete().expect("everything is freed");
}

/// Waits for the other side to disconnect.
pub(crate) fn finish(conn: Conn) {
    assert_eq!(event(&conn).expect("an event in time"), ConnEvent::Closed);
    conn.disconnect().expect("disconnects");
    conn.delete().expect("everything is freed");
}

/// Lets a C client do `operation` on `target`, and returns its output.
pub(crate) fn serve<M>(
    peer: &Peer,
    cfg: &ConnCfg,
    target: &Mr<M>,
    direct_write: bool,
    operation: &[&str],
) -> Result<Vec<String>> {
    let ep = listen(peer)?;
    let client = client(&ep, operation);
    let conn = establish(request(&ep, cfg)?, &offer(target, direct_write), &[])?;
    finish(conn);
    Ok(client.done())
}

/// Memory to offer, filled as that of the C server.
pub(crate) fn filled(peer: &Peer, usage: MrUsage) -> Result<Mr<Vec<u8>>> {
    Ok(Mr::reg(peer, pattern(SHARED, 5), usage)?)
}

/// The contents of the memory after `PARTS` were written.
pub(crate) fn written() -> Vec<u8> {
    let mut bytes = pattern(SHARED, 5);
    for (i, (at, len)) in PARTS.into_iter().enumerate() {
        bytes[at..at + len].copy_from_slice(&pattern(len, i as u64 + 1));
    }
    bytes
}

pub(crate) fn slice(mr: &MrRemote, at: usize, len: usize) -> Result<RemoteSlice> {
    Ok(mr.slice(at as u64..(at + len) as u64)?)
}

pub(crate) fn succeeded(wc: Wc, wr_id: u64, opcode: WcOpcode) -> Result {
    assert_eq!(wc.wr_id(), wr_id);
    assert_eq!(wc.result()?.opcode(), opcode);
    Ok(())
}

/// Both ways to flush and to write atomically.
pub(crate) fn configurations() -> [ConnCfg; 2] {
    let mut fallback = ConnCfg::new();
    fallback.set_force_fallback(true);
    [ConnCfg::new(), fallback]
}
