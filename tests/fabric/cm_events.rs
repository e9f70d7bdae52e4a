//! Events that the connection manager sends by itself: a notice ends nothing, at any step and on
//! either host; an end ends the program within its limits.

use std::fmt::Debug;
use std::sync::Arc;
use std::thread;

use rpma::commit::{Method, WriterCfg};
use rpma::reconnect::{Reconnect, ToWriter};
use rpma::serve::{Directory, Served, Server, ServerCfg};
use rpma::sim::sweep_events;

use crate::common::prelude::*;

#[path = "../../examples/hello/hello.rs"]
#[allow(unreachable_pub, reason = "a library on a page")]
mod hello;

const ADDR_CHANGE: u32 = 14;
const UNKNOWN: u32 = 4711;
const REJECTED: u32 = 8;
const REMOVAL: u32 = 11;
const LIMIT: Duration = Duration::from_secs(20);

fn hosts(fabric: &Fabric) -> [Host; 2] {
    ["client", "server"].map(|name| fabric.host(name))
}

/// Runs a program that must succeed: first alone, and then with each notice at each of its steps on
/// each of its hosts. Returns the number of notices that arrived.
fn with_each_notice<E: Debug>(
    profile: &Profile,
    program: impl Fn(&[Host; 2]) -> Result<(), E>,
) -> usize {
    let alone = Rig::of(profile).seed(1).fabric();
    program(&hosts(&alone)).expect("without a notice");
    let mut arrived = 0;
    for step in 1..=alone.steps() {
        for event in [ADDR_CHANGE, UNKNOWN] {
            for which in 0..2 {
                let fabric = Rig::of(profile).seed(1).fabric();
                let hosts = hosts(&fabric);
                let host = hosts[which].clone();
                let (sent, came) = std::sync::mpsc::channel();
                let notice = fabric.at_step(step, move || {
                    sent.send(host.cm_event(event)).expect("it is counted");
                });
                let result = program(&hosts);
                result.unwrap_or_else(|error| panic!("{event} at step {step}: {error:?}"));
                drop(notice);
                arrived += came.try_iter().sum::<usize>();
            }
        }
    }
    arrived
}

/// The first program of README.
fn first_program(hosts: &[Host; 2]) -> rpma::Result<()> {
    let [client, server] = hosts;
    server.set_platform(Platform::Eadr);
    let pmem = server.pmem("dax0.0", 4096);
    let (addr, path) = (server.addr().to_string(), pmem.path().display().to_string());
    let entered = server.enter();
    let (peer, ep) = hello::listen(&addr, 0)?;
    drop(entered);
    let port = ep.get_port();
    let serving = server.spawn(move || {
        let memory = hello::serve(&peer, &ep, &path)?;
        let mut bytes = [0; 12];
        memory.read_at(0, &mut bytes).map(|()| bytes)
    });
    let writing = client.spawn(move || hello::write(&addr, port, b"Hello world!"));
    let (written, memory) = (join(writing), join(serving));
    written?;
    let early = "it returned its memory too early";
    assert_eq!(&memory?, b"Hello world!", "{early}");
    Ok(())
}

/// Promise: a notice ends no connection, no connect and no wait for the end, whenever it comes.
#[test]
fn a_notice_does_not_end_the_first_program() {
    for profile in [Profile::RXE_6_12, Profile::ADAPTER] {
        let arrived = with_each_notice(&profile, first_program);
        assert!(arrived > 100, "{arrived}");
    }
}

/// Serves one key of a server, until its client is gone.
fn serve(mut server: Server, peer: &Peer, memory: Mr<PmemMap>) -> rpma::Result<()> {
    let (region, mut wcs) = (Arc::new(memory), [Wc::default(); 4]);
    loop {
        match server.next(&mut wcs, LIMIT)? {
            Some(Served::Asks(asked)) => {
                server.admit(asked, peer, &region, &[])?;
            }
            Some(Served::Gone(_)) => return Ok(()),
            Some(_) => {}
            None => return Err(Error::TimedOut("the client")),
        }
    }
}

/// Writes twice, with a writer that a `Reconnect` has connected.
fn commit_twice(mut reconnect: Reconnect<ToWriter>) -> rpma::Result<u64> {
    let source = Mr::reg(reconnect.peer(), vec![7; 64], MrUsage::WRITE_SRC);
    let source = source.map_err(|error| error.error)?;
    let mut writer = reconnect.connect(&ConnCfg::new())?;
    let to = writer.offer().regions()[0];
    for number in 0..2_u64 {
        let bytes = [(to.slice(..64)?, source.slice(..)?)];
        let pointer = (to.slice(64..72)?, number.to_ne_bytes());
        let ticket = writer.commit(&bytes, Some(pointer))?;
        writer.wait(ticket, LIMIT, drop)?;
    }
    Ok(reconnect.tries())
}

/// A `Reconnect`, a `Writer` and a `Server`.
fn writer_and_server(hosts: &[Host; 2]) -> Result {
    let [client, server] = hosts;
    let addr = server.addr().to_string();
    let path = server.pmem("memory", 4096).path().to_owned();
    let entered = server.enter();
    let peer = peer()?;
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    let memory = Mr::reg(&peer, PmemMap::open(&path, 0)?, usage).map_err(|error| error.error)?;
    let ep = Ep::listen(&peer, &addr, 0)?;
    let port = ep.get_port();
    let far = Server::new(ep, Directory::volatile(1), &ServerCfg::new())?;
    drop(entered);
    let serving = server.spawn(move || serve(far, &peer, memory));
    let entered = client.enter();
    let peer = Peer::toward(&addr)?;
    let mut offer = Offer::default();
    offer.set_identity(Identity::new(1, 1)?);
    let mut cfg = WriterCfg::new(Method::Reading);
    cfg.set_flush_type(FlushType::Visibility)?;
    let reconnect = Reconnect::new(&peer, &addr, port, offer, ToWriter::new(&cfg))?;
    drop(entered);
    let writing = client.spawn(move || commit_twice(reconnect));
    let (written, served) = (join(writing), join(serving));
    assert_eq!(written?, 1, "the first try connects");
    Ok(served?)
}

