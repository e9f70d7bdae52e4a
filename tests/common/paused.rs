//! Fabrics in the time of a runtime: it stands still until all tasks wait, and then jumps.

use std::collections::BTreeMap;

use rpma::sim::Fabric;
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep_until};

use super::Rig;
pub(crate) use super::paused_runtime as runtime;

/// A runtime with a paused clock, and a fabric that follows its clock.
pub(crate) fn both(rig: &Rig) -> (Runtime, Fabric) {
    let runtime = runtime();
    let fabric = runtime.block_on(async { fabric(rig) });
    (runtime, fabric)
}

/// A fabric that follows the clock of the runtime that the calling task is on.
pub(crate) fn fabric(rig: &Rig) -> Fabric {
    let fabric = rig.fabric();
    follow(&fabric);
    fabric
}

/// Lets a fabric follow that clock.
pub(crate) fn follow(fabric: &Fabric) {
    fabric.follow(|| Instant::now().into_std());
}

/// Runs a test on a fabric that follows a paused clock. Returns which objects it has left as
/// well.
pub(crate) fn leaving<T>(
    rig: &Rig,
    test: impl AsyncFnOnce(&Fabric) -> T,
) -> (T, BTreeMap<&'static str, usize>) {
    runtime().block_on(async {
        let fabric = fabric(rig);
        let ticking = tick(&fabric);
        let result = test(&fabric).await;
        // The last handle may be a task's that was woken just now.
        for _ in 0..8 {
            yield_now().await;
        }
        let left = fabric.objects();
        // The remaining objects keep the fabric, and with it this future.
        ticking.abort();
        (result, left)
    })
}

/// A task that does the work of a fabric which is due.
pub(crate) fn tick(fabric: &Fabric) -> JoinHandle<()> {
    tokio::spawn(fabric.tick(|at| sleep_until(at.into())))
}
