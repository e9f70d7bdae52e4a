//! The scenes of the crate `rpma-scenes`, with logs of several designs: right ones, and ones with a
//! fault.

mod faults;
#[path = "../fabric/replicated_log/found_by.rs"]
mod found_by;
mod of_rpma_log;
#[allow(dead_code, unreachable_pub, reason = "it is a program as well")]
#[path = "../../rpma-scenes/examples/small-log.rs"]
mod small_log;
mod sums;

use rpma::sim::{Platform, Profile};
use rpma_scenes::{Blocking, Subject, Suite};

use of_rpma_log::OfRpmaLog;
use small_log::SmallLog;
use sums::Sums;

/// Promise: the log of the crate `rpma-log` keeps the promise of each scene.
#[test]
fn rpma_log_keeps_its_promises() {
    let suite = Suite::new(OfRpmaLog::right());
    suite
        .on(&Profile::STRICT, Platform::AdrDdioOn)
        .run()
        .check();
}

/// Some scenes of a log of another design. The longer test below has all of them.
fn some<S: Subject>(subject: impl Fn() -> S, scenes: &[&str]) {
    for scene in scenes {
        let suite = Suite::new(subject()).scene(scene);
        suite
            .on(&Profile::STRICT, Platform::AdrDdioOn)
            .run()
            .check();
    }
}

/// Promise: so does a log without a pointer, whose records are found by their checksums.
#[test]
fn a_log_without_a_pointer_keeps_its_promises() {
    some(|| Sums, &["unknown-stays", "newer-writer", "cuts"]);
}

/// Promise: so does the log of the documentation, which has threads, and whose commits the server's
/// processor makes durable.
#[test]
fn the_log_of_the_documentation_keeps_its_promises() {
    some(|| Blocking(SmallLog), &["two-writers", "together", "cuts"]);
}

/// The same in all scenes, on all devices and platforms.
#[test]
#[ignore = "long: 3 minutes"]
fn logs_keep_their_promises_everywhere() {
    Suite::new(OfRpmaLog::right()).everywhere().run().check();
    Suite::new(Sums).everywhere().run().check();
    Suite::new(Blocking(SmallLog)).everywhere().run().check();
}
