//! Reads of a writer under faults: calls that fail, hosts that are gone, requests that stay on
//! their way.

use rpma::sim::Errno;
use tokio::time::{Instant, sleep};

use crate::awaited::allocations::allocates_nothing;
use crate::awaited::failing::{fails, names};
use crate::awaited::made::{Linked, Made};
use crate::awaited::support::turns;
use crate::awaited::world::{World, is_unanswered, leaving, virtually};
use crate::common::prelude::*;

const BLOCKS: usize = 3;

/// A writer to the second host. The server's end, and its memory, live as long.
async fn far(world: &World) -> Result<Made> {
    let [client, server] = &world.reactors;
    let to = (server, world.hosts[1].addr().into());
    let linked = Linked::new(client, to, 16, &ConnCfg::new()).await?;
    Made::of(client, linked, BLOCKS)
}

/// Promise: after a post that fails, in any way, the block stays away until no device can use it,
/// and the connection is over.
#[test]
fn a_failed_post_of_a_read_keeps_its_block() -> Result {
    for how in [How::Refused, How::Done] {
        virtually(async |world| {
            let of = far(world).await?;
            let call = "ibv_post_send";
            let failing = world.fail(call).how(how).next(Errno::IO);
            let refused = of.read().expect_err("the call fails");
            assert!(!failing.is_pending());
            names(&refused.error, call, Errno::IO);
            assert!(refused.memory.is_none(), "the device may have it");
            fails(of.writer.closed().await, call, Errno::IO);
            assert_eq!(of.pool.available(), BLOCKS - 1, "{how:?}");
            let refused = of.read().expect_err("it is over");
            assert!(refused.memory.is_some(), "nothing was posted: {refused:?}");
            drop(refused);
            let writer = of.writer.into_inner();
            drop(writer.expect_err("the device may have a block"));
            assert_eq!(of.pool.available(), BLOCKS, "no device can use it any more");
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
        let of = far(world).await.expect("a pool");
        world.link.hold();
        drop(of.read().expect("posted"));
        std::mem::forget(of.read().expect("posted"));
        let live = of.read().expect("posted");
        let failing = world.fail("ibv_destroy_qp").next(Errno::BUSY);
        drop(live);
        // A forgotten read keeps its connection.
        drop(of.writer);
        assert!(failing.is_pending());
        drop(failing);
        drop(of.server);
        assert_eq!(of.pool.available(), 0);
    });
    assert!(!left.is_empty(), "the forgotten read");

    let ((), left) = leaving(async |world| {
        let of = far(world).await.expect("a pool");
        world.link.hold();
        drop(of.read().expect("posted"));
        let live = of.read().expect("posted");
        let failing = world.fail("ibv_destroy_qp").next(Errno::BUSY);
        drop(of.writer);
        assert!(failing.is_pending(), "a read is a handle of its connection");
        drop(live);
        assert!(!failing.is_pending());
        drop(of.server);
        world.link.release();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(of.pool.available(), 1, "a device may use them");
    });
    assert!(!left.is_empty(), "the queue pair");
}

/// Promise: a host that is gone fails a read after the connection's retries, whether a task waits
/// for it or not. Then the device has finished, and the block is back.
#[test]
fn a_host_that_is_gone_fails_reads() -> Result {
    virtually(async |world| {
        let of = far(world).await?;
        world.link.partition();
        let live = of.read()?;
        let behind = of.read()?;
        drop(of.read()?);
        // On iWARP TCP gives up, and no completion has the reason.
        let is_gone =
            |error: &Error| is_unanswered(error) || is_iwarp() && matches!(error, Error::Ended(_));
        let failed = live.await.expect_err("nobody answers");
        assert!(is_gone(&failed.error), "{failed}");
        drop(failed.memory.ok_or("it is complete")?);
        // The cause, and not that it was flushed.
        let failed = behind.await.expect_err("the same");
        assert!(is_gone(&failed.error), "{failed}");
        drop(failed);
        assert_eq!(of.pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: a device that completes no operation does not make a wait endless. After the end of the
/// connection a read waits for a second, and fails with the reason. The block stays away until the
/// device goes on.
#[test]
fn a_device_that_stands_still_ends_reads() -> Result {
    virtually(async |world| {
        let of = far(world).await?;
        world.link.hold();
        let reading = of.read()?;
        world.hosts[0].freeze();
        of.writer.abort();
        let event = of.writer.closed().await;
        let ended = Instant::now();
        println!("{event:?}");
        let failed = reading.await.expect_err("the connection is over");
        assert!(failed.memory.is_none(), "the device has it: {failed}");
        assert!(matches!(failed.error, Error::Ended(_)), "{failed}");
        let late = ended.elapsed();
        assert_eq!(late.as_secs(), 1, "{late:?}");
        assert_eq!(of.pool.available(), BLOCKS - 1);
        world.hosts[0].thaw();
        // No task waits for the writer.
        of.all_blocks().await;
        Ok(())
    })
}

/// Promise: reads never allocate, whether they sleep or not, are awaited or dropped.
#[test]
fn reads_allocate_nothing() -> Result {
    virtually(async |world| {
        let of = far(world).await?;
        let each = async || -> Result {
            let first = of.read()?;
            drop(of.read()?);
            drop(first.await?);
            world.link.hold();
            let sleeping = of.read()?;
            let releasing = async {
                turns(1).await;
                world.link.release();
            };
            let (read, ()) = tokio::join!(sleeping, releasing);
            drop(read?);
            Ok(())
        };
        let thrice = async || {
            each().await?;
            each().await?;
            each().await
        };
        allocates_nothing(1, thrice).await?;
        Ok(())
    })
}
