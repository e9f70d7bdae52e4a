//! A program that stands still, for longer than each of its limits and at any of its calls, loses
//! nothing by it: each wait looks once more after its limit. Its peer has no limits.

use std::sync::Arc;

use rpma::commit::{Limits, Method, WriterCfg};
use rpma::reconnect::{Reconnect, ReconnectCfg, ToWriter};
use rpma::serve::{Directory, Reason, Served, Server, ServerCfg};
use rpma::sim::{JoinHandle, sleep};

use crate::common::prelude::*;

type Result<T = ()> = rpma::Result<T>;

/// The limit of each wait of the program that stands still.
const LIMIT: Duration = Duration::from_secs(1);
/// It stands still for so long, which is more than all limits of the library.
const STANDS: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::MAX;

fn peer(addr: &str, side: Side) -> Result<Peer> {
    Peer::new(&Device::from_addr(addr, side)?)
}

/// Runs two programs: first alone, and then with a standstill of the first one at each step.
/// Returns the number of standstills.
fn at_each_step(programs: impl Fn(&[Host; 2]) -> [JoinHandle<Result>; 2]) -> u64 {
    let run = |at: Option<u64>| {
        let (fabric, hosts) = Rig::strict().seed(1).hosts(["stands", "waits"]);
        let begin = fabric.now();
        let stands = at.map(|step| {
            fabric.at_step(step, || {
                if Host::current().is_some_and(|host| host.name() == "stands") {
                    sleep(STANDS);
                }
            })
        });
        let results = programs(&hosts).map(join);
        let stood = fabric.now() - begin >= STANDS;
        drop(stands);
        for result in results {
            result.unwrap_or_else(|error| panic!("a standstill at {at:?}: {error}"));
        }
        (fabric.steps(), u64::from(stood))
    };
    let (steps, _) = run(None);
    (1..=steps).map(|step| run(Some(step)).1).sum()
}

/// Waits for the end, without a limit.
fn serve_one(ep: &Ep, peer: &Peer, limit: Duration) -> Result {
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    let memory = Mr::reg(peer, vec![0; 4096], usage)?;
    let req = ep.next_conn_req_timeout(&ConnCfg::new(), limit)?;
    let conn = req.connect(&memory.get_descriptor())?;
    let conn = conn.wait_established(limit)?;
    conn.wait_ended(limit)?;
    conn.cut_off()?;
    Ok(())
}

/// Writes, flushes, reads the event queue, and closes.
fn write_once(addr: &str, port: u16, limit: Duration) -> Result {
    let peer = peer(addr, Side::Remote)?;
    let source = Mr::reg(&peer, vec![7; 8], MrUsage::WRITE_SRC)?;
    let asking = ConnReq::new(&peer, addr, port, &ConnCfg::new())?.connect(&[])?;
    let conn: Conn = asking.wait_established(limit)?;
    let to = MrRemote::from_descriptor(conn.get_private_data())?.slice(..8)?;
    conn.write(to, source.slice(..)?, Flags::COMPLETION_ON_ERROR, 1)?;
    let flushed = conn.flush(to, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 2)?;
    conn.wait_for(flushed, limit, |_| {})?;
    let flushed = conn.flush(to, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 3)?;
    let mut wcs = [Wc::default()];
    conn.next(&mut wcs, limit)?;
    assert_eq!(wcs[0].posted(), Some(flushed));
    conn.close(limit)?;
    Ok(())
}

fn listening(host: &Host) -> Result<(Ep, Peer, String)> {
    let _entered = host.enter();
    let addr = host.addr().to_string();
    let peer = peer(&addr, Side::Local)?;
    Ok((Ep::listen(&peer, &addr, 0)?, peer, addr))
}

/// A client and its server, with their limits.
fn one_client([client, server]: [&Host; 2], limits: [Duration; 2]) -> [JoinHandle<Result>; 2] {
    let (ep, peer, addr) = listening(server).expect("listens");
    let port = ep.get_port();
    let serving = server.spawn(move || serve_one(&ep, &peer, limits[1]));
    let writing = client.spawn(move || write_once(&addr, port, limits[0]));
    [writing, serving]
}

/// Promise: `wait_established`, `wait_for`, `next` and `close` lose nothing.
#[test]
fn a_client_stands_still() {
    let stood = at_each_step(|[stands, waits]| one_client([stands, waits], [LIMIT, NEVER]));
    assert!(stood > 30, "{stood}");
}

