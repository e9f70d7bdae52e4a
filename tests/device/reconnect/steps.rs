//! The steps of a reconnect, for event loops; its refusals; and its end in the middle.

use std::net::SocketAddr;

use rpma::commit::{Method, WriterCfg};
use rpma::reconnect::{Connects, Reconnect, ReconnectCfg, ToConn, ToWriter};
use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::reconnect::support::{
    LEN, Server, assert_another_would_fail, connect, go_on, identified, quick, readable,
};

/// Promise: no step waits. The descriptor is readable exactly when a step has something to do, and
/// it is the same one from beginning to end.
#[test]
fn a_loop_needs_one_descriptor() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let mut client = server.client()?;
    assert!(client.deadline().is_none());
    for _ in 0..3 {
        let mut current = None;
        let conn = connect(&mut client, || server.accept(&mut current))?;
        // The connection's events are its own.
        drop(current);
        while !readable(&conn) {}
        assert!(!readable(&client));
    }
    assert_eq!((client.tries(), client.connected()), (3, 3));
    Ok(())
}

/// Promise: a connection for a place of a wait is made again, and its completions come there.
#[test]
fn a_place_of_a_wait_gets_the_connection() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let mut client = server.client()?;
    let (mut wait, mut current) = (Wait::new()?, None);
    for number in 0..3 {
        let place = wait.place();
        let cfg = place.cfg(client.peer(), &ConnCfg::new())?;
        client.begin(&cfg)?;
        let mut refused = false;
        let conn = go_on(&mut client, &mut || {
            // The first request of each round is rejected: the place serves several tries.
            if refused {
                server.accept(&mut current);
            } else if let Some(req) = server.request() {
                drop(req);
                refused = true;
            }
        });
        let member = wait.add(place, conn?)?;
        write_nothing(wait.conn(member).ok_or("a member")?, number)?;
        let mut wcs = [Wc::default(); 2];
        match wait.next(&mut wcs, LIMIT)? {
            Some(Happened::Completions(of, 1)) if of == member => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(wcs[0].wr_id(), number);
        drop(wait.remove(member));
    }
    Ok(())
}

/// Posts a receive before it connects, which the peer's first message finds.
struct WithReceive;

impl Connects for WithReceive {
    type Asked = Conn;
    type Connected = Conn;

    fn ask(&mut self, req: ConnReq, _: &Offer) -> rpma::Result<Conn> {
        req.recv(MrSlice::EMPTY, 9)?;
        Ok(req.connect(b"own data")?)
    }

    fn conn(asked: &Conn) -> &Conn {
        asked
    }

    fn finish(&mut self, asked: Conn) -> rpma::Result<Conn> {
        Ok(asked)
    }
}

/// Promise: a program's own last steps have receives and data of their own.
#[test]
fn own_last_steps() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let mut client = server.client_with(Offer::new(&PeerCfg::new()), WithReceive)?;
    for _ in 0..2 {
        let mut current = None;
        let conn = connect(&mut client, || {
            if let Some(req) = server.request() {
                assert!(req.get_private_data().starts_with(b"own data"));
                current = Some(req.connect(&[]).expect("accepts"));
            }
        })?;
        let server = current.ok_or("accepted")?.wait_established(LIMIT)?;
        server.send(MrSlice::EMPTY, Flags::COMPLETION_ON_ERROR, 1)?;
        let wc = completion(&conn)?;
        assert_eq!(wc.wr_id(), 9);
        wc.result()?;
    }
    Ok(())
}

/// Promise: by IPv6 as well; and each address of a server is tried in a round, without a wait in
/// between.
#[test]
fn each_address_is_tried() -> Result {
    let _test = device_test();
    let mut current = None;
    let server = Server::at(&addr6())?;
    let port = server.ep.get_port();
    let mut client = Reconnect::new(&server.peer, &addr6(), port, identified(1), ToConn)?;
    let conn = connect(&mut client, || server.accept(&mut current))?;
    drop((conn, current.take()));

    let (first, server) = (Server::new()?, Server::new()?);
    let addrs = [first.at_addr()?, server.at_addr()?];
    drop(first);
    let mut client = Reconnect::to_addrs(&server.peer, &addrs, identified(1), ToConn)?;
    let mut cfg = ReconnectCfg::new();
    client.set_cfg(cfg.set_limit(LIMIT / 2).set_waits(LIMIT, LIMIT)?);
    // If a wait came in between it would not end in time.
    connect(&mut client, || server.accept(&mut current))?;
    assert_eq!(client.tries(), 2);
    Ok(())
}

