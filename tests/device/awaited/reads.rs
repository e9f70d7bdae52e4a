//! Reads on the connection of a writer, and the writer of rpma back from its handle.

use std::pin::pin;

use rpma::commit::{Method, WriterCfg};
use rpma::reconnect::ToWriter;
use rpma_async::{Conn, Frozen, Lease, Pool, Reactor, Reading, Setup, Writer, block_on};

use crate::awaited::held::{hold, leaving_nothing, release};
use crate::awaited::served::{self, Serving, block, commit, poll_once, polls};
use crate::awaited::support::{CLOSE, in_time, listen, run};
use crate::common::failed::Failed;
use crate::common::prelude::*;
use crate::serve::support::SHORT;

const SIZE: usize = 2048;
const BLOCKS: usize = 16;
/// The slots that the settings of the tests ask for beside those of commits.
const READS: u32 = 4;

/// A writer that reads, and the server's end of its connection.
struct Made {
    writer: Writer,
    server: Conn,
    target: Mr<Memory>,
    pool: Pool,
}

impl Made {
    /// Commits that are visible, so many in flight.
    async fn new(reactor: &Reactor, in_flight: u16) -> Result<Self> {
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(reactor.peer(), SIZE, usage)?;
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(&target);
        let offer = offer.encode(Offer::ACCEPT)?;
        let (listener, addr) = listen(reactor)?;
        let accepting = tokio::spawn(async move {
            let incoming = listener.accept().await?;
            let accepted = incoming.accept(&Setup::default(), &offer).await;
            Ok::<_, Failed>(accepted?)
        });
        let mut cfg = WriterCfg::new(Method::Reading);
        cfg.set_flush_type(FlushType::Visibility)?;
        cfg.set_in_flight(in_flight)?;
        let mut client = served::client(reactor, addr, 1, ToWriter::new(&cfg));
        let mut cfg = ConnCfg::new();
        cfg.set_sq_size(READS);
        let writer = client.connect(&cfg).await?;
        assert_eq!(writer.slots_beside(), READS);
        Ok(Self {
            writer: Writer::new(reactor, writer)?,
            server: accepting.await.expect("no panic")?,
            target,
            pool: pool(reactor.peer())?,
        })
    }

    /// A read of the record of the tests.
    fn read(&self) -> Result<Reading> {
        Ok(read(&self.writer, self.lease()?)?)
    }

    fn lease(&self) -> Result<Lease> {
        let mut lease = self.pool.try_lease().ok_or("a block is free")?;
        lease.fill(0xEE);
        Ok(lease)
    }

    /// Waits until all blocks are back, although no task waits for the writer.
    async fn all_blocks(&self) {
        in_time(async {
            let mut all = Vec::new();
            while all.len() < BLOCKS {
                all.push(self.pool.lease().await);
            }
        })
        .await;
    }
}

fn pool(peer: &Peer) -> Result<Pool> {
    Ok(Pool::new(peer, 100, BLOCKS)?)
}

/// A block with a record, without a wait for one.
fn word(pool: &Pool, number: u8) -> Result<Frozen> {
    let mut block = pool.try_lease().ok_or("a block is free")?;
    block.fill(number);
    Ok(block.freeze())
}

/// Reads the 100 bytes of [`commit`].
fn read(writer: &Writer, dst: Lease) -> Result<Reading, rpma_async::Refused<Lease>> {
    let from = writer.offer().regions()[0].slice(64..164);
    writer.read(dst, from.expect("inside"))
}

