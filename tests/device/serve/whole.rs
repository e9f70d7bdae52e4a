//! A whole server of equal parts in two calls: `Server::listen` and `Server::serve`.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;

use rpma::commit::Limits;
use rpma::pmem::Ddio;
use rpma::serve::{Layout, Served, Server, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, data, identity, refusal, usage};

/// The address of the test device, with a port.
fn at(port: u16) -> Result<SocketAddr> {
    Ok((addr().parse::<IpAddr>()?, port).into())
}

/// Memory for three keys, with a directory of zeros.
fn memory() -> Result<(PmemMap, Layout)> {
    let layout = Layout::new(3, LEN)?;
    let all = PmemMap::open(devdax(), layout.len())?;
    all.write_at(0, &vec![0; layout.directory().len()])?;
    Ok((all, layout))
}

fn listen(cfg: &ServerCfg) -> Result<Server> {
    let (all, layout) = memory()?;
    Ok(Server::listen(at(0)?, &all, &layout, usage(), cfg)?)
}

fn ask(peer: &Peer, port: u16, identity: Identity) -> Result<Conn> {
    let req = ConnReq::new(peer, &addr(), port, &ConnCfg::new())?;
    Ok(req.connect(&data(identity)?)?)
}

/// Runs a test with this port beside a server in another thread, which ends with the test.
fn beside(
    mut server: Server,
    note: impl FnMut(Served) + Send,
    test: impl FnOnce(u16) -> Result,
) -> Result {
    let (port, waker) = (server.get_port(), server.waker());
    thread::scope(|scope| {
        let serving = scope.spawn(here(move || server.serve(note)));
        // The server ends also if the test panics: `thread::scope` waits for it.
        let tested = catch_unwind(AssertUnwindSafe(|| test(port)));
        waker.wake();
        serving.join().expect("no panic")?;
        tested.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Waits until the server has noted something with these words.
fn noted(notes: &mpsc::Receiver<String>, words: &str) -> Result {
    loop {
        let note = notes.recv_timeout(LIMIT)?;
        if note.contains(words) {
            return Ok(());
        }
    }
}

/// Promise: the two calls admit clients to the parts of their keys, refuse the others with words,
/// note each of these, and return when the server is woken.
#[test]
fn a_whole_server_in_two_calls() -> Result {
    let _test = device_test();
    let server = listen(&ServerCfg::new())?;
    let (note, notes) = mpsc::channel();
    let note = move |served: Served| note.send(served.to_string()).expect("the test waits");
    beside(server, note, |port| {
        let peer = peer()?;
        let conn = ask(&peer, port, identity(2, 1, 10))?;
        assert_eq!(event(&conn)?, ConnEvent::Established);
        noted(&notes, "a client is connected")?;
        let far = conn.offer()?.memory(LEN as u64)?;
        let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
        conn.write(far.slice(..8)?, source.slice(..)?, ALWAYS, 1)?;
        completion(&conn)?.result()?;
        let words = "no memory for this key: the keys are 1 to 3";
        let refused = ask(&peer, port, identity(4, 1, 10))?;
        assert_says(&refusal(&refused)?.words(), &[words]);
        noted(&notes, &format!("a client is refused: {words}"))?;
        drop(conn);
        noted(&notes, "the client of the key 0x2 is gone: ")
    })
}

/// Promise: a server that was woken before serves nobody, and can serve afterwards.
#[test]
fn woken_before_it_serves() -> Result {
    let _test = device_test();
    let mut server = listen(&ServerCfg::new())?;
    for _ in 0..2 {
        server.waker().wake();
        server.serve(|served| panic!("{served}"))?;
    }
    Ok(())
}

/// Promise: the end of the device ends the loop with that error, and every other failure is
/// noted.
#[test]
fn the_end_of_the_device_ends_the_loop() -> Result {
    let _test = device_test();
    let mut server = listen(&ServerCfg::new())?;
    let failed = |errno| {
        Served::Failed(Error::Provider {
            call: "rdma_get_cm_event",
            cause: std::io::Error::from_raw_os_error(errno),
            hint: None,
        })
    };
    let mut notes = Vec::new();
    let note = |served| notes.push(served);
    let handled = server.handle(failed(libc::EMFILE), note);
    assert!(handled?.is_continue());
    assert!(matches!(notes[..], [Served::Failed(_)]), "{notes:?}");
    let note = |served| panic!("{served}");
    let ended = server.handle(failed(libc::ENODEV), note);
    let error = ended.expect_err("it has ended");
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    Ok(())
}

/// Promise: a client gets the declaration of the platform that was detected, with the operator's
/// word on DDIO, or the program's own.
#[test]
fn the_platform_is_declared() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let (map, _) = memory()?;
    let detected = |ddio| PeerCfg::detect(&map, &peer, ddio).map(|cfg| cfg.get_durable());
    let own = |cfg: &mut ServerCfg, durable| {
        cfg.set_platform(PeerCfg::new().set_durable(durable));
        durable
    };
    for case in 0..5 {
        let mut cfg = ServerCfg::new();
        let expected = match case {
            0 => detected(Ddio::On)?,
            1 => {
                cfg.set_ddio(Ddio::Off);
                detected(Ddio::Off)?
            }
            2 => own(&mut cfg, Durable::Nothing),
            3 => own(&mut cfg, Durable::NativeFlushes),
            _ => own(&mut cfg, Durable::DirectWrites),
        };
        let server = listen(&cfg)?;
        let silent = |_: Served| {};
        beside(server, silent, |port| {
            let conn = ask(&peer, port, identity(1, 1, 10))?;
            assert_eq!(event(&conn)?, ConnEvent::Established);
            let offer = conn.offer()?;
            assert_eq!(offer.platform().get_durable(), expected, "{case}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: if a server cannot listen, its memory is unchanged, and nothing stays registered.
#[test]
fn a_server_that_cannot_listen_changes_nothing() -> Result {
    let _test = device_test();
    let (all, layout) = memory()?;
    let bytes = || -> Result<Vec<u8>> {
        let mut bytes = vec![0; layout.len()];
        all.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    let refused = |addr, all: &PmemMap, cfg: &ServerCfg, words: &str| -> Result {
        let before = bytes()?;
        let error = Server::listen(addr, all, &layout, usage(), cfg).expect_err("refused");
        assert_says(&error, &[words]);
        assert!(bytes()? == before, "{words}");
        Ok(())
    };
    let cfg = ServerCfg::new();
    let short = all.part(..layout.len() - LEN)?;
    refused(at(0)?, &short, &cfg, "and the memory has")?;
    let nowhere = SocketAddr::from(([192, 0, 2, 1], 0));
    refused(nowhere, &all, &cfg, "rdma_bind_addr")?;
    let taken = Ep::listen(&peer()?, &addr(), 0)?;
    refused(at(taken.get_port())?, &all, &cfg, "rdma_bind_addr")?;
    let mut no_processor = ServerCfg::new();
    no_processor.set_platform(PeerCfg::new().set_processor_persists(false));
    no_processor.set_commits(Some(Limits::new(1, 1, 64)?));
    let words = "processor makes nothing durable";
    refused(at(0)?, &all, &no_processor, words)?;
    all.write_at(0, &[0xA5; 64])?;
    refused(at(0)?, &all, &cfg, "directory")?;

    all.write_at(0, &[0; 64])?;
    Server::listen(at(0)?, &all, &layout, usage(), &cfg)?;
    Ok(())
}
