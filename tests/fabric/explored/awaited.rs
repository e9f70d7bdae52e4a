//! Awaited programs: wrong ones and the right ones beside them, as tasks of one thread.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use rpma::sim::Image;
use rpma_async::{Conn, Pool, Reactor, Setup};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::common::prelude::*;
use crate::explored::cases::Case;
use crate::explored::replicas::{Tail, on_all, place, record};

const RECORDS: u64 = 2;
const SIZE: usize = 4096;
const LOST: &str = "a promised record is lost";

/// The fault of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The tail is a plain write right after a flush that is not awaited.
    PlainTail,
    /// A time-out is taken for success.
    Elapsed,
    /// The commit to the second replica is left to a task that is not awaited.
    Detached,
}

struct Replica {
    conn: Conn,
    memory: MrRemote,
}

impl Replica {
    async fn connect(reactor: &Reactor, addr: SocketAddr) -> Result<Self> {
        let conn = reactor.connect(addr, &Setup::default(), &[]).await?;
        let memory = conn.offer()?.regions()[0];
        Ok(Self { conn, memory })
    }

    async fn append(&self, pool: &Pool, number: u64, tail: Tail) -> Result<()> {
        let (at, count) = (place(number) as u64, (number + 1).to_le_bytes());
        let to = self.memory.slice(at..at + 64)?;
        let shown = self.memory.slice(..8)?;
        let mut source = pool.lease().await;
        source.fill(record(number)[0]);
        match tail {
            Tail::Atomic => {
                let parts = [(to, source.freeze())];
                let committed =
                    self.conn
                        .commit(parts, Some((shown, count)), FlushType::Persistent)?;
                committed.await?;
            }
            Tail::Plain => {
                let mut bytes = pool.lease().await;
                bytes.copy_from_slice(&record(0).map(|_| 0));
                bytes[..8].copy_from_slice(&count);
                let written = self.conn.write(to, source.freeze())?;
                let flushed = self.conn.flush(to, FlushType::Persistent)?;
                let shows = self.conn.write(self.memory.slice(..64)?, bytes.freeze())?;
                let ended = self.conn.flush(shown, FlushType::Persistent)?;
                written.await?;
                flushed.await?;
                shows.await?;
                ended.await?;
            }
        }
        Ok(())
    }
}

/// The writer: two replicas, each with its own task for each record.
async fn writer(
    peer: &Peer,
    addrs: &[SocketAddr],
    promised: &AtomicU64,
    fault: Fault,
) -> Result<()> {
    let reactor = Reactor::spawn(peer)?;
    let pool = Pool::new(peer, 64, 8)?;
    let mut replicas = Vec::new();
    for addr in addrs {
        replicas.push(Rc::new(Replica::connect(&reactor, *addr).await?));
    }
    let tail = match fault {
        Fault::PlainTail => Tail::Plain,
        _ => Tail::Atomic,
    };
    for number in 0..RECORDS {
        let appends: Vec<_> = replicas
            .iter()
            .map(|replica| {
                let (replica, pool) = (Rc::clone(replica), pool.clone());
                spawn_local(async move { replica.append(&pool, number, tail).await })
            })
            .collect();
        let awaited = if fault == Fault::Detached {
            1
        } else {
            appends.len()
        };
        for append in appends.into_iter().take(awaited) {
            match timeout(LIMIT, append).await {
                Ok(appended) => appended??,
                Err(_elapsed) if fault == Fault::Elapsed => {}
                Err(elapsed) => return Err(elapsed.into()),
            }
        }
        promised.store(number + 1, Ordering::Relaxed);
    }
    Ok(())
}

fn peer_of(host: &Host) -> Peer {
    let _entered = host.enter();
    Peer::at(&host.addr().to_string()).expect("a peer")
}

/// A server that offers its memory to one client.
fn serve(host: &Host, pmem: &Pmem) -> Result<SocketAddr> {
    let peer = peer_of(host);
    let map = {
        let _entered = host.enter();
        PmemMap::open(pmem.path(), SIZE)?
    };
    let memory = Mr::reg(
        &peer,
        map,
        MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT,
    )?;
    let reactor = Reactor::spawn(&peer)?;
    let listener = reactor.listen((host.addr(), 0).into())?;
    let addr = (host.addr(), listener.port()).into();
    let mut platform = PeerCfg::new();
    platform.set_direct_write_to_pmem(host.may_promise_direct_write(true));
    tokio::spawn(async move {
        let offer = Offer::new(&platform)
            .add_region(&memory)
            .encode(Offer::ACCEPT)?;
        let conn = listener
            .accept()
            .await?
            .accept(&Setup::default(), &offer)
            .await?;
        conn.closed().await.map(drop)
    });
    Ok(addr)
}

fn run(fabric: &Fabric, count: usize, fault: Fault) {
    let runtime = paused::runtime();
    runtime.block_on(async { paused::follow(fabric) });
    let client = fabric.host("client");
    let hosts: Vec<Host> = ["one", "two"][..count]
        .iter()
        .map(|name| fabric.host(name))
        .collect();
    hosts
        .iter()
        .for_each(|host| host.set_platform(Platform::Eadr));
    let pmems: Vec<Pmem> = hosts.iter().map(|host| host.pmem("log", SIZE)).collect();
    let promised = AtomicU64::new(0);
    let look = |cut: &Cut<'_>| {
        let promised = promised.load(Ordering::Relaxed);
        for images in cut.joint_images(&pmems.iter().collect::<Vec<_>>()) {
            let bytes: Vec<&[u8]> = images.iter().map(Image::bytes).collect();
            on_all(&bytes, promised);
        }
    };
    let tasks = LocalSet::new();
    let program = tasks.run_until(async {
        let ticking = paused::tick(fabric);
        let servers = hosts
            .iter()
            .zip(&pmems)
            .map(|(host, pmem)| serve(host, pmem));
        let addrs = servers.collect::<Result<Vec<_>>>()?;
        // It may fail, where an operation takes too long.
        let written = writer(&peer_of(&client), &addrs, &promised, fault).await;
        ticking.abort();
        written
    });
    let _result = fabric.on_every_event(look, || runtime.block_on(program));
}

const BOTH: [Profile; 2] = [Profile::RXE_6_12, Profile::STRICT];

fn right(count: usize) -> Case {
    Case::new(&BOTH, move |fabric| run(fabric, count, Fault::None))
}

pub(crate) fn tail() -> Case {
    let fault = "awaited: a plain tail right after a flush that is not awaited";
    // soft-RoCE executes in order.
    right(1).wrong_on(&[Profile::STRICT], fault, "is torn", |fabric| {
        run(fabric, 1, Fault::PlainTail)
    })
}

pub(crate) fn elapsed() -> Case {
    let fault = "awaited: an elapsed time-out that is taken for success";
    right(1).wrong(fault, LOST, |fabric| run(fabric, 1, Fault::Elapsed))
}

pub(crate) fn detached() -> Case {
    let fault = "awaited: a task that is not awaited";
    right(2).wrong(fault, LOST, |fabric| run(fabric, 2, Fault::Detached))
}

#[test]
fn an_awaited_tail_behind_a_flush_that_is_not_awaited() {
    tail().check_everywhere();
}

#[test]
fn a_time_out_of_the_runtime_that_is_taken_for_success() {
    elapsed().check_everywhere();
}

#[test]
fn a_task_that_is_not_awaited() {
    detached().check_everywhere();
}
