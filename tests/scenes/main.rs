//! The scenes of the crate `rpma-scenes`, with logs of several designs: right ones, and ones with a
//! fault.

mod faults;
#[path = "../fabric/replicated_log/found_by.rs"]
mod found_by;
mod of_rpma_log;

use rpma::sim::{Platform, Profile};
use rpma_scenes::{Subject, Suite};

use of_rpma_log::OfRpmaLog;

/// The kinds of hosts of a short run. Each run has one of them, and one with `all` has both.
fn on_share<S: Subject>(subject: impl Fn() -> S) {
    let share = std::env::var("RPMA_SIM_SHARE").unwrap_or_else(|_| "0".to_owned());
    let kinds = [
        (Profile::STRICT, Platform::AdrDdioOn),
        (Profile::RXE_6_12, Platform::Eadr),
    ];
    for (number, (profile, platform)) in kinds.into_iter().enumerate() {
        if share
            .parse::<usize>()
            .is_ok_and(|share| share % 2 != number)
        {
            continue;
        }
        Suite::new(subject()).on(&profile, platform).run().check();
    }
}

/// Promise: the log of the crate `rpma-log` keeps the promise of each scene.
#[test]
fn rpma_log_keeps_its_promises() {
    on_share(OfRpmaLog::right);
}

/// The same on all devices and platforms.
#[test]
#[ignore = "long: 2 minutes"]
fn rpma_log_keeps_its_promises_everywhere() {
    Suite::new(OfRpmaLog::right()).everywhere().run().check();
}