/// Promise: an address of another device is no reason to give up while another address may work.
/// If it is the only one, no other try is made.
#[test]
fn an_address_of_another_device() -> Result {
    let _test = device_test();
    let (here, other) = (Server::new()?, Server::at(&other_addr())?);
    let other_at = SocketAddr::new(other_addr().parse()?, other.ep.get_port());
    // A client on the other device does not reach this one's address through it.
    let client = |addrs: &[_]| -> Result<_> {
        let mut client = Reconnect::to_addrs(&other.peer, addrs, identified(1), ToConn)?;
        client.set_cfg(&quick()?);
        Ok(client)
    };
    let mut one = client(&[here.at_addr()?])?;
    let gave_up = connect(&mut one, || {}).expect_err("another device");
    assert_another_would_fail(&gave_up);
    assert_eq!(one.tries(), 1);
    let (mut two, mut current) = (client(&[here.at_addr()?, other_at])?, None);
    connect(&mut two, || other.accept(&mut current))?;
    assert_eq!(two.tries(), 2);
    Ok(())
}

/// Promise: each round looks a name up, and tries its addresses. A name that is not found may be
/// found later.
#[test]
fn a_name_is_looked_up_in_each_round() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ms = Duration::from_millis;
    let ends = |name: &str| -> Result<_> {
        let mut client = Reconnect::new(&peer, name, 7, Offer::new(&PeerCfg::new()), ToConn)?;
        client.set_cfg(quick()?.set_limit(ms(200)));
        let connected = client.connect(ConnCfg::new().set_timeout(ms(10)));
        let gave_up = connected.expect_err("no server");
        let Error::GaveUp(last) = gave_up else {
            panic!("{gave_up:?}");
        };
        let Error::Provider { call, .. } = *last else {
            panic!("{last:?}");
        };
        Ok((call, client.tries()))
    };
    if cfg!(feature = "sim") {
        // No simulated host has its address.
        let (call, tries) = ends("localhost")?;
        assert!(call.starts_with("rdma_resolve"), "{call}");
        assert!(tries > 1, "{tries}");
    }
    assert_eq!(ends("no such name.invalid")?, ("getaddrinfo", 0));
    Ok(())
}

/// Promise: a mistake is one clear error, before anything is asked.
#[test]
fn mistakes_are_refused_first() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let small = || Offer::new(&PeerCfg::new());
    let wildcard = Reconnect::new(&peer, "0.0.0.0", 7, small(), ToConn);
    assert_says(&invalid(wildcard), &["wildcard"]);
    let nowhere = Reconnect::to_addrs(&peer, &[], small(), ToConn);
    assert_says(&invalid(nowhere), &["address"]);
    let long = small().set_data(&[7; 49]).clone();
    let new = |offer| Reconnect::new(&peer, &addr(), 7, offer, ToConn);
    says(invalid(new(long.clone())), "56 fit");
    let mut client = new(small())?;
    says(invalid(client.set_offer(long).map(drop)), "56 fit");

    let gave_up = client.advance().expect_err("nothing has begun");
    assert_says(&gave_up, &["begin first"]);
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(u32::MAX);
    says(invalid(client.begin(&cfg)), "set_sq_size");
    let gave_up = client.connect(&cfg).expect_err("no such queue");
    assert_another_would_fail(&gave_up);
    assert_eq!(client.tries(), 0);
    assert!(matches!(gave_up, Error::InvalidArgument(_)));
    Ok(())
}

/// Promise: it can be dropped or given up after each step, and leaves no object: neither for a
/// plain connection nor for a writer. It can begin again then.
#[test]
fn it_ends_in_the_middle() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let mut cfg = WriterCfg::new(Method::Reading);
    cfg.set_flush_type(FlushType::Visibility)?;
    for steps in 0..6 {
        ends_after(steps, &server, server.client()?)?;
        let writer = server.client_with(identified(1), ToWriter::new(&cfg))?;
        ends_after(steps, &server, writer)?;
    }
    assert_eq!(server.memory.get_size(), LEN);
    Ok(())
}

/// Goes on for so many steps, gives up, begins again, goes on once more, and drops it.
fn ends_after<C: Connects>(steps: u32, server: &Server, mut client: Reconnect<C>) -> Result {
    let mut accepted = Vec::new();
    for gives_up in [true, false] {
        client.begin(&ConnCfg::new())?;
        for _ in 0..steps {
            if client.advance()?.is_some() {
                break;
            }
            readable(&client);
            if let Some(req) = server.request() {
                accepted.push(req.connect(&server.offer()));
            }
        }
        if gives_up {
            client.cancel();
            assert!(client.deadline().is_none());
            assert!(client.advance().is_err(), "it was given up");
        }
    }
    drop(client);
    // Its requests may still be there.
    let (cfg, wait) = (ConnCfg::new(), Duration::from_millis(1));
    while server.ep.next_conn_req_timeout(&cfg, wait).is_ok() {}
    Ok(())
}
