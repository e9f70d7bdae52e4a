//! Servers with a loop that is a task, and their clients, on one thread.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use rpma::commit::{Limits, Method, Writer, WriterCfg};
use rpma::reconnect::{self, ReconnectCfg, ToWriter};
use rpma::serve::{Part, ServerCfg};
use rpma::wait::Waker;
use rpma_async::{Frozen, Pool, Reactor, Reconnect, Server};
use tokio::task::JoinHandle;

use crate::common::prelude::*;
use crate::serve::support::{KeyPart, LEN, Site, identity, offer};

/// Where the pointers of commits are.
pub(crate) const TAIL: u64 = 1024;

/// A server that admits every client with a key, and answers commits.
pub(crate) struct Serving {
    pub(crate) addr: SocketAddr,
    pub(crate) regions: Vec<Arc<Mr<PmemMap>>>,
    waker: Waker,
    task: JoinHandle<Stopped>,
}

/// A server with a stopped task.
pub(crate) struct Stopped {
    server: Server,
    parts: Vec<KeyPart>,
    pub(crate) arrived: usize,
    pub(crate) gone: usize,
}

pub(crate) fn cfg() -> Result<ServerCfg> {
    let mut cfg = ServerCfg::new();
    cfg.set_commits(Some(Limits::new(4, 4, 4096)?));
    Ok(cfg)
}

/// An address of the test device.
pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::new(addr().parse().expect("an address"), port)
}

impl Serving {
    /// The task of a server with so many keys, from 1 on.
    pub(crate) fn new(reactor: &Reactor, keys: u64) -> Result<Self> {
        Self::of(reactor, Site::with(keys, &cfg()?)?)
    }

    pub(crate) fn of(reactor: &Reactor, site: Site) -> Result<Self> {
        let Site { server, parts, .. } = site;
        Ok(Stopped {
            server: Server::new(reactor, server)?,
            parts: parts.into_values().collect(),
            arrived: 0,
            gone: 0,
        }
        .start())
    }

    /// Stops its task: no commit is answered, and its connections live.
    pub(crate) async fn stop(self) -> Stopped {
        self.waker.wake();
        self.task.await.expect("no panic")
    }

    /// The server's task is gone, with the server.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err());
    }
}

impl Stopped {
    /// Serves on.
    pub(crate) fn start(self) -> Serving {
        let Self { server, parts, .. } = self;
        Serving {
            addr: at(server.get_port()),
            regions: parts.iter().map(|part| Arc::clone(&part.1)).collect(),
            waker: server.waker(),
            task: tokio::spawn(serve(server, parts)),
        }
    }
}

/// Serves until it is woken.
pub(crate) async fn serve(mut server: Server, parts: Vec<KeyPart>) -> Stopped {
    let (mut arrived, mut gone) = (0, 0);
    let mut wcs = [Wc::default(); 4];
    loop {
        match server.next(&mut wcs).await.expect("waits") {
            rpma::serve::Served::Asks(asked) => {
                let (peer, region) = &parts[asked.identity().key as usize - 1];
                let data = b"data";
                let admitted = server.admit(asked, &Part { peer, region, data });
                admitted.expect("admitted");
            }
            rpma::serve::Served::Arrived(_) => arrived += 1,
            rpma::serve::Served::Gone(_) => gone += 1,
            rpma::serve::Served::Woken => break,
            other => panic!("{other:?}"),
        }
    }
    Stopped {
        server,
        parts,
        arrived,
        gone,
    }
}

/// A writer of this key, by the server's method.
pub(crate) async fn writer(reactor: &Reactor, addr: SocketAddr, key: u64) -> Writer {
    let cfg = WriterCfg::new(Method::Server);
    let mut client = client(reactor, addr, key, ToWriter::new(&cfg));
    client.connect(&ConnCfg::new()).await.expect("connected")
}

pub(crate) fn client<C: reconnect::Connects>(
    reactor: &Reactor,
    addr: SocketAddr,
    key: u64,
    connects: C,
) -> Reconnect<C> {
    client_of(reactor, addr, identity(key, 1, key), connects).expect("a client")
}

pub(crate) fn client_of<C: reconnect::Connects>(
    reactor: &Reactor,
    addr: SocketAddr,
    identity: Identity,
    connects: C,
) -> Result<Reconnect<C>> {
    let offer = offer(identity);
    let client = reconnect::Reconnect::to_addrs(reactor.peer(), &[addr], offer, connects);
    let mut cfg = ReconnectCfg::new();
    let ms = Duration::from_millis;
    cfg.set_waits(ms(1), ms(4))?;
    let mut client = Reconnect::new(reactor, client?)?;
    client.set_cfg(&cfg);
    Ok(client)
}

/// A commit of 100 bytes at 64, with a pointer.
pub(crate) fn commit(
    writer: &rpma_async::Writer,
    bytes: Frozen,
    number: u64,
) -> Result<rpma::commit::Ticket, Error> {
    let far = writer.offer().regions()[0];
    let dst = far.slice(64..64 + bytes.len() as u64).expect("inside");
    let tail = far.slice(TAIL..TAIL + 8).expect("inside");
    Ok(writer.commit([(dst, bytes)], Some((tail, number.to_ne_bytes())))?)
}

/// A block with 100 bytes of this number.
pub(crate) async fn block(pool: &Pool, number: u64) -> Frozen {
    let mut block = pool.lease().await;
    block.fill(number as u8);
    block.truncate(100);
    block.freeze()
}

/// The contents of a key's region: the byte of its record, if all are the same, and its pointer.
pub(crate) fn record(region: &Mr<PmemMap>) -> Result<(u8, u64)> {
    let mut bytes = [0; 100];
    region.read_at(64, &mut bytes)?;
    assert_eq!(bytes, [bytes[0]; 100], "one record");
    assert!(region.get_size() == LEN);
    Ok((bytes[0], region.load_u64(TAIL as usize)?))
}

/// Polls a future `n` times, with turns of all other tasks between, and returns its output if it is
/// there.
pub(crate) async fn polls<F: Future>(future: F, n: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..n {
        if let Some(output) = poll_once(future.as_mut()).await {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
