//! Reads on the connection of a writer, and the writer of rpma back from its handle.

use std::pin::pin;

use rpma_async::{Pool, Reactor, Writer, block_on};

use crate::awaited::held::{hold, leaving_nothing, release};
use crate::awaited::made::{BLOCKS, Made, READS, filled, read, word};
use crate::awaited::replicas::{self, RING, add, new_set};
use crate::awaited::served::{self, Serving, append, commit, polls, post};
use crate::awaited::support::{
    CLOSE, all_blocks, begun, in_time, joined, run, spawn_with, turns, with_reactor,
};
use crate::common::prelude::*;
use crate::serve::support::SHORT;

/// Promise: tasks read on a writer's connection beside its commits and other waits. Each gets its
/// own bytes: those of the commits that were posted before its read. All blocks come back.
#[test]
fn tasks_read_beside_commits() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 2).await?;
        let closed = spawn_with(&made.writer, |writer| async move { writer.closed().await });
        turns(1).await;
        for number in 1..=50_u64 {
            made.writer.room().await?;
            let ticket = post(&made.writer, &made.pool, number).await?;
            let first = made.read()?;
            let second = made.read()?;
            let lease = made.lease();
            let third = spawn_with(&made.writer, |writer| async move {
                let reading = read(&writer, lease).expect("posted");
                reading.await.expect("succeeds")
            });
            // Not in the order of the posts.
            assert_eq!(*second.await?, [number as u8; 100]);
            assert_eq!(*first.await?, [number as u8; 100]);
            made.writer.durable(ticket).await?;
            assert_eq!(*joined(third).await, [number as u8; 100]);
        }
        assert_eq!(made.pool.available(), BLOCKS);
        made.writer.close(CLOSE).await?;
        made.server.closed().await?;
        joined(closed).await?;
        Ok(())
    })
}

/// Promise: a wait for another operation takes no completion of a read.
#[test]
fn other_waits_leave_reads_their_completions() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 1).await?;
        let writer = &made.writer;
        for wait in 0..3 {
            let reading = made.read()?;
            let ticket = commit(writer, word(&made.pool, 1), 1)?;
            // This task lets no driver run, so the wait takes the completions that are there.
            // `closed` takes a while.
            let until = Instant::now() + SHORT;
            while Instant::now() < until {
                let is_over = match wait {
                    0 => begun(&mut pin!(writer.durable(ticket))).await.is_some(),
                    1 => begun(&mut pin!(writer.room())).await.is_some(),
                    _ => begun(&mut pin!(writer.closed())).await.is_some(),
                };
                if is_over {
                    break;
                }
                std::thread::yield_now();
            }
            drop(in_time(reading).await?);
            writer.durable(ticket).await?;
        }
        made.all_blocks().await;
        Ok(())
    })
}

