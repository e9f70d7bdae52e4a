//! A runtime with a paused clock, and connections between tasks of one thread.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;

use rpma::Resolving;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{timeout, timeout_at};

pub(crate) use crate::common::prelude::*;

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
/// A day: of no use where time stands still, and over at once where no other event can come.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// Runs a test with two hosts of a fabric that follows a paused clock. In the end no object is left
/// on the fabric, and the future that does the work ends with it.
pub(crate) fn virtually<T>(test: impl AsyncFnOnce(&World) -> Result<T>) -> Result<T> {
    paused::runtime().block_on(async {
        let fabric = paused::fabric(&Rig::new());
        let ticking = paused::tick(&fabric);
        let result = test(&World::on(&fabric)).await;
        assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
        drop(fabric);
        let ended = timeout(DAY, ticking).await.expect("in time");
        ended.expect("no panic");
        result
    })
}

/// Two ends of a connection, made by two tasks.
pub(crate) async fn connect(world: &World, client: &ConnCfg, server: &ConnCfg) -> Result<Pair> {
    assert!(Host::current().is_none(), "no task is on a host");
    let ep = world.listen()?;
    let at = (world.hosts[1].addr(), ep.get_port()).into();
    let server = server.clone();
    let serving = tokio::spawn(async move { accept(&ep, &server).await });
    let req = ConnReq::resolve(&world.peers[0], at, client)?;
    let req = resolved(req).await?;
    let client = req.connect(&[])?;
    assert_eq!(event(&client).await, ConnEvent::Established);
    Ok(Pair {
        client,
        server: serving.await.expect("no panic")?,
    })
}

/// An address that no host has.
pub(crate) fn nobody(world: &World) -> SocketAddr {
    let [a, b, c, _] = world.hosts[1].addr().octets();
    ([a, b, c, 99], 7).into()
}

/// Waits until a descriptor may be readable.
pub(crate) async fn readable(fd: impl AsFd) {
    let fd = fd.as_fd().try_clone_to_owned().expect("a descriptor");
    // SAFETY: `fd` owns its descriptor, which stays open and the same as long as the result, which
    // takes it.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    let fd = fd.map_err(io::Error::from).expect("registered");
    drop(fd.readable().await.expect("the reactor"));
}

/// Takes a request, and waits until its connection is established.
pub(crate) async fn accept(ep: &Ep, cfg: &ConnCfg) -> Result<Conn> {
    ep.set_nonblocking(true)?;
    loop {
        match ep.next_conn_req(cfg) {
            Err(Error::NoEvent) => readable(ep).await,
            req => {
                let conn = req?.connect(&[])?;
                assert_eq!(event(&conn).await, ConnEvent::Established);
                return Ok(conn);
            }
        }
    }
}

pub(crate) async fn resolved(mut resolving: Resolving) -> rpma::Result<ConnReq> {
    loop {
        resolving = match resolving.advance()? {
            ControlFlow::Break(req) => return Ok(req),
            ControlFlow::Continue(resolving) => resolving,
        };
        readable(&resolving).await;
    }
}

/// Waits for a completion or an event, and calls `next` again when a keep-alive is due.
pub(crate) async fn next(conn: &Conn, wcs: &mut [Wc]) -> rpma::Result<Next> {
    loop {
        match conn.next(wcs, Duration::ZERO) {
            Err(Error::TimedOut(_)) => {}
            next => return next,
        }
        let readable = readable(conn.get_next_fd().expect("a descriptor"));
        match conn.keep_alive().expect("it waits here") {
            Some(due) => drop(timeout_at(due.into(), readable).await),
            None => readable.await,
        }
    }
}

pub(crate) async fn event(conn: &Conn) -> ConnEvent {
    match next(conn, &mut [Wc::default()]).await.expect("an event") {
        Next::Event(event) => event,
        Next::Completions(_) => panic!("a completion in the place of an event"),
    }
}

pub(crate) async fn completion(conn: &Conn) -> Wc {
    let mut wcs = [Wc::default()];
    match next(conn, &mut wcs).await.expect("a completion") {
        Next::Completions(_) => wcs[0],
        Next::Event(event) => panic!("{event} in the place of a completion"),
    }
}

/// Posts a write of all of a region, and waits for its completion.
pub(crate) async fn write(conn: &Conn, from: &Mr<Memory>, to: RemoteSlice) -> Wc {
    let from = from.slice(..).expect("all of it");
    conn.write(to, from, ALWAYS, 0).expect("posted");
    completion(conn).await
}

/// The same for the bytes of the client.
pub(crate) async fn write_all(conn: &Conn, memories: &Memories) -> Wc {
    let to = memories.to().expect("all of it");
    write(conn, &memories.source, to).await
}
