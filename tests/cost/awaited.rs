//! Operations of rpma-async, each beside the same calls of rpma, posted and polled by hand.
//!
//! On the simulated fabric alone, where an operation is complete when its post returns. So an
//! awaited one does not sleep, unless the network holds its request back.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use rpma::Result;
use rpma_async::{Driver, Frozen, Pool, Reactor, Setup};

use crate::common::place::with_fabric;
use crate::common::prelude::*;
use crate::common::remote as remote_of;
use crate::rpma::{ALWAYS, Parts, cfg, pair, parts};
use crate::{LEN, Outcome, ROUNDS, commits, counted};

/// Its bytes are made visible.
const VISIBLE: FlushType = FlushType::Visibility;

/// The limits of the cost of awaiting: a row, the row that it is compared with, and the
/// instructions more.
pub(crate) const LIMITS: [(&str, &str, u64); 7] = [
    ("awaited_flush", "by_hand_flush", 220),
    ("awaited_write_flush", "by_hand_write_flush", 820),
    ("awaited_flush_slept", "awaited_flush", 920),
    ("awaited_writer_commit", "by_hand_writer_commit", 650),
    ("awaited_set_commit", "by_hand_set_commit", 600),
    // The checksum is 158 of them, and of the next ones.
    ("log_append", "log_append_set", 1400),
    ("log_append_blocking", "log_append_blocking_set", 2120),
];

pub(crate) fn run(addr: &str) -> Outcome {
    let link = &with_fabric(|fabric, host| {
        // The paused clock of the runtime: the driver has no work by the time.
        paused::follow(fabric);
        fabric.between(host, host)
    });
    let runtime = paused::runtime();
    let _entered = runtime.enter();
    let peer = Peer::at(addr)?;
    let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
    let local = Mr::reg(&peer, vec![1; ROUNDS * LEN], usage)?;
    let remote = Mr::reg(&peer, vec![0; ROUNDS * LEN + 8], usage)?;
    let remote = remote_of(&remote);
    let parts = parts(&remote, &local)?;
    let (conn, _server) = pair(&peer, addr, &cfg(false))?;
    let pointer = remote.slice((ROUNDS * LEN) as u64..)?;
    // The first round is not counted: each connection looks once how much room it has.
    for warm in [true, false] {
        by_hand(&conn, &parts, pointer, warm)?;
    }
    commits::by_hand(&peer, addr)?;
    commits::slept()?;
    let to: Vec<_> = parts.iter().map(|(to, _)| *to).collect();
    runtime.block_on(awaited(&peer, addr, &to, pointer, link))
}

fn by_hand(conn: &Conn, parts: &Parts<'_>, pointer: RemoteSlice, warm: bool) -> Result<()> {
    let counted = |name| row(name, warm);
    measured_flush_by_hand(conn, parts)?;
    counted("by_hand_flush");
    measured_write_flush_by_hand(conn, parts)?;
    counted("by_hand_write_flush");
    measured_batch_by_hand(conn, parts)?;
    counted("by_hand_batch");
    measured_commit_by_hand(conn, parts, pointer)?;
    counted("by_hand_commit");
    Ok(())
}

#[inline(never)]
fn measured_flush_by_hand(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    let mut wcs = [Wc::default()];
    for (n, &(to, _)) in parts.iter().enumerate() {
        conn.flush(to, VISIBLE, ALWAYS, n as u64)?;
        came(conn.get_cq(), &mut wcs)?;
    }
    Ok(())
}

