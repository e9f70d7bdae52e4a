//! The future that does the work that is due.

use std::future::{Future, poll_fn};
use std::pin::pin;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::common::failed::Failed;
use crate::follow::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn is_send(_of: &impl Send) {}

/// A request that fails after a second, as no host has the address.
fn fails(world: &World) -> impl Future<Output = ()> + use<> {
    fails_after(world, SECOND)
}

fn fails_after(world: &World, limit: Duration) -> impl Future<Output = ()> + use<> {
    let mut cfg = ConnCfg::new();
    cfg.set_timeout(limit);
    let resolving = ConnReq::resolve(&world.peers[0], nobody(world), &cfg).expect("begins");
    async { drop(resolved(resolving).await.expect_err("nobody is there")) }
}

/// Promise: without its future a fabric stands still. Another future does the work that has become
/// due in the meantime. It may be polled in the program's task.
#[test]
fn another_one_goes_on() {
    paused::runtime().block_on(async {
        let fabric = paused::fabric(&Rig::new());
        let tick = || fabric.tick(|at| sleep_until(at.into()));
        let world = World::on(&fabric);
        let began = Instant::now();
        let ticking = tokio::spawn(tick());
        let mut failing = pin!(fails(&world));
        timeout(SECOND / 2, &mut failing).await.expect_err("early");
        ticking.abort();
        ticking.await.expect_err("it is dropped");
        timeout(DAY, &mut failing).await.expect_err("nobody ticks");
        let mut ticking = pin!(tick());
        is_send(&ticking);
        poll_fn(|cx| {
            let ticked = ticking.as_mut().poll(cx);
            assert!(ticked.is_pending(), "its fabric is there");
            failing.as_mut().poll(cx)
        })
        .await;
        assert_eq!(began.elapsed(), DAY + SECOND / 2, "at once");
    });
}

/// Promise: no thread does the work that is due, however long the runtime does not come to it.
#[test]
fn no_thread_does_what_is_due() {
    paused::runtime().block_on(async {
        let fabric = paused::fabric(&Rig::new());
        let world = World::on(&fabric);
        let short = Duration::from_millis(1);
        let mut failing = pin!(fails_after(&world, short));
        for _ in 0..2 {
            let early = timeout(SECOND, &mut failing).await;
            early.expect_err("nobody ticks");
            // A thread of the fabric would have real time for it.
            std::thread::sleep(25 * short);
        }
    });
}

/// Promise: the future ends with the fabric, while it sleeps, even if it has no work to wait for.
/// It does not keep the fabric.
#[test]
fn it_ends_with_its_fabric() -> Result {
    for is_idle in [true, false] {
        paused::runtime().block_on(async {
            let fabric = paused::fabric(&Rig::new());
            let ticking = paused::tick(&fabric);
            let world = World::on(&fabric);
            if !is_idle {
                // The address is asked for until then.
                drop(fails(&world));
            }
            sleep(SECOND / 2).await;
            assert!(!ticking.is_finished());
            let began = Instant::now();
            drop((world, fabric));
            assert!(Host::current().is_none());
            let ended = timeout(DAY, ticking).await?;
            ended.expect("no panic");
            assert_eq!(began.elapsed(), Duration::ZERO);
            Ok::<_, Failed>(())
        })?;
    }
    Ok(())
}

/// Promise: after the fabric is gone the thread is on no fabric, and its time is the system's.
#[test]
fn the_thread_leaves() {
    paused::runtime().block_on(async {
        let fabric = paused::fabric(&Rig::new());
        sleep(DAY).await;
        assert_eq!(rpma::sim::now(), Instant::now().into_std());
        assert_eq!(fabric.now(), Instant::now().into_std());
        drop(fabric);
        assert!(rpma::sim::now() < Instant::now().into_std());
    });
}
