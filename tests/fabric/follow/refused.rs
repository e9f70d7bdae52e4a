//! A fabric that cannot follow a clock is refused, and the message names the reason.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rpma::sim::sweep;
use tokio::time::sleep_until;

use crate::common::prelude::*;

/// Runs something that panics, and returns the message.
fn refused(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it is refused");
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| (*panic.downcast_ref::<&str>().expect("a text")).to_owned())
}

fn contains(text: &str, part: &str) {
    assert!(text.contains(part), "{text}");
}

/// Promise: a fabric with a clock of its own does not follow another one, and reports that before
/// any change.
#[test]
fn one_clock_only() {
    paused::runtime().block_on(async {
        let seeded = Rig::new().seed(1).fabric();
        contains(&refused(|| paused::follow(&seeded)), "has a seed");
        assert!(seeded.why_not_repeatable().is_none());
        let swept = || {
            sweep(&Profile::STRICT, paused::follow);
        };
        contains(&refused(swept), "has a seed");

        let jumping = Rig::new().fabric();
        jumping.jump_over_waits();
        contains(&refused(|| paused::follow(&jumping)), "jump_over_waits");

        let twice = paused::fabric(&Rig::new());
        contains(&refused(|| paused::follow(&twice)), "already");
        // It does so anyway.
        twice.jump_over_waits();
    });
}

/// Promise: a clock that runs already is not exchanged, because its timers would be lost.
#[test]
fn not_in_the_middle() {
    paused::runtime().block_on(async {
        let fabric = Rig::new().fabric();
        let world = World::on(&fabric);
        let [a, b, c, _] = world.hosts[1].addr().octets();
        let nobody = ([a, b, c, 99], 7).into();
        let resolving = ConnReq::resolve(&world.peers[0], nobody, &Default::default());
        contains(&refused(|| paused::follow(&fabric)), "put something off");
        drop(resolving);
    });
}

/// Promise: a future without work, or one that would run in another time, is refused.
#[test]
fn a_tick_that_is_of_no_use() {
    let runtime = paused::runtime();
    let fabric = Rig::new().fabric();
    let tick = || fabric.tick(|at| sleep_until(at.into()));
    contains(&refused(|| drop(tick())), "Call Fabric::follow first");
    runtime.block_on(async { paused::follow(&fabric) });
    let elsewhere = || thread::scope(|scope| scope.spawn(|| refused(|| drop(tick()))).join());
    contains(&elsewhere().expect("a text"), "not on the fabric");

    // A future that has gone to another thread.
    let ticking = tick();
    contains(&refused(|| drop(tick())), "already");
    let polled = thread::spawn(|| refused(|| paused::runtime().block_on(ticking)));
    contains(&polled.join().expect("a text"), "not on the fabric");

    // It is gone, so another one takes its place.
    let _entered = fabric.host("here").enter();
    let short = Duration::from_millis(1);
    let ticked = runtime.block_on(async { tokio::time::timeout(short, tick()).await });
    ticked.expect_err("it does not end before its fabric");
    drop(tick());
}
