//! The needs of an event loop: descriptors that are readable when there is an event to take, calls
//! that do not block, and connecting in steps.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread;

use rpma::{Progress, Resolving};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::common::prelude::*;

/// W-2: the C library reports a provider error, and logs one, when no event is pending.
#[test]
fn nothing_pending_is_no_event_at_once_on_a_non_blocking_descriptor() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let pair = Pair::new(&peer)?;
    for fd in [
        ep.as_fd(),
        pair.client.as_fd(),
        pair.client.get_cq().as_fd(),
    ] {
        let flags = fcntl_getfl(fd)?;
        assert!(!flags.contains(OFlags::NONBLOCK), "blocking by default");
        fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    }
    assert!(matches!(
        ep.next_conn_req(&ConnCfg::new()),
        Err(Error::NoEvent)
    ));
    assert!(matches!(pair.client.next_event(), Err(Error::NoEvent)));
    assert!(matches!(
        pair.client.get_cq().wait(),
        Err(Error::NoCompletion)
    ));
    let error = std::io::Error::from(pair.client.next_event().expect_err("nothing"));
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    for fd in [
        ep.as_fd(),
        pair.client.as_fd(),
        pair.client.get_cq().as_fd(),
    ] {
        assert!(
            fcntl_getfl(fd)?.contains(OFlags::NONBLOCK),
            "and it stays so"
        );
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
    let request = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT);
    assert!(matches!(request, Err(Error::NoEvent)));
    assert!(matches!(
        conn.next_event_timeout(LIMIT),
        Err(Error::NoEvent)
    ));
    assert!(matches!(cq.wait_timeout(LIMIT), Err(Error::NoCompletion)));
    set(false)?;
    for fd in [ep.as_fd(), conn.as_fd(), cq.as_fd()] {
        let flags = fcntl_getfl(fd)?;
        assert!(!flags.contains(OFlags::NONBLOCK), "blocking");
    }
    let short = Duration::from_millis(50);
    let began = Instant::now();
    assert!(matches!(
        conn.next_event_timeout(short),
        Err(Error::NoEvent)
    ));
    assert!(matches!(cq.wait_timeout(short), Err(Error::NoCompletion)));
    assert!(began.elapsed() >= 2 * short, "it waits");
    Ok(())
}

/// Goes on with a request as an event loop does: only when its descriptor is readable.
fn resolved(mut resolving: Resolving) -> Result<ConnReq, Error> {
    let deadline = Instant::now() + LIMIT;
    loop {
        resolving = match resolving.advance()? {
            Progress::Ready(req) => return Ok(req),
            Progress::Waiting(resolving) => resolving,
        };
        while !readable(resolving.as_fd()) {
            assert!(Instant::now() < deadline, "the kernel says how it ended");
            thread::sleep(Duration::from_millis(1));
        }
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
            let peer = peer()?;
            let ep = Ep::listen_on(&peer, SocketAddr::new(addr, 0))?;
            SocketAddr::new(addr, ep.get_port())
        };
        let device = Device::from_socket_addr(free, Side::Local)?;
        let peer = Peer::new(&device)?;
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
        let device = Device::from_socket_addr(at, Side::Local)?;
        let peer = Peer::new(&device)?;
        let ep = Ep::listen_on(&peer, at)?;
        ep.set_nonblocking(true)?;
        let at = SocketAddr::new(at.ip(), ep.get_port());
        let resolving: Vec<_> = (0..10)
            .map(|_| ConnReq::resolve(&peer, at, &cfg))
            .collect::<Result<_, _>>()?;
        let clients: Vec<_> = resolving
            .into_iter()
            .map(|resolving| -> Result<_> {
                let req = resolved(resolving)?;
                let conn = req.connect(&[])?;
                conn.set_nonblocking(true)?;
                assert!(matches!(conn.next_event(), Err(Error::NoEvent)));
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
            while !readable(conn.as_fd()) {
                assert!(Instant::now() < deadline, "all are established in time");
                thread::sleep(Duration::from_millis(1));
            }
            let event = conn.next_event()?;
            assert_eq!(event, ConnEvent::Established);
        }
        let blocking = ConnReq::to_addr(&peer, at, &cfg)?;
        assert_eq!(blocking.peer_addr()?, at);
    }
    Ok(())
}

/// Promise: an address that cannot be reached is an error within its limit, by an event; dropping
/// it gives up.
#[test]
fn connecting_without_blocking_fails_in_time() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let mut cfg = ConnCfg::new();
    cfg.set_timeout(Duration::from_millis(300));
    // No host has it, on this network.
    let nobody = format!("{}:7", addr().replace(".1", ".99"));
    let nobody: SocketAddr = nobody.parse()?;
    let error = resolved(ConnReq::resolve(&peer, nobody, &cfg)?);
    let error = error.expect_err("nobody is there");
    assert!(
        error.to_string().starts_with("rdma_resolve_addr failed"),
        "{error}"
    );
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    drop(ConnReq::resolve(&peer, nobody, &cfg)?);

    let wildcard = "0.0.0.0:7".parse()?;
    let text = invalid(ConnReq::resolve(&peer, wildcard, &cfg));
    assert!(text.contains("wildcard"), "{text}");
    invalid(Ep::listen_on(&peer, wildcard));
    invalid(Device::from_socket_addr(wildcard, Side::Local));
    Ok(())
}

/// Whether `fd` is readable now.
fn readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec::default();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&now)).expect("polls") > 0
}

/// Waits until `fd` is readable.
fn becomes_readable(fd: BorrowedFd<'_>) {
    let start = Instant::now();
    while !readable(fd) {
        assert!(start.elapsed() < LIMIT, "readable in time");
        thread::yield_now();
    }
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
        assert!(!readable(ep.as_fd()));
        let client = ask(&peer, &ep, &cfg)?;
        assert_eq!(client.get_event_fd(), client.as_fd().as_raw_fd());
        assert!(!readable(client.as_fd()));
        becomes_readable(ep.as_fd());
        let req = ep.next_conn_req(&cfg)?;
        assert!(!readable(ep.as_fd()), "it was taken");
        let server = req.connect(&[])?;
        for conn in [&client, &server] {
            becomes_readable(conn.as_fd());
            assert_eq!(conn.next_event()?, ConnEvent::Established);
            assert!(!readable(conn.as_fd()), "it was taken");
        }
        for (closes, is_told) in [(&client, &server), (&server, &client)] {
            closes.disconnect()?;
            becomes_readable(is_told.as_fd());
            assert_eq!(is_told.next_event()?, ConnEvent::Closed);
        }
    }
    Ok(())
}
