//! Servers with a loop that is a task, and their clients, on one thread.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use rpma::commit::{self, Limits, Method, Ticket, WriterCfg};
use rpma::reconnect::{self, ReconnectCfg, ToWriter};
use rpma::serve::{Served, ServerCfg};
use rpma::wait::Waker;
use rpma_async::{Frozen, Pool, Reactor, Reconnect, Server, Writer};
use tokio::task::{JoinHandle, yield_now};

use crate::awaited::support::{begun, joined};
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
        joined(self.task).await
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
            Served::Asks(asked) => {
                let (peer, region) = &parts[asked.identity().key as usize - 1];
                let admitted = server.admit(asked, peer, region, b"data");
                admitted.expect("admitted");
            }
            Served::Arrived(_) => arrived += 1,
            Served::Gone(_) => gone += 1,
            Served::Woken => break,
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
pub(crate) async fn writer(reactor: &Reactor, addr: SocketAddr, key: u64) -> commit::Writer {
    let cfg = WriterCfg::new(Method::Server);
    let mut client = client(reactor, addr, key, ToWriter::new(&cfg));
    client.connect(&ConnCfg::new()).await.expect("connected")
}

/// As that, awaited.
pub(crate) async fn awaited(reactor: &Reactor, addr: SocketAddr, key: u64) -> Writer {
    let writer = writer(reactor, addr, key).await;
    Writer::new(reactor, writer).expect("watched")
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
    let client = reconnect::Reconnect::to_addrs(reactor.peer(), &[addr], offer, connects)?;
    let mut cfg = ReconnectCfg::new();
    cfg.set_waits(Duration::from_millis(1), Duration::from_millis(4))?;
    let mut client = Reconnect::new(reactor, client)?;
    client.set_cfg(&cfg);
    Ok(client)
}

/// A commit of 100 bytes at 64, with a pointer.
pub(crate) fn commit(writer: &Writer, bytes: Frozen, number: u64) -> rpma::Result<Ticket> {
    let far = writer.offer().regions()[0];
    let dst = far.slice(64..64 + bytes.len() as u64).expect("inside");
    let tail = far.slice(TAIL..TAIL + 8).expect("inside");
    Ok(writer.commit([(dst, bytes)], Some((tail, number.to_ne_bytes())))?)
}

/// A commit of 100 bytes of this number, once a block is free.
pub(crate) async fn post(writer: &Writer, pool: &Pool, number: u64) -> rpma::Result<Ticket> {
    commit(writer, block(pool, number).await, number)
}

/// As that, and waits until it is durable.
pub(crate) async fn append(writer: &Writer, pool: &Pool, number: u64) -> rpma::Result<Ticket> {
    let ticket = post(writer, pool, number).await?;
    writer.durable(ticket).await?;
    Ok(ticket)
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
        if let Some(output) = begun(&mut future).await {
            return Some(output);
        }
        yield_now().await;
    }
    None
}
