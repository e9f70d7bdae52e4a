//! Calls that fail while a writer's commits are in flight.

use rpma::commit::Method;
use rpma::sim::Errno;
use rpma_async::Pool;
use tokio::time::sleep;

use crate::awaited::failing::{LOOKS, failed_posts, fails, names, names_call};
use crate::awaited::faults::{UnderWay, Waits};
use crate::awaited::hosts::{Far, Outage, methods, spoil};
use crate::awaited::served::{TAIL, block, post};
use crate::awaited::support::{in_time, is_over, joined};
use crate::awaited::world::{leaving, virtually};
use crate::common::prelude::*;

/// Everything that is still on its way has arrived.
const LATER: Duration = Duration::from_secs(10);

/// Promise: a call that fails in a look, of the driver or of a task, ends the connection, as a
/// completion or an event may be lost. It is the reason of all waits, also of later ones, and the
/// sources come back while the writer lives.
#[test]
fn a_look_that_fails_is_the_reason() -> Result {
    for (method, call) in methods().flat_map(|method| LOOKS.map(|call| (method, call))) {
        println!("{method}, {call}");
        virtually(async |world| {
            let of = UnderWay::new(world, method).await?;
            let mut far = of.far;
            let waits = Waits::begin(&of.writer, of.tickets).await;
            let failing = world.fail(call).next(Errno::IO);
            match call {
                "rdma_get_cm_event" => Outage::Killed.begin(world, &mut far).await?,
                _ => far.there.release(),
            }
            // Two commits may have become durable before.
            let [second, third] = waits.durable;
            for waiting in [waits.room, second, third] {
                if let Err(error) = joined(waiting).await {
                    names_call(&error, call);
                }
            }
            match joined(waits.closed).await {
                Ok(event) => assert_eq!(event, ConnEvent::Closed),
                Err(error) => names_call(&error, call),
            }
            assert!(!failing.is_pending());
            far.there.release();
            in_time(spoil(&of.pool)).await?;
            let later = in_time(of.writer.room()).await;
            names_call(&later.expect_err("it is over"), call);
            is_over(post(&of.writer, &of.pool, 4).await);
            far.keeps(1..=3).await;
            drop(of.writer);
            far.end().await;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: an answer counts even if its receive cannot be posted again, and the connection ends
/// with this reason: a later answer would wait for a receive that never comes.
#[test]
fn an_answer_whose_receive_is_refused_ends_the_connection() -> Result {
    virtually(async |world| {
        let of = UnderWay::new(world, Method::Server).await?;
        let mut far = of.far;
        let call = "ibv_post_recv";
        let failing = world.fail(call).next(Errno::INVAL);
        far.there.release();
        let [second, _] = of.tickets;
        in_time(of.writer.durable(second)).await?;
        assert!(!failing.is_pending());
        fails(in_time(of.writer.room()).await, call, Errno::INVAL);
        far.keeps(2..=3).await;
        drop(of.writer);
        far.end().await;
        Ok(())
    })
}

/// Promise: after a commit's post that fails, in any way, its source stays away until the
/// connection is destroyed: the device may read it. The commit before gives its source back.
#[test]
fn a_failed_post_of_a_commit_keeps_its_source() -> Result {
    for method in methods() {
        let mut failed = 0;
        for (call, how) in failed_posts() {
            println!("{method}, {call}, {how:?}");
            failed += usize::from(virtually(async |world| {
                let mut far = Far::new(world, "log", method)?;
                let writer = far.writer(world, 2).await?;
                let pool = Pool::new(&world.peers[0], 100, 2)?;
                far.there.hold();
                post(&writer, &pool, 1).await?;
                let failing = world.fail(call).how(how).next(Errno::IO);
                let region = writer.offer().regions()[0];
                let part = (region.slice(64..164)?, block(&pool, 2).await);
                let tail = region.slice(TAIL..TAIL + 8)?;
                let posted = writer.commit([part], Some((tail, 2_u64.to_ne_bytes())));
                let has_failed = !failing.disarm();
                assert_eq!(has_failed, posted.is_err(), "{posted:?}");
                if let Err(refused) = posted {
                    names(&refused.error, call, Errno::IO);
                    assert!(refused.memory.is_none(), "the device may have it");
                    fails(in_time(writer.room()).await, call, Errno::IO);
                    far.there.release();
                    sleep(LATER).await;
                    assert_eq!(pool.available(), 1, "that of the commit before");
                }
                far.there.release();
                drop(writer);
                assert_eq!(pool.available(), 2, "no device can read them");
                far.keeps(0..=2).await;
                far.end().await;
                Ok(has_failed)
            })?);
        }
        assert!(failed > 0, "{method}");
    }
    Ok(())
}

/// Promise: the sources of commits stay away for ever if the queue pair could not be destroyed,
/// as the device may read them.
#[test]
fn a_queue_pair_that_stays_keeps_the_sources() {
    for method in methods() {
        println!("{method}");
        let ((), left) = leaving(async |world| {
            let of = UnderWay::new(world, method).await.expect("posted");
            let failing = world.fail("ibv_destroy_qp").next(Errno::BUSY);
            drop(of.writer);
            assert!(!failing.is_pending());
            of.far.there.release();
            sleep(LATER).await;
            assert_eq!(of.pool.available(), 0, "a device may read them");
            of.far.end().await;
        });
        assert!(!left.is_empty(), "the queue pair");
    }
}

/// Promise: while the device has no memory for posts, which looks like a full queue, `commit_bytes`
/// tries again with pauses, and does not spin.
#[test]
fn a_device_without_memory_is_tried_again_with_pauses() -> Result {
    const FAILURES: u32 = 40;
    virtually(async |world| {
        let of = UnderWay::new(world, Method::Reading).await?;
        let far = of.far;
        far.there.release();
        for ticket in of.tickets {
            of.writer.durable(ticket).await?;
        }
        let region = of.writer.offer().regions()[0];
        let fail = |nth| world.fail("ibv_post_send").nth(nth, Errno::NOMEM);
        let failing: Vec<_> = (1..=FAILURES).map(fail).collect();
        let begin = world.fabric.now();
        let at = (&region, 0);
        in_time(of.writer.commit_bytes(&of.pool, at, &[7; 8], None)).await?;
        assert!(failing.iter().all(|failing| !failing.is_pending()));
        let took = world.fabric.now() - begin;
        assert!(took >= Duration::from_millis(FAILURES.into()), "{took:?}");
        drop(of.writer);
        far.end().await;
        Ok(())
    })
}