/// Promise: `next_conn_req_timeout`, `wait_established` and `wait_ended` lose nothing.
#[test]
fn a_server_of_one_client_stands_still() {
    let stood = at_each_step(|[stands, waits]| one_client([waits, stands], [NEVER, LIMIT]));
    assert!(stood > 10, "{stood}");
}

/// Serves one key until its client is gone. Between calls it may stand still as well.
fn serve_key(mut server: Server, peer: &Peer, memory: Mr<PmemMap>) -> Result {
    let (region, mut wcs) = (Arc::new(memory), [Wc::default(); 4]);
    loop {
        match server.next(&mut wcs, 10 * STANDS)? {
            Some(Served::Asks(asked)) => {
                server.admit(asked, peer, &region, &[])?;
            }
            Some(Served::Gone(gone)) => {
                assert!(matches!(gone.reason, Reason::Ended(_)), "{}", gone.reason);
                return Ok(());
            }
            Some(Served::Arrived(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Commits twice by the server's method, with a writer that a `Reconnect` has connected.
fn commit_twice(addr: &str, port: u16, limit: Duration) -> Result {
    let peer = peer(addr, Side::Remote)?;
    let source = Mr::reg(&peer, vec![7; 64], MrUsage::WRITE_SRC)?;
    let mut offer = Offer::default();
    offer.set_identity(Identity::new(1, 1)?);
    let mut cfg = WriterCfg::new(Method::Server);
    cfg.set_in_flight(1)?;
    let mut client = Reconnect::new(&peer, addr, port, offer, ToWriter::new(&cfg))?;
    let mut limits = ReconnectCfg::new();
    client.set_cfg(limits.set_limit(limit).set_answer_limit(limit));
    let mut writer = client.connect(&ConnCfg::new())?;
    let to = writer.offer().regions()[0];
    for number in 0..2_u64 {
        writer.wait_room(limit, drop)?;
        let bytes = [(to.slice(64..128)?, source.slice(..)?)];
        let pointer = (to.slice(..8)?, number.to_ne_bytes());
        let ticket = writer.commit(&bytes, Some(pointer))?;
        writer.wait(ticket, limit, drop)?;
    }
    Ok(())
}

fn server_of_a_key(host: &Host, limit: Duration) -> Result<(Server, Peer, Mr<PmemMap>, String)> {
    let (ep, peer, addr) = listening(host)?;
    let path = host.pmem("memory", 4096).path().to_owned();
    let _entered = host.enter();
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    let memory = Mr::reg(&peer, PmemMap::open(&path, 0)?, usage)?;
    let mut cfg = ServerCfg::new();
    cfg.set_commits(Some(Limits::new(4, 4, 4096)?));
    cfg.set_answer_limit(limit).set_establish_limit(limit);
    let server = Server::new(ep, Directory::volatile(1), &cfg)?;
    Ok((server, peer, memory, addr))
}

/// A writer and a server of keys, with their limits.
fn one_writer([client, server]: [&Host; 2], limits: [Duration; 2]) -> [JoinHandle<Result>; 2] {
    let (far, peer, memory, addr) = server_of_a_key(server, limits[1]).expect("a server");
    let port = far.get_port();
    let serving = server.spawn(move || serve_key(far, &peer, memory));
    let writing = client.spawn(move || commit_twice(&addr, port, limits[0]));
    [writing, serving]
}

/// Promise: `Reconnect::connect`, `Writer::wait_room` and `Writer::wait` lose nothing.
#[test]
fn a_writer_stands_still() {
    let stood = at_each_step(|[stands, waits]| one_writer([stands, waits], [LIMIT, NEVER]));
    assert!(stood > 30, "{stood}");
}

/// Promise: a `Server` cuts off no client, and refuses none, because it stood still itself.
#[test]
fn a_server_of_keys_stands_still() {
    let stood = at_each_step(|[stands, waits]| one_writer([waits, stands], [NEVER, LIMIT]));
    assert!(stood > 30, "{stood}");
}

/// Promise: a wait of `Error::NoEvent` or `Error::TimedOut` without anything to come keeps its
/// limit, and the time in which the program stood still counts.
#[test]
fn nothing_comes_from_nothing() {
    let (fabric, [host]) = Rig::strict().seed(1).hosts(["stands"]);
    let (ep, _peer, _addr) = listening(&host).expect("listens");
    let _entered = host.enter();
    let _stands = fabric.at_step(fabric.steps() + 1, || sleep(STANDS));
    let begin = fabric.now();
    let none = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT);
    assert!(matches!(none, Err(Error::NoEvent)));
    assert!(fabric.now() - begin < STANDS + LIMIT);
}