/// Promise: tasks read on a writer's connection beside its commits and other waits. Each gets its
/// own bytes: those of the commits that were posted before its read. All blocks come back.
#[test]
fn tasks_read_beside_commits() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 2).await?;
        let closed = tokio::spawn({
            let writer = made.writer.clone();
            async move { writer.closed().await }
        });
        tokio::task::yield_now().await;
        for number in 1..=50_u64 {
            made.writer.room().await?;
            let bytes = block(&made.pool, number).await;
            let ticket = commit(&made.writer, bytes, number)?;
            let first = made.read()?;
            let second = made.read()?;
            let (writer, lease) = (made.writer.clone(), made.lease()?);
            let third = tokio::spawn(async move { Ok::<_, Failed>(read(&writer, lease)?.await) });
            // Not in the order of the posts.
            assert_eq!(*second.await?, [number as u8; 100]);
            assert_eq!(*first.await?, [number as u8; 100]);
            made.writer.durable(ticket).await?;
            let third = third.await.expect("no panic")?;
            assert_eq!(*third?, [number as u8; 100]);
        }
        assert_eq!(made.pool.available(), BLOCKS);
        made.writer.close(CLOSE).await?;
        made.server.closed().await?;
        closed.await.expect("no panic")?;
        Ok(())
    })
}

/// Promise: a wait for another operation takes no completion of a read.
#[test]
fn other_waits_leave_reads_their_completions() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 1).await?;
        for wait in 0..3 {
            let reading = made.read()?;
            let ticket = commit(&made.writer, word(&made.pool, 1)?, 1)?;
            // This task lets no driver run, so the wait takes the completions that are there.
            // `closed` takes a while.
            let until = Instant::now() + SHORT;
            while Instant::now() < until {
                let (mut durable, mut room, mut closed) = (
                    pin!(made.writer.durable(ticket)),
                    pin!(made.writer.room()),
                    pin!(made.writer.closed()),
                );
                let is_over = match wait {
                    0 => poll_once(durable.as_mut()).await.is_some(),
                    1 => poll_once(room.as_mut()).await.is_some(),
                    _ => poll_once(closed.as_mut()).await.is_some(),
                };
                if is_over {
                    break;
                }
                std::thread::yield_now();
            }
            drop(in_time(reading).await?);
            made.writer.durable(ticket).await?;
        }
        made.all_blocks().await;
        Ok(())
    })
}

/// Promise: a read that is dropped after its nth poll keeps its block until the device has finished
/// with it. Then the block comes back, although no task waits for the writer.
#[test]
fn a_dropped_read_keeps_its_block() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        for n in 0..4 {
            let reactor = Reactor::spawn(&peer)?;
            let made = Made::new(&reactor, 2).await?;
            hold();
            let reading = made.read()?;
            let kept = polls(reading, n).await.is_none();
            // On a device it may be complete by now.
            if cfg!(feature = "sim") {
                assert!(kept);
                assert_eq!(made.pool.available(), BLOCKS - 1, "the device has one");
            }
            release();
            made.all_blocks().await;
            // Complete, and not awaited.
            let reading = made.read()?;
            let ticket = commit(&made.writer, block(&made.pool, 1).await, 1);
            made.writer.durable(ticket?).await?;
            drop(reading);
            assert_eq!(made.pool.available(), BLOCKS);
        }
        Ok(())
    })
}

/// Promise: reads have slots of their own. With all of them in flight as many commits are posted as
/// without; one read more is refused with its block; and one that was awaited gives room.
#[test]
fn reads_take_no_slot_of_a_commit() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 3).await?;
        hold();
        let mut reads = Vec::new();
        for _ in 0..READS {
            reads.push(made.read()?);
        }
        let refused = read(&made.writer, made.lease()?).expect_err("one too many");
        let full = matches!(
            refused.error,
            Error::QueueFull {
                queue: Queue::Send,
                depth: READS
            }
        );
        assert!(full, "{refused}");
        assert!(refused.memory.is_some(), "nothing was posted");
        drop(refused);
        for number in 1..=3 {
            let bytes = block(&made.pool, number).await;
            commit(&made.writer, bytes, number)?;
        }
        release();
        made.writer.room().await?;
        // They are complete, and were not awaited.
        read(&made.writer, made.lease()?).expect_err("as many");
        drop(reads.pop());
        reads.push(made.read()?);
        for reading in reads {
            reading.await?;
        }
        made.all_blocks().await;
        made.writer.close(CLOSE).await?;
        Ok(())
    })
}

