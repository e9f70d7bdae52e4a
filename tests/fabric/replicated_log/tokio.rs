//! The front end of the log for tokio, with all its tasks on one thread.

use std::sync::Arc;

use ::tokio::runtime::{Builder, Runtime};
use ::tokio::time::timeout;
use rpma_async::Reactor;

use crate::common::failed::Failed;
use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records_from;
use rpma_log::Log;

/// Longer than anything here takes, in real time: tokio's clock is not the fabric's.
const MOST: Duration = Duration::from_secs(60);

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

async fn open(world: &World, epoch: u64) -> Result<Log, LogError> {
    let mut cfg = world.cfg(epoch);
    cfg.set_limit(Duration::from_secs(20));
    let addr = world.client.addr().to_string();
    let peer = Peer::at(&addr)?;
    Log::open(&Reactor::spawn(&peer)?, &cfg).await
}

/// Waits until a replica has all records.
async fn until_it_has(world: &World, replica: usize, end: u64) -> Result {
    let waits = async {
        while !world.has(replica, end) {
            ::tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(MOST, waits).await?;
    Ok(())
}

/// Promise: on one thread of tokio several tasks append at once, each gets a position of its own,
/// and the next writer takes over with all records. The first one can write no more.
#[test]
fn tasks_append_and_a_writer_takes_over() -> Result {
    let fabric = Rig::new().fabric();
    let world = World::new(&fabric, READING);
    let _entered = world.client.enter();
    runtime()?.block_on(async {
        let first = Arc::new(open(&world, 1).await?);
        let appends = (1..=6_u8).map(|n| {
            let log = Arc::clone(&first);
            ::tokio::spawn(async move { log.append(&[n; 60]).await })
        });
        let mut positions = Vec::new();
        for append in appends.collect::<Vec<_>>() {
            positions.push(append.await.expect("no panic")?);
        }
        positions.sort_unstable();
        positions.dedup();
        assert_eq!(positions.len(), 6);
        first.truncate(positions[2]).await?;
        let second = open(&world, 2).await?;
        assert_eq!(second.bounds().0, positions[2]);
        let records = records_from(second.bounds().0, |at| second.read(at));
        assert_eq!(records.len(), 4);
        second.append(b"second").await?;
        let late = first.append(b"late").await;
        assert!(late.is_err(), "{late:?}");
        drop(first);
        second.close().await?;
        Ok(())
    })
}

/// Promise: a replica that is killed costs no append, and gets all records when it is back.
#[test]
fn a_killed_replica_comes_back() -> Result {
    let fabric = Rig::new().fabric();
    let mut world = World::new(&fabric, READING);
    let entered = world.client.enter();
    let runtime = runtime()?;
    let log = runtime.block_on(async {
        let log = open(&world, 1).await?;
        log.append(b"one").await?;
        until_it_has(&world, 2, log.bounds().1).await?;
        world.hosts[2].kill();
        log.append(b"two").await?;
        Ok::<_, Failed>(log)
    })?;
    world.stop(2);
    world.start(2)?;
    runtime.block_on(async {
        log.append(b"three").await?;
        until_it_has(&world, 2, log.bounds().1).await?;
        let found = world.found(2)?;
        let records: Vec<_> = found.records().map(|(_, record)| record.to_vec()).collect();
        assert_eq!(records, [&b"one"[..], b"two", b"three"]);
        log.close().await?;
        drop(log);
        Ok::<_, Failed>(())
    })?;
    drop(runtime);
    drop(entered);
    world.stop_all();
    Ok(())
}

/// Promise: tasks that append again and again share each commit, because those that one
/// acknowledgement wakes are one group. Two cohorts that take turns would wait twice as long.
#[test]
fn tasks_that_go_on_together_share_each_commit() -> Result {
    // The ring has room for 16 records.
    const TASKS: u64 = 4;
    const ROUNDS: u64 = 4;
    let fabric = Rig::new().fabric();
    let world = World::new(&fabric, READING);
    let _entered = world.client.enter();
    runtime()?.block_on(async {
        let log = Arc::new(open(&world, 1).await?);
        until_it_has(&world, 2, log.bounds().1).await?;
        // So that no record is durable before others are appended.
        (0..3).for_each(|n| world.link(n).delay(Duration::from_millis(20)));
        let before = log.counters().commits;
        let appends = (0..TASKS).map(|_| {
            let log = Arc::clone(&log);
            ::tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    log.append(&[1; 10]).await?;
                }
                Ok::<_, LogError>(())
            })
        });
        for append in appends.collect::<Vec<_>>() {
            append.await.expect("no panic")?;
        }
        let commits = log.counters().commits - before;
        // The first record goes alone.
        assert!(commits <= ROUNDS + 1, "{commits} commits");
        Ok(())
    })
}

/// Promise: the log ends with its runtime, and no append waits for it.
#[test]
fn a_log_ends_with_its_runtime() -> Result {
    let fabric = Rig::new().fabric();
    let world = World::new(&fabric, READING);
    let _entered = world.client.enter();
    let first = runtime()?;
    let log = first.block_on(open(&world, 1))?;
    (0..3).for_each(|n| world.link(n).delay(MOST));
    // The first one leads its commit, and the other one waits for that.
    let mut appends = Vec::new();
    for _ in 0..2 {
        let log = log.clone();
        let mut append = Box::pin(async move { log.append(b"one").await });
        let limit = Duration::from_millis(10);
        let there = first.block_on(async { timeout(limit, &mut append).await });
        assert!(there.is_err(), "no server answers");
        appends.push(append);
    }
    drop(first);
    for append in appends {
        let ended = runtime()?.block_on(async { timeout(MOST / 4, append).await });
        let error = ended?.expect_err("no server answers");
        assert!(matches!(error, LogError::Unknown { .. }), "{error}");
    }
    Ok(())
}
