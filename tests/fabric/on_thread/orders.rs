//! The order of threads follows from a seed, and each fault is met.

use rpma::sim::{repeatable, sweep};

use crate::common::prelude::*;
use crate::on_thread::program::{nothing_is_left, run};

/// Promise: a program with threads that await by `block_on`, on reactors with threads of their own,
/// is repeatable: the same seed leads to the same calls at the same instants.
#[test]
fn a_seed_repeats_the_threads_of_reactors() -> Result {
    let once = |seed| -> Result<_> {
        let fabric = Rig::new().seed(seed).fabric();
        let times = run(&fabric, 2, 3)?;
        nothing_is_left(&fabric);
        assert_eq!(fabric.why_not_repeatable(), None, "seed {seed}");
        Ok((times, fabric.trace()))
    };
    for seed in [1, 2] {
        let first = once(seed)?;
        for _ in 1..20 {
            assert_eq!(once(seed)?, first, "seed {seed}");
        }
    }
    assert_ne!(once(1)?.1, once(2)?.1, "the seed chooses");
    Ok(())
}

/// Promise: so is each order of threads, and no thread hangs.
#[test]
fn every_seed_is_repeatable() {
    for _ in 0..100 {
        repeatable(profile(), |fabric| {
            run(fabric, 3, 2).expect("it succeeds");
            nothing_is_left(fabric);
            assert_eq!(fabric.why_not_repeatable(), None);
        });
    }
}

/// Promise: each call, request and host fails once, and the program ends: with errors, and without
/// a panic, a hang or a leak. A thousand runs take seconds.
#[test]
fn each_fault_is_met() {
    let began = Instant::now();
    let runs = sweep(&profile(), |fabric| {
        // It may fail in any way.
        let _ = run(fabric, 1, 1);
        assert_eq!(fabric.why_not_repeatable(), None);
    });
    assert!(runs > 500, "{runs}");
    // On an idle machine, ten seconds.
    assert!(began.elapsed() < Duration::from_secs(300));
}
