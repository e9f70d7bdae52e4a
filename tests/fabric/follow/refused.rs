//! A fabric that cannot follow a clock is refused, and the message names the reason.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rpma::sim::sweep;
use tokio::time::sleep_until;

use crate::common::prelude::*;
use crate::follow::world::{follow, paused};

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
    paused().block_on(async {
        let seeded = Fabric::seeded(profile(), 1);
        contains(&refused(|| follow(&seeded)), "has a seed");
        assert!(seeded.why_not_repeatable().is_none());
        let swept = || {
            sweep(&Profile::STRICT, follow);
        };
        contains(&refused(swept), "has a seed");

        let jumping = Fabric::new(profile());
        jumping.jump_over_waits();
        contains(&refused(|| follow(&jumping)), "jump_over_waits");

        let twice = Fabric::new(profile());
        follow(&twice);
        contains(&refused(|| follow(&twice)), "already");
        // It does so anyway.
        twice.jump_over_waits();
    });
}

/// Promise: a clock that runs already is not exchanged, because its timers would be lost.
#[test]
fn not_in_the_middle() {
    paused().block_on(async {
        let fabric = Fabric::new(profile());
        let world = World::on(&fabric);
        let [a, b, c, _] = world.hosts[1].addr().octets();
        let nobody = ([a, b, c, 99], 7).into();
        let resolving = ConnReq::resolve(&world.peers[0], nobody, &Default::default());
        contains(&refused(|| follow(&fabric)), "put something off");
        drop(resolving);
    });
}

/// Promise: a future without work, or one that would run in another time, is refused.
#[test]
fn a_tick_that_is_of_no_use() {
    let runtime = paused();
    let fabric = Fabric::new(profile());
    let tick = || fabric.tick(|at| sleep_until(at.into()));
    contains(&refused(|| drop(tick())), "Call Fabric::follow first");
    runtime.block_on(async { follow(&fabric) });
    let elsewhere = || thread::scope(|scope| scope.spawn(|| refused(|| drop(tick()))).join());
    contains(&elsewhere().expect("a text"), "not on the fabric");

    // A future that has gone to another thread.
    let ticking = tick();
    contains(&refused(|| drop(tick())), "already");
    let polled = thread::spawn(|| refused(|| paused().block_on(ticking)));
    contains(&polled.join().expect("a text"), "not on the fabric");

    // It is gone, so another one takes its place.
    let _entered = fabric.host("here").enter();
    let short = Duration::from_millis(1);
    let ticked = runtime.block_on(async { tokio::time::timeout(short, tick()).await });
    ticked.expect_err("it does not end before its fabric");
    drop(tick());
}
