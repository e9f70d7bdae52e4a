//! Writes of an old connection that arrive after the next writer has begun, and the steps that end
//! them (docs/reconnecting.md). The old writer's host stands still, and goes on later.

use rpma::reconnect::{Reconnect, ToConn};
use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::reconnect::hosts::{PORT, SECOND};
use crate::reconnect::support::{LEN, identified};

/// The server's action about the old writer before it accepts the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    /// It only compares epochs.
    ComparesEpochs,
    CutsOff,
    Drops,
    /// The old writer has two connections.
    CutsOffOneOfTwo,
    /// It registers the memory again, under another key.
    RegistersAgain,
}

fn peer(addr: &str) -> Result<Peer> {
    let device = Device::from_addr(addr, Side::Local)?;
    Ok(Peer::new(&device)?)
}

fn memory(peer: &Peer) -> Result<Mr<Vec<u8>>> {
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    Ok(Mr::reg(peer, vec![0; LEN], usage)?)
}

/// A writer of this host, with this epoch, and the server's ends of its connections.
struct Writer {
    conns: Vec<(Conn, MrRemote)>,
    far: Vec<Conn>,
    source: Mr<Vec<u8>>,
}

impl Writer {
    fn new(
        host: &Host,
        server: &Host,
        ep: &Ep,
        offer: &[u8],
        epoch: u64,
        conns: usize,
    ) -> Result<Self> {
        let _entered = host.enter();
        let peer = peer(&host.addr().to_string())?;
        let source = Mr::reg(&peer, vec![epoch as u8; LEN], MrUsage::WRITE_SRC);
        let addr = server.addr().to_string();
        let mut client = Reconnect::new(&peer, &addr, PORT, identified(epoch), ToConn)?;
        let (mut made, mut far) = (Vec::new(), Vec::new());
        for _ in 0..conns {
            client.begin(&ConnCfg::new())?;
            let conn = loop {
                if let Some(conn) = client.advance()? {
                    break conn;
                }
                sleep(SECOND / 100);
                let _entered = server.enter();
                if let Ok(req) = ep.next_conn_req_timeout(&ConnCfg::new(), SECOND / 100) {
                    far.push(req.connect(offer)?);
                }
            };
            let of_server = Offer::decode(conn.get_private_data())?;
            made.push((conn, of_server.regions()[0]));
        }
        let source = source?;
        Ok(Self {
            conns: made,
            far,
            source,
        })
    }

    fn write(&self) -> Result {
        for (conn, region) in &self.conns {
            let to = region.slice(..)?;
            let from = self.source.slice(..)?;
            conn.write(to, from, Flags::COMPLETION_ALWAYS, 1)?;
        }
        Ok(())
    }
}

/// Whether the old writer's bytes arrive over the next writer's.
fn lands(profile: &Profile, does: Server, seed: u64) -> Result<bool> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    let [old, new, server] = ["old", "new", "server"].map(|name| fabric.host(name));
    let on_server = server.enter();
    let addr = server.addr().to_string();
    let own = peer(&addr)?;
    let mut memory = memory(&own)?;
    let offer_of = |memory: &Mr<Vec<u8>>| -> Result<_> {
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(memory);
        Ok(offer.encode(Offer::ACCEPT)?)
    };
    let ep = Ep::listen(&own, &addr, PORT)?;
    let conns = match does {
        Server::CutsOffOneOfTwo => 2,
        _ => 1,
    };
    let mut first = Writer::new(&old, &server, &ep, &offer_of(&memory)?, 1, conns)?;
    old.freeze();
    first.write()?;
    match does {
        Server::ComparesEpochs => {}
        Server::CutsOff | Server::CutsOffOneOfTwo => {
            let far = first.far.pop().ok_or("one")?;
            far.cut_off()?;
        }
        Server::Drops => first.far.clear(),
        Server::RegistersAgain => {
            let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
            let bytes = memory.dereg()?;
            memory = Mr::reg(&own, bytes, usage)?;
        }
    }
    let second = Writer::new(&new, &server, &ep, &offer_of(&memory)?, 2, 1)?;
    second.write()?;
    let bytes = || -> Result<_> {
        fabric.settle();
        let mut bytes = [0; LEN];
        memory.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    sleep(SECOND);
    assert_eq!(bytes()?, [2; LEN], "the next writer's");
    old.thaw();
    sleep(SECOND);
    let lands = bytes()? != [2; LEN];
    drop((first, second, ep, on_server));
    Ok(lands)
}

/// Promise: a higher epoch ends no write that is under way. A connection that is cut off, or
/// dropped, by the server writes no more bytes, and a key that is deregistered reaches no memory.
/// Another connection of the old writer still writes.
#[test]
fn a_ghost_ends_with_its_queue_pair() -> Result {
    for profile in Profile::ALL {
        for seed in 0..5 {
            for (does, expected) in [
                (Server::ComparesEpochs, true),
                (Server::CutsOff, false),
                (Server::Drops, false),
                (Server::CutsOffOneOfTwo, true),
                (Server::RegistersAgain, false),
            ] {
                let lands = lands(&profile, does, seed)?;
                assert_eq!(lands, expected, "{}, {does:?}, {seed}", profile.name());
            }
        }
    }
    Ok(())
}
