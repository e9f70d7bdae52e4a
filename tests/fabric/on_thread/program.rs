//! A program of two hosts. Each has a reactor on a thread of its own, and threads that await.

use std::net::SocketAddr;

use rpma::sim::now;
use rpma::{AlignedBuf, Result, thread};
use rpma_async::{Conn, Listener, Pool, Reactor, Setup, block_on};

use crate::common::prelude::*;

/// No wait of the program is longer, in virtual time.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// A peer that is silent for so long is gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(20);
/// The bytes of each client, and of a message.
const PART: usize = 64;
const WORD: &[u8] = b"a word.";

/// Awaits a future on this thread, for at most the limit.
pub(crate) fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    block_on(future, LIMIT).unwrap_or(Err(Error::TimedOut("the program's own limit")))
}

/// The settings of both sides.
pub(crate) fn setup() -> Setup {
    let mut cfg = ConnCfg::new();
    cfg.set_keep_alive(Some(SILENCE)).expect("possible");
    let setup = Setup::new(&cfg).with_receives(4, PART);
    setup.with_connect_limit(LIMIT / 2)
}

/// A reactor of a host, on a thread of its own.
pub(crate) fn reactor_on(host: &Host) -> Result<Reactor> {
    let _entered = host.enter();
    Reactor::on_thread(&Peer::at(&addr())?)
}

/// A server, which does not serve yet.
pub(crate) struct Server {
    reactor: Reactor,
    listener: Listener,
    memory: Mr<AlignedBuf>,
    pub(crate) addr: SocketAddr,
}

impl Server {
    pub(crate) fn new(host: &Host) -> Result<Self> {
        let reactor = reactor_on(host)?;
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        let memory = Mr::reg(reactor.peer(), AlignedBuf::zeroed(PART)?, usage)?;
        let listener = reactor.listen((host.addr(), 0).into())?;
        let addr = (host.addr(), listener.port()).into();
        Ok(Self {
            reactor,
            listener,
            memory,
            addr,
        })
    }

    /// Accepts the next client.
    pub(crate) fn accept(&self) -> Result<Conn> {
        let mut offer = Offer::default();
        let offer = offer.add_region(&self.memory).encode(Offer::ACCEPT)?;
        wait(async {
            let incoming = self.listener.accept().await?;
            incoming.accept(&setup(), &offer).await
        })
    }

    /// Serves so many clients, each in a thread of its own.
    pub(crate) fn serve(self, clients: usize) -> Result<()> {
        let mut serving = Vec::new();
        for _ in 0..clients {
            let Ok(conn) = self.accept() else { break };
            let peer = self.reactor.peer().clone();
            serving.push(thread::spawn(move || echo(&peer, &conn)));
        }
        // An error of one client is not the server's.
        for thread in serving {
            let _ = thread.join().expect("no panic");
        }
        Ok(())
    }
}

/// Sends the messages of a client back, until its end.
fn echo(peer: &Peer, conn: &Conn) -> Result<()> {
    let pool = Pool::new(peer, PART, 1)?;
    let mut inbox = conn.inbox()?;
    wait(async {
        while let Some(message) = inbox.next().await? {
            let mut answer = pool.lease().await;
            answer[..message.len()].copy_from_slice(&message);
            answer.truncate(message.len());
            drop(message);
            conn.send(answer.freeze())?.await?;
        }
        Ok(())
    })
}

/// A client: writes, flushes, and talks to the server, and notes the times.
pub(crate) fn talk(reactor: &Reactor, addr: SocketAddr, rounds: usize) -> Result<Vec<Duration>> {
    let began = now();
    let mut times = Vec::new();
    let conn = wait(reactor.connect(addr, &setup(), &[]))?;
    times.push(now() - began);
    let offer = conn.offer()?;
    let pool = Pool::new(reactor.peer(), PART, 2)?;
    let to = offer.regions()[0].slice(..WORD.len() as u64)?;
    let mut inbox = conn.inbox()?;
    for _ in 0..rounds {
        let block = || {
            let mut block = pool.try_lease().expect("a block is free");
            block[..WORD.len()].copy_from_slice(WORD);
            block.truncate(WORD.len());
            block.freeze()
        };
        conn.write(to, block())?.detach();
        conn.flush(to, FlushType::Visibility)?.wait(LIMIT)?;
        times.push(now() - began);
        let sent = conn.send(block())?;
        let answer = wait(inbox.next())?;
        assert!(answer.is_none_or(|answer| *answer == *WORD));
        sent.wait(LIMIT)?;
        times.push(now() - began);
    }
    drop(inbox);
    wait(conn.close(LIMIT))?;
    times.push(now() - began);
    Ok(times)
}

/// Runs it: so many clients on one reactor, each in a thread. Returns their times.
pub(crate) fn run(fabric: &Fabric, clients: usize, rounds: usize) -> Result<Vec<Vec<Duration>>> {
    let [here, there] = ["client", "server"].map(|name| fabric.host(name));
    let server = Server::new(&there)?;
    let addr = server.addr;
    let serving = there.spawn(move || server.serve(clients));
    let talking = here.clone().spawn(move || {
        let reactor = reactor_on(&here)?;
        let threads = (0..clients).map(|_| {
            let reactor = reactor.clone();
            thread::spawn(move || talk(&reactor, addr, rounds))
        });
        let threads = Vec::from_iter(threads).into_iter();
        let times = threads.map(|thread| thread.join().expect("no panic"));
        times.collect::<Result<Vec<_>>>()
    });
    let times = talking.join().expect("no panic");
    serving.join().expect("no panic")?;
    times
}

/// Waits until no object is left on the fabric: the thread of a reactor may drop the last of them,
/// a moment later.
pub(crate) fn nothing_is_left(fabric: &Fabric) {
    let until = fabric.now() + LIMIT;
    while !fabric.objects().is_empty() {
        assert!(fabric.now() < until, "left: {:?}", fabric.objects());
        thread::sleep(Duration::from_millis(1));
    }
}
