//! Two ends of one connection on one thread of tokio, and their memory.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use rpma::{Mr, MrRemote, MrUsage, Peer};
use rpma_async::{Conn, Listener, Pool, Reactor, Setup};

use crate::common::{self, LIMIT, Memory};

/// Runs a future on one thread, for at most the limit of tests.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { in_time(future).await })
}

/// Awaits a future that must not take longer than the limit of tests.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

/// A listener on the test device.
pub(crate) fn listen(reactor: &Reactor) -> (Listener, SocketAddr) {
    let addr = SocketAddr::new(common::addr().parse().expect("an address"), 0);
    let listener = reactor.listen(addr).expect("listens");
    let addr = SocketAddr::new(addr.ip(), listener.port());
    (listener, addr)
}

/// Two ends of one connection.
pub(crate) struct Ends {
    pub(crate) client: Conn,
    pub(crate) server: Conn,
    pub(crate) reactor: Reactor,
}

impl Ends {
    pub(crate) async fn new(peer: &Peer, client: &Setup, server: &Setup) -> Self {
        let reactor = Reactor::spawn(peer).expect("a reactor");
        let (client, server) = connect(&reactor, client, server).await;
        Self {
            client,
            server,
            reactor,
        }
    }
}

/// A connection of the reactor with itself.
pub(crate) async fn connect(reactor: &Reactor, client: &Setup, server: &Setup) -> (Conn, Conn) {
    let (listener, addr) = listen(reactor);
    let server = server.clone();
    let accepting = tokio::spawn(async move {
        let incoming = listener.accept().await.expect("a request");
        assert_eq!(&incoming.private_data()[..2], b"to");
        incoming.accept(&server, b"fro").await.expect("established")
    });
    let client = reactor
        .connect(addr, client, b"to")
        .await
        .expect("established");
    (client, accepting.await.expect("no panic"))
}

/// Memory that the peer may use, and the other side's blocks.
pub(crate) struct Memories {
    pub(crate) target: Mr<Memory>,
    pub(crate) remote: MrRemote,
    pub(crate) pool: Pool,
}

impl Memories {
    pub(crate) fn new(peer: &Peer) -> Self {
        let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
        let target = common::region(peer, 4096, usage);
        Self {
            remote: common::remote(&target),
            target,
            pool: Pool::new(peer, 100, 4).expect("a pool"),
        }
    }

    /// A block with these bytes.
    pub(crate) fn block(&self, bytes: &[u8]) -> rpma_async::Lease {
        let mut lease = self.pool.try_lease().expect("a block is free");
        lease[..bytes.len()].copy_from_slice(bytes);
        lease.truncate(bytes.len());
        lease
    }
}

/// A limit for a `close`.
pub(crate) const CLOSE: Duration = Duration::from_secs(30);
