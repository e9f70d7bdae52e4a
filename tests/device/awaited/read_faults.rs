//! Reads of a writer under faults: calls that fail, hosts that are gone, requests that stay on
//! their way.

use rpma::sim::Errno;
use rpma_async::{Failed, Lease, Pool, Reading, Refused, Writer};
use tokio::time::{Duration, Instant};

use crate::awaited::far::Far;
use crate::awaited::world::{World, leaving, virtually};
use crate::common::prelude::*;
use crate::looking;

const BLOCKS: usize = 3;

/// A writer to the second host, with a pool. The server's end, and its memory, live as long.
async fn far(world: &World) -> Result<(Writer, Pool, impl Sized)> {
    let Far {
        writer,
        server,
        target,
    } = Far::new(world).await?;
    let [client, _] = &world.reactors;
    let writer = Writer::new(client, writer)?;
    let pool = Pool::new(client.peer(), 100, BLOCKS)?;
    Ok((writer, pool, (server, target)))
}

fn read(writer: &Writer, pool: &Pool) -> Result<Reading, Refused<Lease>> {
    let from = writer.offer().regions()[0].slice(64..164).expect("inside");
    writer.read(pool.try_lease().expect("a block is free"), from)
}

fn failed(read: Result<Lease, Failed<Lease>>) -> Failed<Lease> {
    read.expect_err("it has failed")
}

/// Promise: after a post that fails, in any way, the block stays away until no device can use it,
/// and the connection is over.
#[test]
fn a_failed_post_of_a_read_keeps_its_block() -> Result {
    for how in [How::Refused, How::Done] {
        virtually(async |world| {
            let (writer, pool, server) = far(world).await?;
            let call = world.fabric.fail("ibv_post_send").on(&world.hosts[0]);
            let failing = call.how(how).next(Errno::IO);
            let refused = read(&writer, &pool).expect_err("the call fails");
            assert!(!failing.is_pending());
            let Error::Provider { call, .. } = &refused.error else {
                panic!("{refused:?}");
            };
            assert_eq!(*call, "ibv_post_send");
            assert!(refused.memory.is_none(), "the device may have it");
            let closed = writer.closed().await;
            closed.expect_err("the failure of the call");
            assert_eq!(pool.available(), BLOCKS - 1, "{how:?}");
            let refused = read(&writer, &pool).expect_err("it is over");
            assert!(refused.memory.is_some(), "nothing was posted: {refused:?}");
            drop(refused);
            let writer = writer
                .into_inner()
                .expect_err("the device may have a block");
            drop((writer, server));
            assert_eq!(pool.available(), BLOCKS, "no device can use it any more");
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: the blocks of reads stay away for ever if the queue pair could not be destroyed: that
/// of a read in flight, that of a read with a dropped future, and that of a forgotten read.
#[test]
fn a_queue_pair_that_stays_keeps_the_blocks_of_reads() {
    let ((), left) = leaving(async |world| {
        let (writer, pool, server) = far(world).await.expect("a pool");
        world.link.hold();
        drop(read(&writer, &pool).expect("posted"));
        std::mem::forget(read(&writer, &pool).expect("posted"));
        let live = read(&writer, &pool).expect("posted");
        let failing = world.fabric.fail("ibv_destroy_qp").on(&world.hosts[0]);
        let failing = failing.next(Errno::BUSY);
        drop(live);
        // A forgotten read keeps its connection.
        drop(writer);
        assert!(failing.is_pending());
        drop(failing);
        drop(server);
        assert_eq!(pool.available(), 0);
    });
    assert!(!left.is_empty(), "the forgotten read");

    let ((), left) = leaving(async |world| {
        let (writer, pool, server) = far(world).await.expect("a pool");
        world.link.hold();
        drop(read(&writer, &pool).expect("posted"));
        let live = read(&writer, &pool).expect("posted");
        let failing = world.fabric.fail("ibv_destroy_qp").on(&world.hosts[0]);
        let failing = failing.next(Errno::BUSY);
        drop(writer);
        assert!(failing.is_pending(), "a read is a handle of its connection");
        drop(live);
        assert!(!failing.is_pending());
        drop(server);
        world.link.release();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(pool.available(), 1, "a device may use them");
    });
    assert!(!left.is_empty(), "the queue pair");
}

/// Promise: a host that is gone fails a read after the connection's retries, whether a task waits
/// for it or not. Then the device has finished, and the block is back.
#[test]
fn a_host_that_is_gone_fails_reads() -> Result {
    virtually(async |world| {
        let (writer, pool, server) = far(world).await?;
        world.link.partition();
        let live = read(&writer, &pool)?;
        let behind = read(&writer, &pool)?;
        drop(read(&writer, &pool)?);
        let failed = failed(live.await);
        let Error::Operation(first) = &failed.error else {
            panic!("{failed}");
        };
        assert_eq!(first.status, WcStatus::RETRY_EXC_ERR);
        drop(failed.memory.ok_or("it is complete")?);
        // The cause, and not that it was flushed.
        let failed = self::failed(behind.await);
        assert!(matches!(&failed.error, Error::Operation(of) if of.status == first.status));
        drop(failed);
        assert_eq!(pool.available(), BLOCKS);
        drop((writer, server));
        Ok(())
    })
}

/// Promise: a device that completes no operation does not make a wait endless. After the end of the
/// connection a read waits for a second, and fails with the reason. The block stays away until the
/// device goes on.
#[test]
fn a_device_that_stands_still_ends_reads() -> Result {
    virtually(async |world| {
        let (writer, pool, server) = far(world).await?;
        world.link.hold();
        let reading = read(&writer, &pool)?;
        world.hosts[0].freeze();
        writer.abort();
        let event = writer.closed().await;
        let ended = Instant::now();
        println!("{event:?}");
        let failed = failed(reading.await);
        assert!(failed.memory.is_none(), "the device has it: {failed}");
        assert!(matches!(failed.error, Error::Ended(_)), "{failed}");
        let late = ended.elapsed();
        assert!(
            (Duration::from_secs(1)..Duration::from_secs(2)).contains(&late),
            "{late:?}"
        );
        assert_eq!(pool.available(), BLOCKS - 1);
        world.hosts[0].thaw();
        // No task waits for the writer.
        drop([pool.lease().await, pool.lease().await, pool.lease().await]);
        drop((writer, server));
        Ok(())
    })
}

/// Promise: reads never allocate, whether they sleep or not, are awaited or dropped.
#[test]
fn reads_allocate_nothing() -> Result {
    virtually(async |world| {
        let (writer, pool, server) = far(world).await?;
        let each = async || -> Result {
            let first = read(&writer, &pool)?;
            drop(read(&writer, &pool)?);
            drop(first.await?);
            world.link.hold();
            let sleeping = read(&writer, &pool)?;
            let releasing = async {
                tokio::task::yield_now().await;
                world.link.release();
            };
            let (read, ()) = tokio::join!(sleeping, releasing);
            drop(read?);
            Ok(())
        };
        for _ in 0..3 {
            each().await?;
        }
        looking::begin();
        for _ in 0..3 {
            each().await?;
        }
        let found = looking::end();
        assert!(found.is_empty(), "{found:#?}");
        drop((writer, server));
        Ok(())
    })
}
