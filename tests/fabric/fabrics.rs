//! The promises of `rpma::sim` to those who write tests with it.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rpma::sim::{Entered, Errno, sweep};

use crate::common::prelude::*;

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// soft-RoCE, in real time.
fn rxe() -> Rig {
    Rig::of(&Profile::RXE_6_12)
}

/// Posts a write of no bytes, and polls until it is done.
fn write(conn: &Conn) -> Result {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1)?;
    next_completion(conn.get_cq())?.result()?;
    Ok(())
}

#[test]
fn a_thread_on_no_host_is_told_what_to_do() {
    let (_fabric, [host]) = rxe().hosts(["here"]);
    let error = Device::from_addr(&host.addr().to_string(), Side::Local);
    assert_says(
        &error.expect_err("on no host"),
        &["Host::spawn", "Host::enter"],
    );
}

/// Each has the same addresses, and no object of the other.
#[test]
fn fabrics_are_apart() -> Result {
    let fabrics = [(); 2].map(|()| rxe().fabric());
    let [one, other] = [&fabrics[0], &fabrics[1]].map(|fabric| fabric.host("here"));
    assert_eq!((one.addr(), one.addr6()), (other.addr(), other.addr6()));
    let entered = one.enter();
    let ep = Ep::listen(&peer()?, &one.addr().to_string(), 7204)?;
    drop(entered);
    let _entered = other.enter();
    let asking = ConnReq::new(&peer()?, &one.addr().to_string(), 7204, &ConnCfg::new());
    let asking = asking?.connect(&[])?;
    match event(&asking)? {
        ConnEvent::Rejected { reason, .. } => assert_eq!(reason, ConnEvent::NO_LISTENER),
        event => panic!("{event}"),
    }
    assert_eq!(fabrics[0].objects().get("qp"), None);
    drop((asking, ep));
    assert!(fabrics.iter().all(|fabric| fabric.objects().is_empty()));
    Ok(())
}

/// Objects are counted for each host, and by each clone of a fabric, which lives as long as one of
/// its clones.
#[test]
fn objects_of_one_host() -> Result {
    let (fabric, [one, other]) = rxe().hosts(["one", "other"]);
    let clone = fabric.clone();
    drop(fabric);
    let _entered = one.enter();
    let peer = peer()?;
    let region = Mr::reg(&peer, vec![0; 8], MrUsage::WRITE_DST)?;
    assert_eq!(one.objects().get("mr"), Some(&1));
    assert_eq!(one.objects(), clone.objects());
    assert!(other.objects().is_empty());
    drop((region, peer));
    assert!(one.objects().is_empty());
    Ok(())
}

/// A thread is on the host of the last guard that it still has, in any order of drops.
#[test]
fn guards_may_go_in_any_order() {
    let (_fabric, [one, other]) = Rig::strict().hosts(["one", "other"]);
    let name = || Host::current().map(|host| host.name());
    let first: Entered = one.enter();
    let second = other.enter();
    assert_eq!(name().as_deref(), Some("other"));
    drop(first);
    assert_eq!(name().as_deref(), Some("other"));
    drop(second);
    assert_eq!(name(), None);
    let spawned = one.spawn(name);
    assert_eq!(spawned.join().expect("no panic").as_deref(), Some("one"));
}

/// A failure that could never happen is refused, so that no test stands on it.
#[test]
fn failures_that_cannot_be_are_refused() {
    let fabric = rxe().fabric();
    let elsewhere = rxe().fabric().host("elsewhere");
    let text = panic_of(|| fabric.fail("ibv_reg_mrs"));
    assert_says(&text, &["ibv_reg_mrs", "\"ibv_reg_mr\""]);
    for (call, how) in [
        ("rdma_connect", How::LastRefused),
        ("ibv_wr_complete", How::LastDropped),
        ("ibv_reg_mr", How::Done),
        ("ibv_get_cq_event", How::Done),
        ("rdma_create_qp", How::Done),
    ] {
        let text = panic_of(|| fabric.fail(call).how(how).next(Errno::IO));
        assert_says(&text, &[call]);
    }
    panic_of(|| fabric.fail("ibv_reg_mr").on(&elsewhere));
    panic_of(|| fabric.fail("ibv_reg_mr").nth(0, Errno::IO));
}