/// Promise: a read fails with the reason when its connection ends, whether a task has slept in it
/// or not, and its block comes back.
#[test]
fn an_end_fails_reads() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        // This side ends it.
        let made = Made::new(&reactor, 2).await?;
        hold();
        let sleeping = tokio::spawn(made.read()?);
        tokio::task::yield_now().await;
        let reading = made.read()?;
        let dropped = made.read()?;
        made.writer.abort();
        drop(dropped);
        for ended in [sleeping.await.expect("no panic"), reading.await] {
            // On a device it may have been complete before.
            if cfg!(feature = "sim") || ended.is_err() {
                let failed = ended.expect_err("it was in flight");
                assert!(failed.memory.is_some(), "it is complete: {failed}");
            }
        }
        release();
        made.all_blocks().await;
        let refused = read(&made.writer, made.lease()?).expect_err("it is over");
        assert!(matches!(refused.error, Error::NotConnected(_)), "{refused}");
        assert!(refused.memory.is_some());
        drop(refused);

        // The server ends it.
        let made = Made::new(&reactor, 2).await?;
        hold();
        let sleeping = tokio::spawn(made.read()?);
        tokio::task::yield_now().await;
        made.server.abort();
        let ended = in_time(sleeping).await.expect("no panic");
        if cfg!(feature = "sim") {
            let failed = ended.expect_err("it was in flight");
            assert!(matches!(failed.error, Error::Ended(_)), "{failed}");
        } else {
            // It may have been complete before, and has its block then.
            drop(ended);
        }
        release();
        let Made { pool, writer, .. } = made;
        drop(writer);
        assert_eq!(pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: bad input is one clear error before any post, and the block comes back.
#[test]
fn bad_reads_are_refused() -> Result {
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 2).await?;
        let far = made.writer.offer().regions()[0];
        let refused = |dst, from| -> Result {
            let refused = made.writer.read(dst, from).expect_err("refused");
            assert!(
                matches!(refused.error, Error::InvalidArgument(_)),
                "{refused}"
            );
            drop(refused.memory.ok_or("nothing was posted")?);
            Ok(())
        };
        refused(made.lease()?, far.slice(0..99)?)?;
        let foreign = pool(&other)?;
        let lease = foreign.try_lease().ok_or("a block")?;
        refused(lease, far.slice(0..100)?)?;
        assert_eq!(foreign.available(), BLOCKS);
        assert_eq!(made.pool.available(), BLOCKS);
        drop(made.read()?.await?);
        assert_eq!(contents(&made.target)?[..4], [0; 4]);
        Ok(())
    })
}

