//! Two ends of one connection on one thread of tokio, their memory, and futures that are dropped.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;

use rpma_async::{Conn, Frozen, Lease, Listener, Op, Pool, Reactor, Setup};

use crate::common::prelude::*;

/// Runs a future on one thread, for at most the limit of tests.
pub(crate) fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async { in_time(future).await })
}

/// A test on one thread of tokio, with a reactor of the test device. In the end no object is left.
pub(crate) fn with_reactor(test: impl AsyncFnOnce(&Reactor) -> Result) -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        test(&reactor).await?;
        Ok(())
    })
}

/// Awaits a future that must not take longer than the limit of tests.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

/// Polls a future until it has been pending `n` times, and drops it then. With `spurious` it is
/// polled without having been woken. Its result, if it was complete before.
pub(crate) async fn dropped_after<F: Future>(
    n: usize,
    spurious: bool,
    future: F,
) -> Option<F::Output> {
    let mut future = Some(Box::pin(future));
    let mut left = n;
    poll_fn(move |cx| {
        loop {
            if left == 0 {
                future = None;
                return Poll::Ready(None);
            }
            let polled = future.as_mut().expect("it is there").as_mut().poll(cx);
            if let Poll::Ready(result) = polled {
                return Poll::Ready(Some(result));
            }
            left -= 1;
            if left > 0 && !spurious {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Polls a future once, in the middle of a task, which it wakes later.
pub(crate) async fn begun<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| match Pin::new(&mut *future).poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A future that something waits for.
pub(crate) type Boxed<'f, T = ()> = Pin<Box<dyn Future<Output = T> + 'f>>;

/// A listener on the test device.
pub(crate) fn listen(reactor: &Reactor) -> Result<(Listener, SocketAddr)> {
    let addr = SocketAddr::new(addr().parse()?, 0);
    let listener = reactor.listen(addr)?;
    let addr = SocketAddr::new(addr.ip(), listener.port());
    Ok((listener, addr))
}

/// Two ends of one connection.
pub(crate) struct Ends {
    pub(crate) client: Conn,
    pub(crate) server: Conn,
    pub(crate) reactor: Reactor,
}

impl Ends {
    pub(crate) async fn new(peer: &Peer, client: &Setup, server: &Setup) -> Result<Self> {
        let reactor = Reactor::spawn(peer)?;
        let (client, server) = connect(&reactor, client, server).await;
        Ok(Self {
            client,
            server,
            reactor,
        })
    }
}

/// A connection of the reactor with itself.
pub(crate) async fn connect(reactor: &Reactor, client: &Setup, server: &Setup) -> (Conn, Conn) {
    let ip = addr().parse().expect("an address");
    connect_to(reactor, (reactor, ip), client, server)
        .await
        .expect("established")
}

/// A connection of a reactor with another one, which listens at this address of its host.
pub(crate) async fn connect_to(
    from: &Reactor,
    (to, ip): (&Reactor, IpAddr),
    client: &Setup,
    server: &Setup,
) -> Result<(Conn, Conn)> {
    let listener = to.listen((ip, 0).into())?;
    let at = (ip, listener.port()).into();
    let server = server.clone();
    let accepting = async move {
        let incoming = listener.accept().await.expect("a request");
        assert_eq!(&incoming.private_data()[..2], b"to");
        incoming.accept(&server, b"fro").await.expect("established")
    };
    let (client, server) = both(from.connect(at, client, b"to"), accepting).await;
    Ok((client?, server))
}

/// Awaits two futures.
pub(crate) async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut of_a, mut of_b) = (None, None);
    poll_fn(move |cx| {
        if of_a.is_none() {
            if let Poll::Ready(result) = a.as_mut().poll(cx) {
                of_a = Some(result);
            }
        }
        if of_b.is_none() {
            if let Poll::Ready(result) = b.as_mut().poll(cx) {
                of_b = Some(result);
            }
        }
        match of_a.is_some() && of_b.is_some() {
            true => Poll::Ready((of_a.take().expect("it"), of_b.take().expect("it"))),
            false => Poll::Pending,
        }
    })
    .await
}

/// Takes the messages of a connection until its end: their receives are posted again.
pub(crate) async fn take_messages(conn: &Conn) {
    let mut inbox = conn.inbox().expect("it has receives");
    while let Ok(Some(_)) = inbox.next().await {}
}

/// Memory that the peer may use, and the other side's blocks.
pub(crate) struct Memories {
    pub(crate) target: Mr<Memory>,
    pub(crate) remote: MrRemote,
    pub(crate) pool: Pool,
}

impl Memories {
    pub(crate) fn new(peer: &Peer) -> Self {
        Self::with_blocks(peer, 4)
    }

    pub(crate) fn with_blocks(peer: &Peer, blocks: usize) -> Self {
        Self::between(peer, peer, blocks)
    }

    /// Blocks of one peer, and memory of another one.
    pub(crate) fn between(peer: &Peer, other: &Peer, blocks: usize) -> Self {
        let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
        let target = region(other, 4096, usage).expect("registers");
        Self {
            remote: remote(&target),
            target,
            pool: Pool::new(peer, 100, blocks).expect("a pool"),
        }
    }

    /// A block with these bytes.
    pub(crate) fn block(&self, bytes: &[u8]) -> Lease {
        let mut lease = self.pool.try_lease().expect("a block is free");
        lease[..bytes.len()].copy_from_slice(bytes);
        lease.truncate(bytes.len());
        lease
    }

    /// A block that operations read.
    pub(crate) fn word(&self) -> Frozen {
        self.block(b"a word.").freeze()
    }

    /// The memory of the peer for a word.
    pub(crate) fn to(&self) -> RemoteSlice {
        self.remote.slice(8..15).expect("inside")
    }
}

/// Fills the send queue with messages for which the peer has no receive: they are in flight until
/// it has one, or until the end. On a device this is the one operation that waits.
pub(crate) fn fill(conn: &Conn, memories: &Memories, count: u32) -> Result<Vec<Op<Frozen>>> {
    let word = memories.word();
    let ops = (0..count).map(|_| conn.send(word.clone()));
    Ok(ops.collect::<Result<_, _>>()?)
}

/// Each slot of the connection is free: so many operations are complete and kept, and one more is
/// too many.
pub(crate) async fn all_slots_are_free(conn: &Conn, memories: &Memories) -> Result {
    let depth = ConnCfg::new().get_sq_size();
    let mut kept = Vec::new();
    for number in 0..2 * depth {
        let flush = conn.flush(memories.to(), FlushType::Visibility);
        kept.push(flush.unwrap_or_else(|error| panic!("{number} of {}: {error}", 2 * depth)));
        conn.idle().await?;
    }
    let refused = conn.flush(memories.to(), FlushType::Visibility);
    let text = refused.expect_err("no slot is free").error.to_string();
    assert!(text.contains("Ops are kept"), "{text}");
    for op in kept {
        op.await?;
    }
    Ok(())
}

/// A limit for a `close`.
pub(crate) const CLOSE: Duration = Duration::from_secs(30);