/// It is the call of that number on that host, once; and it can be taken back.
#[test]
fn the_call_that_is_meant_fails() -> Result {
    let (fabric, [one, other]) = Rig::strict().hosts(["one", "other"]);
    let failing = fabric.fail("ibv_reg_mr").on(&one).nth(2, Errno::NOSPC);
    let register = |peer: &Peer| Mr::reg(peer, vec![0; 8], MrUsage::WRITE_SRC);
    let [there, here] = [&other, &one].map(peer_of);
    let _entered = one.enter();
    let calls = || fabric.calls().get("ibv_reg_mr").copied().unwrap_or(0);
    let before = calls();
    for _ in 0..3 {
        register(&there)?;
    }
    register(&here)?;
    assert!(failing.is_pending());
    let text = register(&here).expect_err("the second").to_string();
    assert!(text.starts_with("ibv_reg_mr failed"), "{text}");
    assert!(!failing.is_pending() && !failing.disarm());
    register(&here)?;
    assert_eq!(calls() - before, 6);

    let failing = fabric.fail("ibv_reg_mr").next(Errno::NOSPC);
    assert!(failing.disarm());
    register(&here)?;
    Ok(())
}

/// A request that a post drops in silence is the last one of several, as of the provider that does
/// that.
#[test]
fn a_request_alone_is_not_dropped_in_silence() -> Result {
    let here = rxe().here();
    let (conn, _server) = Pair::new(&peer()?)?.ends();
    let failing = here.fabric.fail("ibv_post_send").how(How::LastDropped);
    let failing = failing.next(Errno::IO);
    let posted = conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1);
    assert!(matches!(posted, Err(Error::Provider { .. })), "{posted:?}");
    assert!(!failing.is_pending());
    Ok(())
}

/// More events than a pipe has room for, all unread: no call waits for that.
#[test]
fn events_that_nobody_reads() -> Result {
    const EVENTS: u32 = 70_000;
    let fabric = rxe().emptied();
    let host = fabric.host("here");
    let _entered = host.enter();
    let (conn, _server) = Pair::new(&peer()?)?.ends();
    let cq = conn.get_cq();
    for _ in 0..EVENTS {
        cq.req_notify(Notify::Any)?;
        write(&conn)?;
    }
    let mut read = 0;
    while cq.wait_timeout(Duration::ZERO).is_ok() {
        read += 1;
    }
    assert_eq!(read, EVENTS, "none is lost");
    Ok(())
}

/// A port is taken at an address, not at all of them.
#[test]
fn a_port_at_each_address() -> Result {
    let here = rxe().here();
    let peer = peer()?;
    let _four = Ep::listen(&peer, &addr(), 7204)?;
    let _six = Ep::listen(&peer, &here.host.addr6().to_string(), 7204)?;
    let again = Ep::listen(&peer, &addr(), 7204).expect_err("taken");
    assert_eq!(again.raw_os_error(), Some(Errno::ADDRINUSE.raw_os_error()));
    Ok(())
}

/// Writes to another host's memory. After `Ok` the bytes are there.
fn write_once(fabric: &Fabric, waits: bool) -> Result {
    let [client, server] = ["client", "server"].map(|name| fabric.host(name));
    let addr = server.addr().to_string();
    let on_server = server.enter();
    let far_peer = Peer::at(&addr)?;
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    let target = Mr::reg(&far_peer, vec![0; 8], usage)?;
    drop(on_server);
    let _on_client = client.enter();
    let peer = Peer::toward(&addr)?;
    let source = Mr::reg(&peer, vec![7; 8], MrUsage::WRITE_SRC)?;
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(2)?;
    let (near, far) = ((&peer, &cfg), (&far_peer, &cfg));
    let pair = Pair::between(&addr, near, far, (&[], &target.get_descriptor()))?;
    let conn = &pair.client;
    let to = MrRemote::from_descriptor(conn.get_private_data())?.slice(..8)?;
    conn.write(to, source.slice(..)?, Flags::COMPLETION_ON_ERROR, 1)?;
    let flushed = conn.flush(to, FlushType::Visibility, ALWAYS, 2)?;
    if waits {
        conn.wait_for(flushed, LIMIT, |_| {})?;
    }
    let mut bytes = [0; 8];
    target.read_at(0, &mut bytes)?;
    assert_eq!(bytes, [7; 8], "it was acknowledged");
    Ok(())
}

