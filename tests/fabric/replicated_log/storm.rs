//! The program of `sweep.rs` under two to four faults at once, which a seed draws.
//!
//! `RPMA_SIM_SEED` has the first seed, and `RPMA_SIM_FAULT` the faults of one run.

use rpma::sim::storm;

use crate::common::place::profile;
use crate::replicated_log::sweep::program;

/// The most faults that a storm draws at once.
const FAULTS: u64 = 4;

fn run(seeds: u64) {
    // A call that destroys may be among the calls that fail: something may be left.
    storm(&profile(), seeds, |fabric| drop(program(fabric, FAULTS)));
}

/// Promise: as `each_fault_is_survived`, with several faults at once. Only the leaks are not looked
/// for.
#[test]
fn several_faults_are_survived() {
    run(25);
}

/// The same with more seeds.
#[test]
#[ignore = "long: 5 minutes"]
fn several_faults_are_survived_of_many_seeds() {
    run(2_000);
}
