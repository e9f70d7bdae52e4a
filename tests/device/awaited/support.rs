//! Two ends of one connection on one thread of tokio, their memory, and futures that are dropped.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use rpma::commit::Ticket;
use rpma_async::{Conn, Failed, Frozen, Inbox, Lease, Listener, Op, Pool, Reactor, Refused, Setup};
use tokio::task::{JoinHandle, yield_now};

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
    run(async { test(&Reactor::spawn(&peer)?).await })
}

/// As that, with two ends of one connection: so many receives of the client, and of the server. And
/// memory with so many blocks, which are all free in the end.
pub(crate) fn with_ends(
    blocks: usize,
    [client, server]: [u32; 2],
    test: impl AsyncFnOnce(&Memories, (Conn, Conn)) -> Result,
) -> Result {
    with_setups(blocks, &receives(client), &receives(server), test)
}

/// As that, with these settings of the client and of the server.
pub(crate) fn with_setups(
    blocks: usize,
    client: &Setup,
    server: &Setup,
    test: impl AsyncFnOnce(&Memories, (Conn, Conn)) -> Result,
) -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::with_blocks(&peer, blocks);
    run(async {
        let ends = connect(&Reactor::spawn(&peer)?, client, server).await;
        test(&memories, ends).await
    })?;
    assert_eq!(memories.pool.available(), blocks);
    Ok(())
}

/// Settings with so many receives for short messages, or without receives.
pub(crate) fn receives(count: u32) -> Setup {
    match count {
        0 => Setup::default(),
        count => Setup::default().with_receives(count, 64),
    }
}

/// Awaits a future that must not take longer than the limit of tests.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

/// The result of a task that ends in time.
pub(crate) async fn joined<T>(task: JoinHandle<T>) -> T {
    in_time(task).await.expect("no panic")
}

/// Starts a task with a handle of its own: of a writer, a set, a reactor.
pub(crate) fn spawn_with<H: Clone, F>(
    handle: &H,
    task: impl FnOnce(H) -> F,
) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(task(handle.clone()))
}

/// Lets all other tasks of the thread run, so many times.
pub(crate) async fn turns(count: u32) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// All blocks of a pool, once they are free.
pub(crate) async fn all_blocks(pool: &Pool) -> Vec<Lease> {
    let mut all = Vec::new();
    while all.len() < pool.blocks() {
        all.push(pool.lease().await);
    }
    all
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
    let ip: IpAddr = addr().parse()?;
    let listener = reactor.listen((ip, 0).into())?;
    let addr = (ip, listener.port()).into();
    Ok((listener, addr))
}

/// A connection of the reactor with itself.
pub(crate) async fn connect(reactor: &Reactor, client: &Setup, server: &Setup) -> (Conn, Conn) {
    let ip = addr().parse().expect("an address");
    let connected = connect_to(reactor, (reactor, ip), client, server).await;
    connected.expect("established")
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
    let accepting = async {
        let incoming = listener.accept().await.expect("a request");
        assert_eq!(&incoming.private_data()[..2], b"to");
        incoming.accept(server, b"fro").await.expect("established")
    };
    let (client, server) = both(from.connect(at, client, b"to"), accepting).await;
    Ok((client?, server))
}

/// Awaits two futures. The first one is polled first.
pub(crate) async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    tokio::join!(biased; a, b)
}

/// The next client, accepted with this private data.
pub(crate) async fn accept_next(
    listener: &Listener,
    setup: &Setup,
    data: &[u8],
) -> rpma::Result<Conn> {
    let incoming = listener.accept().await.expect("a request");
    incoming.accept(setup, data).await
}

/// Takes the messages of a connection until its end: their receives are posted again.
pub(crate) async fn take_messages(conn: &Conn) {
    let mut inbox = conn.inbox().expect("it has receives");
    while let Ok(Some(_)) = inbox.next().await {}
}

/// Takes so many messages, which are words.
pub(crate) async fn take(inbox: &mut Inbox, count: u32) -> Result {
    for _ in 0..count {
        let message = inbox.next().await?.ok_or("a message")?;
        assert_eq!(&*message, b"a word.");
    }
    Ok(())
}