/// A sweep runs a program under each single fault, and finds one that does not wait for the data
/// that it acknowledges.
#[test]
fn a_sweep_has_every_fault() {
    for profile in Profile::ALL {
        let runs = sweep(&profile, |fabric| drop(write_once(fabric, true)));
        assert!(runs > 60, "{runs}");
        // It tells too early.
        panic_of(|| sweep(&profile, |fabric| drop(write_once(fabric, false))));
    }
}

/// Promise: a client of several servers gets its peer while one of them is up. Bad addresses are
/// refused before one is tried.
#[test]
fn a_peer_leads_to_the_server_that_is_up() -> Result {
    let (_fabric, [client, down, up]) = Rig::strict().seed(1).hosts(["client", "down", "up"]);
    let addr = |host: &Host| SocketAddr::from((host.addr(), 7204));
    down.power_cut();
    let _on_client = client.enter();
    let gone = Peer::toward_any(&[addr(&down)]).expect_err("no server is up");
    assert!(gone.raw_os_error().is_some(), "{gone}");
    let peer = Peer::toward_any(&[addr(&down), addr(&up)])?;
    assert_eq!(
        peer.get_device_name(),
        Peer::toward(&up.addr().to_string())?.get_device_name()
    );
    let wildcard = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7204));
    for addrs in [&[][..], &[addr(&up), wildcard]] {
        let refused = Peer::toward_any(addrs).expect_err("refused");
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    }
    Ok(())
}

/// Opens a device, and makes bytes of mapped memory durable with a region of it.
fn open_and_persist(host: &Host, path: &Path) -> Result {
    let map = PmemMap::open(path, 64)?;
    let peer = Peer::at(&host.addr().to_string())?;
    let region = Mr::reg(&peer, map, MrUsage::WRITE_DST)?;
    region.write_at(0, &[7; 8])?;
    region.persist(..8)?;
    mem::forget(region);
    Ok(())
}

/// Promise: a program that is killed at any of its calls makes no further object: that call fails.
/// Otherwise it would persist memory that is no longer its own, and a right program would fail a
/// sweep.
#[test]
fn a_killed_program_does_not_go_on() -> Result {
    let run = |kill_at: Option<u64>| {
        let (fabric, [host]) = Rig::strict().seed(1).hosts(["one"]);
        let pmem = host.pmem("memory", 64);
        let _entered = host.enter();
        let killed = host.clone();
        let kill = kill_at.map(|step| fabric.at_step(step, move || killed.kill()));
        let before = fabric.steps();
        let opened = open_and_persist(&host, pmem.path());
        let after = fabric.steps();
        let was_killed = kill.is_some_and(|kill| !kill.is_pending());
        (before + 1..=after, was_killed, opened)
    };
    let (steps, _, opened) = run(None);
    opened?;
    assert!(steps.clone().count() > 5, "{steps:?}");
    for step in steps {
        let (_, was_killed, opened) = run(Some(step));
        assert!(was_killed);
        assert!(opened.is_err(), "step {step}");
    }
    Ok(())
}