/// One of the two has a completion.
#[inline(never)]
fn measured_write_flush_by_hand(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    let mut wcs = [Wc::default()];
    for (n, &(to, from)) in parts.iter().enumerate() {
        conn.write(to, from, Flags::COMPLETION_ON_ERROR, n as u64)?;
        conn.flush(to, VISIBLE, ALWAYS, n as u64)?;
        came(conn.get_cq(), &mut wcs)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_batch_by_hand(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    let mut wcs = [Wc::default()];
    for (n, &(to, from)) in parts.iter().enumerate() {
        let mut batch = conn.batch::<2>();
        batch.write(to, from, Flags::COMPLETION_ON_ERROR, n as u64)?;
        batch.flush(to, VISIBLE, ALWAYS, n as u64)?;
        batch.post()?;
        came(conn.get_cq(), &mut wcs)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_commit_by_hand(conn: &Conn, parts: &Parts<'_>, pointer: RemoteSlice) -> Result<()> {
    let mut wcs = [Wc::default()];
    for (n, &part) in parts.iter().enumerate() {
        let pointer = Some((pointer, n.to_ne_bytes()));
        conn.commit(&[part], pointer, VISIBLE, n as u64)?;
        came(conn.get_cq(), &mut wcs)?;
    }
    Ok(())
}

/// Takes the completion of an operation that has succeeded.
#[inline(always)]
fn came(cq: &Cq, wcs: &mut [Wc; 1]) -> Result<()> {
    assert_eq!(cq.get_wc(wcs)?, 1, "it is there");
    wcs[0].result()?;
    Ok(())
}

async fn awaited(
    peer: &Peer,
    addr: &str,
    to: &[RemoteSlice],
    pointer: RemoteSlice,
    link: &Link,
) -> Outcome {
    let (reactor, mut driver) = Reactor::new(peer)?;
    tokio::spawn(poll_fn(move |cx| measured_drive(&mut driver, cx)));
    let setup = Setup::new(&cfg(false));
    let addr = SocketAddr::new(addr.parse()?, 0);
    let listener = reactor.listen(addr)?;
    let addr = SocketAddr::new(addr.ip(), listener.port());
    let accepting = tokio::spawn({
        let setup = setup.clone();
        async move { listener.accept().await?.accept(&setup, &[]).await }
    });
    let conn = reactor.connect(addr, &setup, &[]).await?;
    let _server = accepting.await??;
    let pool = Pool::new(peer, LEN, 4)?;
    for warm in [true, false] {
        let counted = |name| row(name, warm);
        alone(measured_flush(&conn, to)).await?;
        counted("awaited_flush");
        alone(measured_write_flush(&conn, &pool, to)).await?;
        counted("awaited_write_flush");
        alone(measured_batch(&conn, &pool, to)).await?;
        counted("awaited_batch");
        alone(measured_commit(&conn, &pool, to, pointer)).await?;
        counted("awaited_commit");
        sleeps(&conn, to, link).await?;
        counted("awaited_flush_slept");
    }
    commits::awaited(&reactor, &addr.ip().to_string()).await?;
    Ok(())
}

pub(crate) fn row(name: &str, warm: bool) {
    counted(if warm { "ignored" } else { name }, ROUNDS);
}

/// In a function of its own.
pub(crate) fn alone<'a, F: Future<Output = Result<()>> + 'a>(
    future: F,
) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
    Box::pin(future)
}

async fn measured_flush(conn: &rpma_async::Conn, to: &[RemoteSlice]) -> Result<()> {
    for &to in to {
        conn.flush(to, VISIBLE)?.await?;
    }
    Ok(())
}

async fn measured_write_flush(
    conn: &rpma_async::Conn,
    pool: &Pool,
    to: &[RemoteSlice],
) -> Result<()> {
    for &to in to {
        let written = conn.write(to, block(pool))?;
        let flushed = conn.flush(to, VISIBLE)?;
        written.await?;
        flushed.await?;
    }
    Ok(())
}

async fn measured_batch(conn: &rpma_async::Conn, pool: &Pool, to: &[RemoteSlice]) -> Result<()> {
    for &to in to {
        let mut batch = conn.batch::<2>();
        batch.write(to, block(pool))?;
        batch.flush(to, VISIBLE)?;
        batch.commit()?.await?;
    }
    Ok(())
}

async fn measured_commit(
    conn: &rpma_async::Conn,
    pool: &Pool,
    to: &[RemoteSlice],
    pointer: RemoteSlice,
) -> Result<()> {
    for (n, &to) in to.iter().enumerate() {
        let pointer = Some((pointer, n.to_ne_bytes()));
        let commit = conn.commit([(to, block(pool))], pointer, VISIBLE)?;
        commit.await?;
    }
    Ok(())
}

/// A free block with bytes that are not written here.
#[inline(always)]
pub(crate) fn block(pool: &Pool) -> Frozen {
    pool.try_lease().expect("it is free").freeze()
}

/// Flushes that are complete only when their owner sleeps.
async fn sleeps(conn: &rpma_async::Conn, to: &[RemoteSlice], link: &Link) -> Result<()> {
    let mut flushes = alone(measured_flush_slept(conn, to, link));
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        let polled = flushes.as_mut().poll(cx);
        link.release();
        polled
    })
    .await?;
    assert_eq!(polls, to.len() + 1, "each sleeps once");
    Ok(())
}

async fn measured_flush_slept(
    conn: &rpma_async::Conn,
    to: &[RemoteSlice],
    link: &Link,
) -> Result<()> {
    for &to in to {
        // A function with a measured name, inside of a measured one: it is left out.
        not_measured_hold(link);
        conn.flush(to, VISIBLE)?.await?;
    }
    Ok(())
}

#[inline(never)]
fn not_measured_hold(link: &Link) {
    link.hold();
}

#[inline(never)]
fn measured_drive(driver: &mut Driver, cx: &mut Context<'_>) -> Poll<Result<()>> {
    Pin::new(driver).poll(cx)
}