/// Takes the messages of a connection, which are words, until its end, and counts them.
pub(crate) async fn count_words(conn: &Conn) -> Result<u32> {
    let mut inbox = conn.inbox()?;
    let mut count = 0;
    while let Some(message) = inbox.next().await? {
        assert_eq!(&*message, b"a word.");
        count += 1;
    }
    Ok(count)
}

/// A block with these bytes alone.
pub(crate) fn with_bytes(mut lease: Lease, bytes: &[u8]) -> Lease {
    lease[..bytes.len()].copy_from_slice(bytes);
    lease.truncate(bytes.len());
    lease
}

/// Memory that the peer may use, and the other side's blocks.
pub(crate) struct Memories {
    /// That of the blocks.
    pub(crate) peer: Peer,
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
            peer: peer.clone(),
            remote: remote(&target),
            target,
            pool: Pool::new(peer, 100, blocks).expect("a pool"),
        }
    }

    /// A block with these bytes.
    pub(crate) fn block(&self, bytes: &[u8]) -> Lease {
        with_bytes(self.pool.try_lease().expect("a block is free"), bytes)
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

/// An operation that the peer's device answers, on each transport.
pub(crate) fn ask(conn: &Conn, memories: &Memories) -> Result<Op<Lease>, Refused<Lease>> {
    conn.read(memories.block(&[0; 7]), memories.to())
}

/// An operation that [`unanswered`] has posted.
pub(crate) enum Pending {
    Sent(Op<Frozen>),
    Read(Op<Lease>),
}

/// How such an operation failed.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) error: Error,
    /// Whether its memory came back.
    pub(crate) has_memory: bool,
}

impl<B> From<Failed<B>> for Unanswered {
    fn from(failed: Failed<B>) -> Self {
        Self {
            has_memory: failed.memory.is_some(),
            error: failed.error,
        }
    }
}

impl Future for Pending {
    type Output = Result<(), Unanswered>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Sent(op) => Pin::new(op).poll(cx).map_ok(drop).map_err(Unanswered::from),
            Self::Read(op) => Pin::new(op).poll(cx).map_ok(drop).map_err(Unanswered::from),
        }
    }
}

/// Posts operations that are in flight until the end: messages as [`fill`]. On iWARP, where no
/// message waits, these are reads, which the caller holds back.
pub(crate) fn unanswered(conn: &Conn, memories: &Memories, count: u32) -> Result<Vec<Pending>> {
    if is_iwarp() {
        let reads = (0..count).map(|_| ask(conn, memories).map(Pending::Read));
        Ok(reads.collect::<Result<_, _>>()?)
    } else {
        let sent = fill(conn, memories, count)?;
        Ok(sent.into_iter().map(Pending::Sent).collect())
    }
}

/// The error is about an argument, and its text has all of `parts`.
#[track_caller]
pub(crate) fn says<T, E: Into<Error>>(result: Result<T, E>, parts: &[&str]) {
    let text = invalid(result.map_err(Into::into));
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

/// As that, and the memory of the operation comes back: nothing was posted.
#[track_caller]
pub(crate) fn gives_back<T, B>(posted: Result<T, Refused<B>>, parts: &[&str]) -> B {
    let refused = posted.err().expect("refused");
    says(Err::<T, _>(refused.error), parts);
    refused.memory.expect("nothing was posted")
}

/// A commit that was refused because its connection is over.
#[track_caller]
pub(crate) fn is_over(posted: rpma::Result<Ticket>) {
    assert!(matches!(posted, Err(Error::NotConnected(_))), "{posted:?}");
}

/// Each slot of the send queue is free, and so many operations can be posted.
pub(crate) async fn all_slots_are_free(conn: &Conn, memories: &Memories) -> Result {
    let most = ConnCfg::new().get_sq_size();
    conn.ready(most).await?;
    let flush = |_| conn.flush(memories.to(), FlushType::Visibility);
    let flushes: Vec<_> = (0..most).map(flush).collect();
    for flush in flushes {
        flush?.await?;
    }
    Ok(())
}

/// A limit for a `close`.
pub(crate) const CLOSE: Duration = Duration::from_secs(30);