/// Promise: a read that is dropped after its nth poll keeps its block until the device has finished
/// with it. Then the block comes back, although no task waits for the writer.
#[test]
fn a_dropped_read_keeps_its_block() -> Result {
    for n in 0..4 {
        with_reactor(async |reactor| {
            let made = Made::new(reactor, 2).await?;
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
            append(&made.writer, &made.pool, 1).await?;
            drop(reading);
            assert_eq!(made.pool.available(), BLOCKS);
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: reads have slots of their own. With all of them in flight as many commits are posted as
/// without; one read more is refused with its block; and those that are complete give room, also if
/// they were not awaited.
#[test]
fn reads_take_no_slot_of_a_commit() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 3).await?;
        hold();
        let mut reads = Vec::new();
        for _ in 0..READS {
            reads.push(made.read()?);
        }
        // On a device some may be complete by now, and give room.
        if cfg!(feature = "sim") {
            let refused = made.read().expect_err("one too many");
            let Error::QueueFull { queue, depth } = refused.error else {
                panic!("{refused}");
            };
            assert_eq!((queue, depth), (Queue::Send, READS));
            drop(refused.memory.ok_or("nothing was posted")?);
        }
        for number in 1..=3 {
            post(&made.writer, &made.pool, number).await?;
        }
        release();
        made.writer.room().await?;
        // They are complete, and were not awaited.
        for _ in 0..READS {
            let reading = made.read()?;
            drop(reads.pop());
            reads.push(reading);
        }
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
    with_reactor(async |reactor| {
        // This side ends it.
        let made = Made::new(reactor, 2).await?;
        hold();
        let sleeping = tokio::spawn(made.read()?);
        turns(1).await;
        let reading = made.read()?;
        let dropped = made.read()?;
        made.writer.abort();
        drop(dropped);
        for ended in [joined(sleeping).await, reading.await] {
            // On a device it may have been complete before.
            if cfg!(feature = "sim") || ended.is_err() {
                let failed = ended.expect_err("it was in flight");
                assert!(failed.memory.is_some(), "it is complete: {failed}");
            }
        }
        release();
        made.all_blocks().await;
        let refused = made.read().expect_err("it is over");
        assert!(matches!(refused.error, Error::NotConnected(_)), "{refused}");
        drop(refused.memory.ok_or("nothing was posted")?);

        // The server ends it.
        let made = Made::new(reactor, 2).await?;
        hold();
        let sleeping = tokio::spawn(made.read()?);
        turns(1).await;
        made.server.abort();
        let ended = joined(sleeping).await;
        if cfg!(feature = "sim") {
            let failed = ended.expect_err("it was in flight");
            assert!(matches!(failed.error, Error::Ended(_)), "{failed}");
        } else {
            // It may have been complete before, and has its block then.
            drop(ended);
        }
        release();
        drop(made.writer);
        assert_eq!(made.pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: bad input is one clear error before any post, and the block comes back.
#[test]
fn bad_reads_are_refused() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 2).await?;
        let far = made.writer.offer().regions()[0];
        let refused = |dst, from| -> Result {
            let refused = made.writer.read(dst, from).expect_err("refused");
            drop(refused.memory.ok_or("nothing was posted")?);
            invalid(Err::<(), _>(refused.error));
            Ok(())
        };
        refused(made.lease(), far.slice(0..99)?)?;
        let foreign = Pool::new(&peer()?, 100, 1)?;
        let lease = foreign.try_lease().ok_or("a block")?;
        refused(lease, far.slice(0..100)?)?;
        assert_eq!(foreign.available(), 1);
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
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 2).await?;
        let (without, driver) = Reactor::new(reactor.peer())?;
        let mut driver = Some(driver);
        let writer = made.writer.into_inner().expect("nothing is in flight");
        let writer = Writer::new(&without, writer)?;
        for text in ["never run", "was dropped"] {
            hold();
            let lease = made.pool.try_lease().ok_or("a block")?;
            let result = read(&writer, lease)?.await;
            if cfg!(feature = "sim") {
                let failed = result.expect_err("nobody wakes it");
                assert!(failed.to_string().contains(text), "{failed}");
                assert!(failed.memory.is_none(), "the device has it");
            }
            release();
            drop(driver.take());
        }
        drop(writer);
        assert_eq!(made.pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: the last handle gives rpma's writer back when the device has released all blocks, and
/// keeps its connection. Before that the handle comes back.
#[test]
fn a_handle_gives_the_writer_back() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 2).await?;
        let other = made.writer.clone();
        let writer = made.writer.into_inner().expect_err("there is another one");
        drop(other);
        hold();
        let reading = read(&writer, filled(&made.pool, 0xEE))?;
        let writer = writer.into_inner().expect_err("a read is in flight");
        release();
        let lease = reading.await?;
        hold();
        let ticket = post(&writer, &made.pool, 7).await?;
        let writer = if cfg!(feature = "sim") {
            writer.into_inner().expect_err("a commit is in flight")
        } else {
            writer
        };
        release();
        writer.durable(ticket).await?;
        drop(lease);

        // It looks itself: this task lets no driver run.
        drop(read(&writer, made.pool.try_lease().ok_or("a block")?)?);
        commit(&writer, word(&made.pool, 8), 8)?;
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
        assert_eq!((inner.posted(), inner.durable()), (2, 2));
        assert!(!inner.is_over());
        // The reactor watches it again, and wakes its tasks.
        let writer = Writer::new(reactor, inner)?;
        let ticket = append(&writer, &made.pool, 8).await?;
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
        let reactor = Reactor::on_thread(&peer()?)?;
        let mut made = run(Made::new(&reactor, 2))?;
        for number in 0..200 {
            let Made { writer, pool, .. } = &made;
            let appends = async {
                let mut lease = pool.lease().await;
                lease.fill(0);
                let reading = read(writer, lease)?;
                append(writer, pool, number).await?;
                drop(reading.await?);
                Ok::<_, Error>(())
            };
            block_on(appends, LIMIT).ok_or("in time")??;
            let inner = made.writer.into_inner().expect("everything is released");
            made.writer = Writer::new(&reactor, inner)?;
        }
        let Made { pool, .. } = made;
        drop((made.writer, made.server, reactor));
        // The driver's thread may drop the last one of them, when its look ends.
        let all = block_on(all_blocks(&pool), LIMIT).ok_or("all blocks come back")?;
        assert_eq!(all.len(), BLOCKS);
        Ok(())
    })
}

/// Promise: a writer that recovered by reads is a replica of a set afterwards.
#[test]
fn a_writer_that_recovered_joins_a_set() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 1)?;
        let pool = Pool::new(reactor.peer(), 100, 2)?;
        let writer = served::awaited(reactor, serving.addr, 1).await;
        append(&writer, &pool, 3).await?;
        let lease = pool.try_lease().ok_or("a block")?;
        assert_eq!(*read(&writer, lease)?.await?, [3; 100]);
        let inner = writer.into_inner().expect("everything is released");
        let set = new_set(reactor, RING)?;
        let id = add(&set, inner)?;
        let commit = replicas::commit(&set, 4, 1)?;
        let outcome = set.settle(commit, 1, LIMIT).await?;
        assert_eq!(set.durable(outcome), [id]);
        drop(set);
        assert_eq!(served::record(&serving.regions[0])?, (4, 4));
        assert_eq!(pool.available(), 2);
        serving.stop().await;
        Ok(())
    })
}