/// Promise: objects made with a peer are on that peer's host, whichever thread makes them: one on
/// no host, one on the other host, one on a host of another fabric. So are its failures.
#[test]
fn what_is_made_with_a_peer_is_on_its_host() -> Result {
    let fabric = rxe().emptied();
    let World {
        hosts: [client, server],
        peers: [near, far],
        ..
    } = World::on(&fabric);
    let elsewhere = rxe().fabric().host("elsewhere");
    for entered in [None, Some(&client), Some(&server), Some(&elsewhere)] {
        let _entered = entered.map(Host::enter);
        let ids = |host: &Host| host.objects().get("cm_id").copied().unwrap_or(0);
        let before = [&client, &server].map(ids);

        let failing = fabric.fail("rdma_create_id").on(&server);
        let failing = failing.next(Errno::NOMEM);
        let at = (server.addr(), 0).into();
        let error = Ep::listen_on(&far, at).expect_err("it fails");
        assert!(error.to_string().starts_with("rdma_create_id failed"));
        assert!(!failing.is_pending());
        let ep = Ep::listen_on(&far, at)?;
        assert_eq!(ids(&server), before[1] + 1);

        let at = (server.addr(), ep.get_port()).into();
        let call = "rdma_create_event_channel";
        let failing = fabric.fail(call).on(&client).next(Errno::NOMEM);
        let error = ConnReq::resolve(&near, at, &ConnCfg::new()).expect_err("it fails");
        assert!(error.to_string().starts_with(call), "{error}");
        assert!(!failing.is_pending());
        let req = ConnReq::to_addr(&near, at, &ConnCfg::new())?;
        assert_eq!(ids(&client), before[0] + 1);
        let asking = req.connect(&[])?;

        // The channel of a request is made on the host of its endpoint.
        let other = fabric.fail(call).on(&client).next(Errno::NOMEM);
        let failing = fabric.fail(call).on(&server).next(Errno::MFILE);
        request(&ep, &ConnCfg::new()).expect_err("it fails");
        assert!(!failing.is_pending() && other.disarm());
        let event = event(&asking)?;
        assert!(matches!(event, ConnEvent::Rejected { .. }), "{event}");

        let asking = ConnReq::to_addr(&near, at, &ConnCfg::new())?.connect(&[])?;
        let _end = accept(&ep, &ConnCfg::new())?;
        write(&asking.wait_established(LIMIT)?)?;
    }
    Ok(())
}

/// Promise: a peer on a host that has lost its power makes no object, and reports why. The thread's
/// own host takes no part in that.
#[test]
fn a_peer_of_a_dead_host_is_told_why() {
    let (_fabric, [host, other]) = rxe().hosts(["here", "other"]);
    let (peer, at) = (peer_of(&host), (host.addr(), 0).into());
    let refused = || {
        let text = Ep::listen_on(&peer, at).expect_err("no host").to_string();
        assert!(text.starts_with("rdma_create_id failed"), "{text}");
        assert_says(&text, &["make another Peer"]);
    };
    host.power_cut();
    refused();
    let _entered = other.enter();
    refused();
    host.restart();
    refused();
    assert!(Ep::listen_on(&peer_of(&host), at).is_ok());
}

/// Promise of the short runs: of four of them with different shares, just one has each item, and a
/// share is not always the same place in a row.
#[test]
fn each_item_is_in_one_of_four_shares() {
    let of = |own| (0..100).filter(move |number| share_has(own, 4, *number));
    for number in 0..100 {
        let shares = (0..4).filter(|own| share_has(*own, 4, number)).count();
        assert_eq!(shares, 1, "{number}");
    }
    for own in 0..4 {
        let mut places: Vec<_> = of(own).map(|number| number % 4).collect();
        assert_eq!(places.len(), 25);
        places.sort_unstable();
        places.dedup();
        assert_eq!(places, [0, 1, 2, 3], "the share {own}");
    }
}

/// Promise of each device test: an object that is left fails it, with the error of a test that has
/// failed as well.
#[test]
fn an_object_that_is_left_fails_its_test() {
    let leaks = |error: Option<&str>| {
        panic_of(|| -> Result {
            let _test = device_test();
            mem::forget(peer()?);
            error.map_or(Ok(()), |error| Err(error)?)
        })
    };
    assert_says(&leaks(None), &["objects leak", "pd"]);
    assert_says(&leaks(Some("no answer")), &["objects leak", "no answer"]);
}
