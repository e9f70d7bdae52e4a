//! Writes of an old connection that arrive after the next writer has begun, and the steps that end
//! them (docs/failures.md). The old writer's host stands still, and goes on later.

use rpma::reconnect::{Reconnect, ToConn};
use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::reconnect::hosts::{PORT, SECOND};
use crate::reconnect::support::{LEN, identified, offer_of, usage};

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

/// A writer of this host, with this epoch, and the server's ends of its connections.
struct Writer {
    conns: Vec<(Conn, MrRemote)>,
    far: Vec<Conn>,
    source: Mr<Memory>,
}

impl Writer {
    fn new(
        [host, server]: [&Host; 2],
        ep: &Ep,
        offer: &[u8],
        epoch: u64,
        conns: usize,
    ) -> Result<Self> {
        let _entered = host.enter();
        let peer = peer()?;
        let source = region(&peer, LEN, MrUsage::WRITE_SRC)?;
        source.write_at(0, &[epoch as u8; LEN])?;
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
            let of_server = conn.offer()?;
            made.push((conn, of_server.regions()[0]));
        }
        Ok(Self {
            conns: made,
            far,
            source,
        })
    }

    fn write(&self) -> Result {
        for (conn, region) in &self.conns {
            let to = region.slice(..)?;
            conn.write(to, self.source.slice(..)?, ALWAYS, 1)?;
        }
        Ok(())
    }
}

/// Whether the old writer's bytes arrive over the next writer's.
fn lands(profile: &Profile, does: Server, seed: u64) -> Result<bool> {
    let (fabric, [old, new, server]) = Rig::of(profile).seed(seed).hosts(["old", "new", "server"]);
    let _on_server = server.enter();
    let own = peer()?;
    let mut memory = region(&own, LEN, usage())?;
    let ep = Ep::listen(&own, &addr(), PORT)?;
    let conns = match does {
        Server::CutsOffOneOfTwo => 2,
        _ => 1,
    };
    let mut first = Writer::new([&old, &server], &ep, &offer_of(&memory)?, 1, conns)?;
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
            memory = Mr::reg(&own, memory.dereg()?, usage())?;
        }
    }
    let second = Writer::new([&new, &server], &ep, &offer_of(&memory)?, 2, 1)?;
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
    Ok(bytes()? != [2; LEN])
}

/// Promise: a higher epoch ends no write that is under way. A connection that is cut off, or
/// dropped, by the server writes no more bytes, and a key that is deregistered reaches no memory.
/// Another connection of the old writer still writes.
#[test]
fn a_ghost_ends_with_its_queue_pair() -> Result {
    for profile in Profile::EVERY {
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
