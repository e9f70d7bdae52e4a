//! The scenes of the crate `rpma-scenes`, with logs of several designs: right ones, and ones with a
//! fault.

#[allow(dead_code, unreachable_pub, reason = "it is a program as well")]
#[path = "../../rpma-scenes/examples/awaited-log.rs"]
mod awaited_log;
mod faults;
#[path = "../fabric/replicated_log/found_by.rs"]
mod found_by;
mod of_rpma_log;
#[allow(dead_code, unreachable_pub, reason = "it is a program as well")]
#[path = "../../rpma-scenes/examples/small-log.rs"]
mod small_log;
mod sums;

use rpma::sim::{Platform, Profile};
use rpma_scenes::{Blocking, Outcome, Subject, Suite};

use awaited_log::AwaitedLog;
use of_rpma_log::{OfRpmaLog, OnThreads};
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

/// Promise: over soft-iWARP it does so, too. (On threads, because a call that connects blocks there.)
#[test]
#[ignore = "long: 1 minute"]
fn rpma_log_keeps_its_promises_over_iwarp() {
    let suite = Suite::new(Blocking(OnThreads(OfRpmaLog::right())));
    let suite = suite.on(&Profile::SIW_6_12, Platform::AdrDdioOn);
    suite.run().check();
}

/// Promise: in the longer setting it does so, too, on hosts of two other kinds.
#[test]
#[ignore = "long: minutes"]
fn rpma_log_keeps_its_promises_in_long_runs() {
    for (profile, platform) in [
        (Profile::RXE_6_12, Platform::Eadr),
        (Profile::ADAPTER, Platform::AdrDdioOff),
    ] {
        let suite = Suite::new(OfRpmaLog::right()).long();
        suite.on(&profile, platform).run().check();
    }
}

/// Promise: with other numbers of servers and copies it does so, too. (If a new writer needs more
/// servers than a record has copies, a fault in the middle of the creation may leave too few.)
#[test]
#[ignore = "long: 40 seconds"]
fn other_numbers_keep_their_promises() {
    for (servers, copies) in [(1, 1), (2, 2), (4, 3), (5, 3)] {
        println!("{copies} of {servers}");
        Suite::new(OfRpmaLog::of(servers, copies)).run().check();
    }
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

/// Promise: so does the same log on threads, also while a server is replaced.
#[test]
fn rpma_log_keeps_its_promises_on_threads() {
    let subject = || Blocking(OnThreads(OfRpmaLog::right()));
    some(subject, &["after-unknown", "writer-in-change"]);
}

/// Promise: so does a log without a pointer, whose records are found by their checksums.
#[test]
fn a_log_without_a_pointer_keeps_its_promises() {
    some(|| Sums::Right, &["unknown-stays", "newer-writer", "cuts"]);
}

/// Promise: so does the log of the documentation, which has threads, and whose commits the server's
/// processor makes durable.
#[test]
fn the_log_of_the_documentation_keeps_its_promises() {
    some(|| Blocking(SmallLog), &["two-writers", "together", "cuts"]);
}

/// Promise: so does the awaited log of the documentation, which has one server.
#[test]
fn the_awaited_log_of_the_documentation_keeps_its_promises() {
    some(|| AwaitedLog, &["two-writers", "together", "cuts"]);
}

/// Promise: the documentation of the crate has each scene with its promise, in their order.
#[test]
fn the_documentation_has_each_scene() {
    let line = |(name, promise)| format!("| `{name}` | {promise} |\n");
    let lines = Suite::<OfRpmaLog>::names().into_iter().map(line);
    let table = ["| scene | promise |\n|---|---|\n".to_owned()];
    let table: String = table.into_iter().chain(lines).collect();
    let found = include_str!("../../rpma-scenes/scenes.md");
    assert_eq!(found, table, "rpma-scenes/scenes.md is to be:\n{table}");
}

/// Plays all scenes on all devices. Where no memory is persistent, no log opens.
fn all_everywhere<S: Subject>(subject: S) {
    let is_lacking = |outcome: &Outcome| matches!(outcome, Outcome::NotTried(why) if why.contains("the log is not able"));
    let report = Suite::new(subject).everywhere().run();
    if report.scenes().iter().all(|of| is_lacking(of.outcome())) {
        // The one that `RPMA_SCENE` names.
        return println!("{report}");
    }
    report.check();
    for played in report
        .scenes()
        .iter()
        .filter(|of| of.platform().is_persistent())
    {
        let is_right = *played.outcome() == Outcome::Passed || is_lacking(played.outcome());
        assert!(is_right, "{played}");
    }
}

/// Promise: each of these logs keeps its promises in all scenes, on all devices and platforms.
#[test]
#[ignore = "long: 2 minutes"]
fn logs_keep_their_promises_everywhere() {
    all_everywhere(OfRpmaLog::right());
    all_everywhere(Blocking(OnThreads(OfRpmaLog::right())));
    all_everywhere(Sums::Right);
    all_everywhere(AwaitedLog);
    all_everywhere(Blocking(SmallLog));
}
