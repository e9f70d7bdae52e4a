//! Tests that run again as they ran before.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::fabric::Fabric;
use crate::profile::Profile;

/// Runs a test on a fabric on which the order of threads follows from a seed. So a run that fails
/// can be repeated.
///
/// The environment variable `RPMA_SIM_SEED` has the seed. If it is not set, each run has a new
/// seed, and the number of runs is `RPMA_SIM_RUNS`, or 1. When the test panics, `repeatable` prints
/// the seed, and continues the panic:
///
/// ```text
/// seed 123: run again with RPMA_SIM_SEED=123
/// ```
///
/// On such a [fabric](Fabric::seeded) one thread runs at a time: the calling one, those that
/// [`Host::spawn`](crate::Host::spawn) and [`thread`](crate::thread) have started, and those that
/// have entered a host. At each call of verbs and of [`sync`](crate::sync), and when a thread
/// waits in `rpma`, the seed chooses which thread goes on. Time is virtual ([`Fabric::now`],
/// [`now`](crate::now)), and the clock [jumps over waits](Fabric::jump_over_waits). The random
/// choices of a device follow from the seed as well.
///
/// Events outside of the fabric's control are not repeated:
/// * a wait for a lock, a channel, a sleep or a scope of std or of another crate: use
///   [`sync`](crate::sync) and [`thread`](crate::thread),
/// * a thread that enters a host by itself,
/// * a thread on no host that makes calls or wakes a thread.
///
/// A thread that has the turn loses it if it sleeps elsewhere for a second of real time, or
/// computes for half a minute. Then time is real until it is back. The run goes on.
/// [`Fabric::why_not_repeatable`] has the reason, and `repeatable` prints it.
///
/// ```
/// # mod rpma { pub use rpma_sim as sim; }
/// use rpma::sim::{Profile, repeatable};
///
/// repeatable(Profile::STRICT, |fabric| {
///     let host = fabric.host("here");
///     let threads = [1, 2].map(|number| host.spawn(move || number));
///     assert_eq!(threads.map(|thread| thread.join().expect("no panic")), [1, 2]);
/// });
/// ```
///
/// # Panics
///
/// If the test does, or if one of the variables is not a number.
pub fn repeatable(profile: Profile, mut test: impl FnMut(&Fabric)) {
    let seed = number("RPMA_SIM_SEED");
    let runs = match seed {
        Some(_) => 1,
        None => number("RPMA_SIM_RUNS").unwrap_or(1),
    };
    for _ in 0..runs {
        // Its keys are the system's random numbers.
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        let fabric = Fabric::seeded(profile.clone(), seed);
        let ended = catch_unwind(AssertUnwindSafe(|| test(&fabric)));
        if let Some(why) = fabric.why_not_repeatable() {
            eprintln!("seed {seed}: this seed may not repeat the run: {why}");
        }
        if let Err(panic) = ended {
            eprintln!("seed {seed}: run again with RPMA_SIM_SEED={seed}");
            drop(fabric);
            resume_unwind(panic);
        }
    }
}

/// The number that an environment variable has.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is {text}, which is not a number")))
}
