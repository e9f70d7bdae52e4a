//! The needs of an event loop: descriptors that are readable when there is an event to take, calls
//! that do not block, and connecting in steps.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

use rpma::Resolving;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::common::prelude::*;

fn is_no_event<T: Debug>(next: Result<T, Error>) {
    assert!(matches!(next, Err(Error::NoEvent)), "{next:?}");
}

/// W-2: the C library reports a provider error, and logs one, when no event is pending.
#[test]
fn nothing_pending_is_no_event_at_once_on_a_non_blocking_descriptor() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let pair = Pair::new(&peer)?;
    let (conn, cq) = (&pair.client, pair.client.get_cq());
    let fds = [ep.as_fd(), conn.as_fd(), cq.as_fd()];
    for fd in fds {
        let flags = fcntl_getfl(fd)?;
        assert!(!flags.contains(OFlags::NONBLOCK), "blocking by default");
        fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    }
    is_no_event(ep.next_conn_req(&ConnCfg::new()));
    is_no_event(conn.next_event());
    assert!(matches!(cq.wait(), Err(Error::NoCompletion)));
    let error = std::io::Error::from(conn.next_event().expect_err("nothing"));
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    for fd in fds {
        assert!(fcntl_getfl(fd)?.contains(OFlags::NONBLOCK), "{fd:?}");
    }
    Ok(())
}

/// The same, by the library's own method, and back again.
#[test]
fn descriptors_are_made_non_blocking_and_blocking_again() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let pair = Pair::new(&peer)?;
    let (conn, cq) = (&pair.client, pair.client.get_cq());
    let set = |on| -> Result {
        ep.set_nonblocking(on)?;
        conn.set_nonblocking(on)?;
        cq.set_nonblocking(on)?;
        Ok(())
    };
    set(true)?;
    is_no_event(ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT));
    is_no_event(conn.next_event_timeout(LIMIT));
    assert!(matches!(cq.wait_timeout(LIMIT), Err(Error::NoCompletion)));
    set(false)?;
    for fd in [ep.as_fd(), conn.as_fd(), cq.as_fd()] {
        assert!(!fcntl_getfl(fd)?.contains(OFlags::NONBLOCK), "blocking");
    }
    let short = Duration::from_millis(50);
    let began = Instant::now();
    is_no_event(conn.next_event_timeout(short));
    assert!(matches!(cq.wait_timeout(short), Err(Error::NoCompletion)));
    assert!(began.elapsed() >= 2 * short, "it waits");
    Ok(())
}

/// Goes on with a request as an event loop does: only when its descriptor is readable.
fn resolved(mut resolving: Resolving) -> Result<ConnReq, Error> {
    loop {
        resolving = match resolving.advance()? {
            ControlFlow::Break(req) => return Ok(req),
            ControlFlow::Continue(resolving) => resolving,
        };
        assert!(readable(&resolving, LIMIT), "the kernel says how it ended");
    }
}

/// Promise: a device that is opened by an address with a port leaves that port free: a server opens
/// the device by the address at which it listens.
#[test]
fn a_device_takes_no_port() -> Result {
    let _test = device_test();
    for addr in [addr(), addr6()] {
        let addr = addr.parse()?;
        let free = {
            let ep = Ep::listen_on(&peer()?, SocketAddr::new(addr, 0))?;
            SocketAddr::new(addr, ep.get_port())
        };
        let peer = Peer::new(&Device::from_socket_addr(free, Side::Local)?)?;
        let ep = Ep::listen_on(&peer, free)?;
        assert_eq!(ep.get_port(), free.port());
    }
    Ok(())
}