/// Promise: a notice ends no try of a reconnect, no writer, and no client of a server.
#[test]
fn a_notice_does_not_end_a_writer_or_a_client() {
    let arrived = with_each_notice(&Profile::STRICT, writer_and_server);
    assert!(arrived > 100, "{arrived}");
}

/// Promise: whichever event comes at whichever step, both programs end within their limits.
#[test]
fn each_event_keeps_the_limits() {
    let runs = sweep_events(&Profile::STRICT, |fabric| {
        drop(first_program(&hosts(fabric)))
    });
    assert!(runs > 500, "{runs}");
}

/// Promise: a notice is an event of the connection, and not its end. An end that another thread has
/// taken ends the wait for it.
#[test]
fn a_notice_is_returned_and_ends_nothing() -> Result {
    let world = Rig::of(&Profile::RXE_6_12).world();
    let client = &world.hosts[0];
    let ep = world.listen()?;
    let asking = world.ask(&ep, &ConnCfg::new())?;
    // One comes before the establishment, the others after it. The device has an id as well.
    assert_eq!(client.cm_event(ADDR_CHANGE), 2);
    let far = accept(&ep, &ConnCfg::new())?;
    let conn = asking.wait_established(LIMIT)?;
    let far = far.wait_established(LIMIT)?;
    for event in [ADDR_CHANGE, UNKNOWN] {
        assert_eq!(client.cm_event(event), 2);
        let notice = conn.next_event_timeout(LIMIT)?;
        assert_eq!(notice, ConnEvent::Other { event, status: 0 });
        assert!(!notice.is_end() && conn.ended().is_none(), "{notice}");
    }
    assert_eq!(client.cm_event(ADDR_CHANGE), 2);
    let soon = Duration::from_millis(20);
    let waited = conn.wait_ended(soon).expect_err("it has not ended");
    assert!(matches!(waited, Error::TimedOut(_)), "{waited}");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| conn.wait_ended(LIMIT));
        far.disconnect()?;
        // Either thread may take it.
        let taken = conn.next_event_timeout(LIMIT);
        let is_right = matches!(taken, Ok(ConnEvent::Closed) | Err(Error::NoEvent));
        assert!(is_right, "{taken:?}");
        let ended = waiting.join().expect("no panic")?;
        assert_eq!(ended, ConnEvent::Closed);
        Ok(())
    })
}

/// Promise: the fabric sends no event that the kernel never sends by itself.
#[test]
fn an_impossible_event_is_refused() {
    let host = Rig::strict().fabric().host("one");
    for event in (0..16).filter(|event| ![7, 8, 11, 14].contains(event)) {
        let text = panic_of(|| host.cm_event(event));
        assert!(text.contains("never sends"), "{text}");
    }
    for event in [7, 8, 11, 14, 16, u32::MAX] {
        assert_eq!(host.cm_event(event), 0, "there is no id");
    }
}

/// Promise: the end that the kernel sends by itself is named as it is, and so is the removal of a
/// device while a route is resolved.
#[test]
fn each_end_has_its_cause() -> Result {
    for (number, words) in [
        (REJECTED, "does not know the connection"),
        (REMOVAL, "Connection lost"),
    ] {
        let world = Rig::strict().seed(1).world();
        let _entered = world.hosts[0].enter();
        let cfg = ConnCfg::new();
        let (conn, _far) = world.connect(&cfg, &cfg)?.ends();
        world.hosts[0].cm_event(number);
        let text = conn.wait_ended(LIMIT)?.to_string();
        assert!(text.contains(words), "{text}");
        let closed = conn.send(MrSlice::EMPTY, Flags::COMPLETION_ALWAYS, 1);
        let text = closed.expect_err("it has ended").to_string();
        assert!(text.contains("Conn::ended has the event"), "{text}");
    }
    let resolves = |[client, server]: &[Host; 2]| {
        let _entered = client.enter();
        let near = client.addr().to_string();
        let near = Peer::at(&near)?;
        ConnReq::new(&near, &server.addr().to_string(), 7204, &ConnCfg::new()).map(drop)
    };
    let alone = Rig::strict().seed(1).fabric();
    resolves(&hosts(&alone))?;
    let mut texts = Vec::new();
    for step in 1..=alone.steps() {
        let fabric = Rig::strict().seed(1).fabric();
        let hosts = hosts(&fabric);
        let client = hosts[0].clone();
        let removal = fabric.at_step(step, move || {
            client.cm_event(REMOVAL);
        });
        texts.extend(resolves(&hosts).err().map(|error| error.to_string()));
        drop(removal);
    }
    let named = texts.iter().filter(|text| text.contains("No such device"));
    assert!(named.count() > 0, "{texts:?}");
    let unnamed = texts.iter().any(|text| text.contains("with status 0"));
    assert!(!unnamed, "{texts:?}");
    Ok(())
}
