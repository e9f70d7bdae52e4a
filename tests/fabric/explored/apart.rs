//! Hosts that are apart, on fabrics with a seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::prelude::*;
use crate::explored::programs::copies;

/// How many of some seeds find an acknowledgement after one copy of three.
fn found(is_apart: bool) -> usize {
    let fails = |seed: &u64| {
        let fabric = Rig::of(&Profile::RXE_6_12).seed(*seed).fabric();
        if is_apart {
            fabric.apart();
        }
        catch_unwind(AssertUnwindSafe(|| copies(&fabric, 1))).is_err()
    };
    (1..=10).filter(fails).count()
}

/// Promise: replicas answer in the order in which the program polls them, and in other orders if
/// their hosts are apart.
#[test]
fn replicas_answer_in_other_orders() {
    assert_eq!(found(false), 0);
    let found = found(true);
    assert!((1..10).contains(&found), "{found}");
}

/// Promise: a delay that the test has set holds.
#[test]
fn a_set_delay_holds() -> Result {
    for seed in 1..=5 {
        let world = Rig::of(&Profile::RXE_6_12).seed(seed).world();
        world.fabric.apart();
        let delay = Duration::from_secs(1);
        world.link.delay(delay);
        let cfg = ConnCfg::new();
        let (conn, _end) = world.connect(&cfg, &cfg)?.ends();
        let before = world.fabric.now();
        let posted = conn.write(
            RemoteSlice::EMPTY,
            MrSlice::EMPTY,
            Flags::COMPLETION_ALWAYS,
            1,
        )?;
        conn.wait_for(posted, LIMIT, |_| {})?;
        let took = world.fabric.now() - before;
        assert!(took >= delay && took < 2 * delay, "{took:?}");
    }
    Ok(())
}