/// Promise: a driver that never runs, or is dropped, is an error of a read that would sleep. The
/// block comes back with the writer at the latest.
#[test]
fn a_read_without_a_driver_is_an_error() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 2).await?;
        let Made {
            writer,
            server,
            pool,
            ..
        } = made;
        let (without, driver) = Reactor::new(&peer)?;
        let mut driver = Some(driver);
        let writer = writer.into_inner().expect("nothing is in flight");
        let writer = Writer::new(&without, writer)?;
        for text in ["never run", "was dropped"] {
            hold();
            let lease = pool.try_lease().ok_or("a block")?;
            let result = read(&writer, lease)?.await;
            if cfg!(feature = "sim") {
                let failed = result.expect_err("nobody wakes it");
                assert!(failed.to_string().contains(text), "{failed}");
                assert!(failed.memory.is_none(), "the device has it");
            }
            release();
            drop(driver.take());
        }
        drop((writer, server));
        assert_eq!(pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: the last handle gives rpma's writer back when the device has released all blocks, and
/// keeps its connection. Before that the handle comes back.
#[test]
fn a_handle_gives_the_writer_back() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 2).await?;
        let other = made.writer.clone();
        let writer = made.writer.into_inner().expect_err("there is another one");
        drop(other);
        hold();
        let mut lease = made.pool.try_lease().ok_or("a block")?;
        lease.fill(0xEE);
        let reading = read(&writer, lease)?;
        let writer = writer.into_inner().expect_err("a read is in flight");
        release();
        let lease = reading.await?;
        hold();
        let ticket = commit(&writer, block(&made.pool, 7).await, 7)?;
        let writer = match cfg!(feature = "sim") {
            true => writer.into_inner().expect_err("a commit is in flight"),
            false => writer,
        };
        release();
        writer.durable(ticket).await?;
        drop(lease);

        // It looks itself: this task lets no driver run.
        drop(read(&writer, made.pool.try_lease().ok_or("a block")?)?);
        commit(&writer, word(&made.pool, 8)?, 8)?;
        let mut writer = writer;
        let until = Instant::now() + LIMIT;
        let inner = loop {
            match writer.into_inner() {
                Ok(inner) => break inner,
                Err(handle) => writer = handle,
            }
            assert!(Instant::now() < until, "the device has finished");
            std::thread::yield_now();
        };
        assert_eq!(made.pool.available(), BLOCKS);
        assert_eq!(
            (inner.posted(), inner.durable(), inner.is_over()),
            (2, 2, false)
        );
        // The reactor watches it again, and wakes its tasks.
        let writer = Writer::new(&reactor, inner)?;
        let ticket = commit(&writer, block(&made.pool, 8).await, 8)?;
        writer.durable(ticket).await?;
        assert_eq!(ticket.number(), 3);
        writer.close(CLOSE).await?;
        made.server.closed().await?;
        Ok(())
    })
}

/// Promise: the driver, at work on a thread of its own, is no handle: a writer is given back
/// whenever its commits and reads are released.
#[test]
fn a_driver_at_work_is_no_handle() -> Result {
    leaving_nothing(|| {
        let peer = peer()?;
        let made = run(async {
            let reactor = Reactor::on_thread(&peer)?;
            Ok((Made::new(&reactor, 2).await?, reactor))
        })?;
        let (
            Made {
                mut writer,
                server,
                pool,
                ..
            },
            reactor,
        ) = made;
        for number in 0..200 {
            let appended = block_on(
                async {
                    let mut lease = pool.lease().await;
                    lease.fill(0);
                    let reading = read(&writer, lease)?;
                    let ticket = commit(&writer, block(&pool, number).await, number)?;
                    writer.durable(ticket).await?;
                    drop(reading.await?);
                    Ok::<_, Error>(())
                },
                LIMIT,
            );
            appended.ok_or("in time")??;
            let inner = writer.into_inner().expect("everything is released");
            writer = Writer::new(&reactor, inner)?;
        }
        drop((writer, server, reactor));
        assert_eq!(pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: a writer that recovered by reads is a replica of a set afterwards.
#[test]
fn a_writer_that_recovered_joins_a_set() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let serving = Serving::new(&reactor, 1)?;
        let pool = pool(&peer)?;
        let writer = served::writer(&reactor, serving.addr, 1).await;
        let writer = Writer::new(&reactor, writer)?;
        let ticket = commit(&writer, block(&pool, 3).await, 3)?;
        writer.durable(ticket).await?;
        let lease = pool.try_lease().ok_or("a block")?;
        let bytes = read(&writer, lease)?.await?;
        assert_eq!(*bytes, [3; 100]);
        drop(bytes);
        let remote = writer.offer().regions()[0];
        let inner = writer.into_inner().expect("everything is released");
        let set = rpma::commit::Replicas::new(&peer, 1024, 8)?;
        let set = rpma_async::Replicas::new(&reactor, set)?;
        let id = set.add(inner, remote)?;
        let pointer = Some((served::TAIL, 4_u64.to_ne_bytes()));
        let commit = set.commit(64, &[&[4; 100]], pointer, 1)?;
        let outcome = set.settle(commit, 1, LIMIT).await?;
        assert_eq!(outcome.durable, id.mask());
        drop(set);
        assert_eq!(served::record(&serving.regions[0])?, (4, 4));
        assert_eq!(pool.available(), BLOCKS);
        serving.stop().await;
        Ok(())
    })
}