/// Promise: connecting in steps that never wait; ten at once in one thread.
#[test]
fn connecting_does_not_block() -> Result {
    let _test = device_test();
    let cfg = ConnCfg::new();
    for addr in [addr(), addr6()] {
        let at = SocketAddr::new(addr.parse()?, 0);
        let peer = Peer::new(&Device::from_socket_addr(at, Side::Local)?)?;
        let ep = Ep::listen_on(&peer, at)?;
        ep.set_nonblocking(true)?;
        let at = SocketAddr::new(at.ip(), ep.get_port());
        let resolving: Vec<_> = (0..10)
            .map(|_| ConnReq::resolve(&peer, at, &cfg))
            .collect::<Result<_, _>>()?;
        let clients: Vec<_> = resolving
            .into_iter()
            .map(|resolving| -> Result<_> {
                let conn = resolved(resolving)?.connect(&[])?;
                conn.set_nonblocking(true)?;
                is_no_event(conn.next_event());
                Ok(conn)
            })
            .collect::<Result<_, _>>()?;
        let mut servers = Vec::new();
        let deadline = Instant::now() + LIMIT;
        while servers.len() < clients.len() {
            assert!(Instant::now() < deadline, "all requests in time");
            match ep.next_conn_req(&cfg) {
                Ok(req) => servers.push(req.connect(&[])?),
                Err(Error::NoEvent) => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        }
        for conn in clients.iter().chain(&servers) {
            assert!(readable(conn, LIMIT), "all are established in time");
            assert_eq!(conn.next_event()?, ConnEvent::Established);
        }
        assert_eq!(ConnReq::to_addr(&peer, at, &cfg)?.peer_addr()?, at);
    }
    Ok(())
}

/// Promise: an address that cannot be reached is an error within its limit, by an event; dropping
/// it gives up.
#[test]
fn connecting_without_blocking_fails_in_time() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let cfg = ConnCfg::new()
        .set_timeout(Duration::from_millis(300))
        .clone();
    // No host has it, on this network.
    let nobody = format!("{}:7", addr().replace(".1", ".99"));
    let nobody: SocketAddr = nobody.parse()?;
    let error = resolved(ConnReq::resolve(&peer, nobody, &cfg)?);
    let error = error.expect_err("nobody is there").to_string();
    assert!(error.starts_with("rdma_resolve_addr failed"), "{error}");
    assert_says(&error, &["cannot be reached"]);
    drop(ConnReq::resolve(&peer, nobody, &cfg)?);

    let wildcard = "0.0.0.0:7".parse()?;
    says(invalid(ConnReq::resolve(&peer, wildcard, &cfg)), "wildcard");
    invalid(Ep::listen_on(&peer, wildcard));
    invalid(Device::from_socket_addr(wildcard, Side::Local));
    Ok(())
}

fn is_readable_now(fd: impl AsFd) -> bool {
    readable(fd, Duration::ZERO)
}

/// The descriptors of an endpoint and of a connection are readable when, and only when, the next
/// request or event can be taken without waiting.
#[test]
fn descriptors_are_readable_when_there_is_something_to_take() -> Result {
    let _test = device_test();
    let (peer, cfg) = (peer()?, ConnCfg::new());
    let ep = listen(&peer)?;
    assert_eq!(ep.get_fd(), ep.as_fd().as_raw_fd());
    for _ in 0..2 {
        assert!(!is_readable_now(&ep));
        let client = ask(&peer, &ep, &cfg)?;
        assert_eq!(client.get_event_fd(), client.as_fd().as_raw_fd());
        assert!(!is_readable_now(&client));
        assert!(readable(&ep, LIMIT));
        let req = ep.next_conn_req(&cfg)?;
        assert!(!is_readable_now(&ep), "it was taken");
        let server = req.connect(&[])?;
        for conn in [&client, &server] {
            assert!(readable(conn, LIMIT));
            assert_eq!(conn.next_event()?, ConnEvent::Established);
            assert!(!is_readable_now(conn), "it was taken");
        }
        for (closes, is_told) in [(&client, &server), (&server, &client)] {
            closes.disconnect()?;
            assert!(readable(is_told, LIMIT));
            assert_eq!(is_told.next_event()?, ConnEvent::Closed);
        }
    }
    Ok(())
}
