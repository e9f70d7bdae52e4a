//! The client of two logs (15). These tests play its servers.

use crate::examples::prelude::*;

/// The size of a log, the place of its number of used bytes, and that number of an empty one.
const LOG: usize = 16 + 1024;
const USED: usize = 8;
const EMPTY: u8 = 16;

/// A server's log, before its connection is accepted.
struct Log {
    ep: Ep,
    memory: Mr<Vec<u8>>,
}

impl Log {
    fn new(peer: &Peer, used: u8) -> Result<Self> {
        let usage = MrUsage::READ_SRC | MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        let memory = region(peer, LOG, usage)?;
        memory.write_at(USED, &[used])?;
        Ok(Self {
            ep: listen(peer)?,
            memory,
        })
    }

    fn accept(&self) -> Conn {
        let mr = self.memory.get_descriptor();
        accept(&self.ep, &describe(USED as u16, &mr, None)).expect("accepts")
    }

    fn port(&self) -> String {
        self.ep.get_port().to_string()
    }

    /// Whether it is unchanged.
    fn is_unchanged(&self, used: u8) -> bool {
        let mut bytes = vec![0; LOG];
        bytes[USED] = used;
        contents(&self.memory).expect("all of it is inside") == bytes
    }
}

/// The client of two logs.
fn client([one, other]: [&Log; 2]) -> Program {
    let (addr, one, other) = (addr(), one.port(), other.port());
    let words = ["client", &addr, &one, &addr, &other, "word"];
    Program::example(full("15"), &words)
}

/// Promise: logs that are not the same get no word. The error has both addresses, and how much of
/// each log is used.
#[test]
fn logs_that_differ_get_no_word() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let logs = [Log::new(&peer, EMPTY)?, Log::new(&peer, EMPTY + 5)?];
    let client = client(logs.each_ref());
    let _conns = logs.each_ref().map(Log::accept);
    let ended = fails_at_once(client, "the client");
    let [one, other] = logs.each_ref().map(Log::port);
    let (host, text) = (addr(), "the logs are different: 16 bytes of the one at");
    let is_told = ended.says(text) && ended.says(", and 21 of the");
    assert!(is_told, "{ended:?}");
    for port in [one, other] {
        assert!(ended.says(&format!("{host}:{port}")), "{ended:?}");
    }
    assert!(logs[0].is_unchanged(EMPTY) && logs[1].is_unchanged(EMPTY + 5));
    Ok(())
}

/// Promise: a server that dies while the client has a connection to it ends the client, with the
/// server's address and the reason. No log has half of a word, and the other log has no word that
/// the dead one lacks: no word is written to one before both are there.
#[test]
fn a_server_that_dies_ends_the_client() -> Result {
    for dead in [0, 1] {
        leaving(&[], || {
            let peer = peer()?;
            let logs = [Log::new(&peer, EMPTY)?, Log::new(&peer, EMPTY)?];
            let client = client(logs.each_ref());
            // The client waits for both before it reads.
            drop(logs[dead].accept());
            let _other = logs[1 - dead].accept();
            let ended = fails_at_once(client, "the client");
            let server = format!("the server at {}:{}: ", addr(), logs[dead].port());
            assert!(ended.says(&server), "{ended:?}");
            assert!(!ended.says("is in both logs"), "{ended:?}");
            assert!(logs.iter().all(|log| log.is_unchanged(EMPTY)));
            Ok(())
        })?;
    }
    Ok(())
}
