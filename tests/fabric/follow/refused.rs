//! A fabric that cannot follow a clock is refused, and the message names the reason.

use std::thread;

use tokio::time::sleep_until;

use crate::follow::prelude::*;

/// It panics with this text.
fn refused<T>(run: impl FnOnce() -> T, part: &str) {
    let text = panic_of(run);
    assert!(text.contains(part), "{text}");
}

/// Promise: a fabric with a clock of its own does not follow another one, and reports that before
/// any change.
#[test]
fn one_clock_only() {
    paused::runtime().block_on(async {
        // A thread that waits for its turn would wait for ever.
        let seeded = Rig::new().seed(1).fabric();
        let waiting = seeded.host("here").spawn(|| ());
        refused(|| paused::follow(&seeded), "waits for its turn");
        assert!(seeded.why_not_repeatable().is_none());
        waiting.join().expect("no panic");

        let jumping = Rig::new().jumping().fabric();
        refused(|| paused::follow(&jumping), "jump_over_waits");

        let twice = paused::fabric(&Rig::new());
        refused(|| paused::follow(&twice), "already");
        // It does so anyway.
        twice.jump_over_waits();
    });
}

/// Promise: a clock that runs already is not exchanged, because its timers would be lost.
#[test]
fn not_in_the_middle() {
    paused::runtime().block_on(async {
        let world = Rig::new().world();
        let cfg = ConnCfg::new();
        let _resolving = ConnReq::resolve(&world.peers[0], nobody(&world), &cfg);
        refused(|| paused::follow(&world.fabric), "put something off");
    });
}

/// Promise: a future without work, or one that would run in another time, is refused.
#[test]
fn a_tick_that_is_of_no_use() {
    let runtime = paused::runtime();
    let fabric = Rig::new().fabric();
    let tick = || fabric.tick(|at| sleep_until(at.into()));
    refused(tick, "Call Fabric::follow first");
    runtime.block_on(async { paused::follow(&fabric) });
    let elsewhere = "not on the fabric";
    thread::scope(|scope| scope.spawn(|| refused(tick, elsewhere)).join()).expect("a text");

    // A future that has gone to another thread.
    let ticking = tick();
    refused(tick, "already");
    let polls = || paused::runtime().block_on(ticking);
    let polled = thread::spawn(move || refused(polls, elsewhere));
    polled.join().expect("a text");

    // It is gone, so another one takes its place.
    let _entered = fabric.host("here").enter();
    let short = Duration::from_millis(1);
    let ticked = runtime.block_on(async { tokio::time::timeout(short, tick()).await });
    ticked.expect_err("it does not end before its fabric");
    drop(tick());
}
