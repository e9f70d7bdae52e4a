//! Two hosts that work: every case passes, or its reason is named.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rpma::sim::{Platform, Profile};

use super::world::{Checked, Result, Text, World, profile};
use crate::args::{Ddio, Serve};
use crate::interrupt::Interrupt;
use crate::report::{Outcome, Output};

/// Cases that need native operations.
const NATIVE: [&str; 5] = [
    "flush-native-visible",
    "atomic-native",
    "order-atomic-native",
    "batch-native",
    "commit-native-visible",
];
const NATIVE_DURABLE: [&str; 2] = ["flush-native-durable", "commit-native-durable"];
const READING_DURABLE: [&str; 2] = ["flush-reading-durable", "commit-reading-durable"];
const SERVER_DURABLE: [&str; 1] = ["commit-server-durable"];

/// Cases that iWARP does not have: immediate data, and a queue pair that fails in silence.
const NOT_ON_IWARP: [&str; 4] = [
    "message-immediate",
    "message-write-immediate",
    "order-immediate",
    "connection-silent",
];

/// Promise: with ordinary memory, all cases pass except for those of persistence, and those of
/// operations that the device does not have.
#[test]
fn all_cases_pass_with_ordinary_memory() -> Result {
    all_cases_pass(&profile()).map(drop)
}

/// Promise: on iWARP, where a write or a message completes without an answer, a check claims no
/// reason that no completion has.
#[test]
fn a_refusal_is_the_end_of_the_connection_on_iwarp() -> Result {
    let checked = all_cases_pass(&Profile::SIW_6_12)?;
    let ended = "the connection has ended, and no completion has the reason";
    for case in [
        "message-too-long",
        "rights-outside",
        "rights-write",
        "rights-key",
    ] {
        let (_, detail) = checked.case(case).ok_or("the case ran")?;
        assert!(detail.contains(ended), "{case}: {detail}");
    }
    for case in NOT_ON_IWARP {
        let (_, detail) = checked.case(case).ok_or("the case ran")?;
        assert!(detail.contains("on iWARP"), "{case}: {detail}");
    }
    Ok(())
}

fn all_cases_pass(profile: &Profile) -> Result<Checked> {
    let world = World::of(profile.clone(), profile.clone());
    let server = world.start(&world.serve())?;
    let checked = world.check(&[])?;
    server.stop()?;
    assert!(checked.with("failed").is_empty(), "{:#}", checked.report);
    assert_eq!(checked.outcome, Outcome::Good);
    let durable = [&NATIVE_DURABLE[..], &READING_DURABLE, &SERVER_DURABLE].concat();
    let not_native = !profile.flushes_natively();
    let iwarp = *profile == Profile::SIW_6_12;
    let expected = [
        &durable[..],
        if not_native { &NATIVE } else { &[] },
        if iwarp { &NOT_ON_IWARP } else { &[] },
    ];
    assert_same(checked.with("not-possible"), &expected.concat());
    assert!(world.is_empty());
    Ok(checked)
}

/// Promise: a bond that fails over, or an event with an unknown number, ends no session of the
/// server and no case, on either side.
#[test]
fn notices_end_nothing() -> Result {
    let world = World::new();
    let server = world.start(&world.serve())?;
    let is_over = AtomicBool::new(false);
    let checked = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for (host, event) in [(&world.client, 14), (&world.server, 4711)] {
                    host.cm_event(event);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let checked = world.check(&["private-data", "connection", "flush", "commit", "message"]);
        is_over.store(true, Ordering::Relaxed);
        checked
    });
    server.stop()?;
    let checked = checked?;
    assert!(checked.with("failed").is_empty(), "{:#}", checked.report);
    assert!(!checked.with("passed").is_empty(), "{:#}", checked.report);
    Ok(())
}

/// Promise: which commits and flushes are durable follows the table of docs/persistence.md.
#[test]
fn durable_cases_follow_the_platform() -> Result {
    for platform in [
        Platform::AdrDdioOn,
        Platform::AdrDdioOff,
        Platform::Eadr,
        Platform::Volatile,
    ] {
        let world = World::new();
        let ddio = match platform {
            Platform::AdrDdioOff => Ddio::Off,
            _ => Ddio::On,
        };
        let serve = Serve {
            ddio,
            ..world.serve_pmem(platform)
        };
        let server = world.start(&serve)?;
        let checked = world.check(&["declaration", "flush", "commit"])?;
        server.stop()?;
        assert!(checked.with("failed").is_empty(), "{:#}", checked.report);
        assert_same(checked.with("not-possible"), &not_durable(platform));
    }
    Ok(())
}

/// The cases of flushes and commits that are not possible.
fn not_durable(platform: Platform) -> Vec<&'static str> {
    let profile = profile();
    let (native, adapter) = (profile.flushes_natively(), profile.is_adapter());
    let direct = platform == Platform::Eadr || platform == Platform::AdrDdioOff && adapter;
    let by_native = direct || platform != Platform::Volatile && native;
    let mut expected = Vec::new();
    if !native {
        expected.extend(["flush-native-visible", "commit-native-visible"]);
    }
    if !(native && by_native) {
        expected.extend(NATIVE_DURABLE);
    }
    if !direct {
        expected.extend(READING_DURABLE);
    }
    if platform == Platform::Volatile {
        expected.extend(SERVER_DURABLE);
    }
    expected
}

fn assert_same(mut found: Vec<&str>, expected: &[&str]) {
    let mut expected = expected.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Promise: `--fallback` uses no native operation.
#[test]
fn the_fallback_is_forced() -> Result {
    let world = World::new();
    let server = world.start(&world.serve())?;
    let mut args = world.args(&["flush", "atomic", "order", "batch"]);
    args.fallback = true;
    let checked = world.check_with(&args, &Interrupt::default())?;
    server.stop()?;
    assert!(checked.with("failed").is_empty(), "{:#}", checked.report);
    let (result, detail) = checked.case("atomic-native").ok_or("the case ran")?;
    assert_eq!(result, "not-possible");
    assert!(
        detail.contains("--fallback") || !profile().flushes_natively(),
        "{detail}"
    );
    Ok(())
}

/// Promise: a pair of which one device has no native operations uses the fallbacks.
#[test]
fn one_native_device_is_not_enough() -> Result {
    for (client, server) in [
        (Profile::RXE_6_12, Profile::RXE_6_1),
        (Profile::RXE_6_1, Profile::RXE_6_12),
        (Profile::STRICT, Profile::ADAPTER),
    ] {
        let world = World::of(client, server);
        let server = world.start(&world.serve())?;
        let checked = world.check(&["transfer", "flush", "atomic", "commit"])?;
        server.stop()?;
        assert!(checked.with("failed").is_empty(), "{:#}", checked.report);
        let (result, _) = checked.case("flush-native-visible").ok_or("it ran")?;
        assert_eq!(result, "not-possible");
    }
    Ok(())
}

/// Promise: one session follows the other, and memory that a session has overwritten is used again.
#[test]
fn a_server_serves_one_client_after_the_other() -> Result {
    let world = World::new();
    let args = world.serve_pmem(Platform::Eadr);
    for _ in 0..2 {
        let server = world.start(&args)?;
        for _ in 0..3 {
            let checked = world.check(&["transfer-zero", "message-large"])?;
            assert_eq!(checked.outcome, Outcome::Good, "{:#}", checked.report);
        }
        server.stop()?;
    }
    assert!(world.is_empty());
    Ok(())
}

/// Promise: a good end of a client, and one of the server, do not look like errors.
#[test]
fn the_output_of_a_server_has_good_ends() -> Result {
    let world = World::new();
    let (text, interrupt) = (Text::default(), Interrupt::default());
    let (out, ends) = (text.clone(), interrupt.clone());
    let args = world.serve_pmem(Platform::Eadr);
    let running = world
        .server
        .spawn(move || crate::serve::run(&args, &ends, &mut Output::to(out)));
    let wait_for = |words: &str| {
        while !text.string().contains(words) {
            assert!(!running.is_finished(), "{words:?} in {}", text.string());
            thread::yield_now();
        }
    };
    wait_for("listening on");
    let checked = world.check(&["transfer-zero"])?;
    assert_eq!(checked.outcome, Outcome::Good, "{:#}", checked.report);
    wait_for("has ended: the client has closed it");
    interrupt.set();
    let ended = running.join();
    assert!(matches!(ended, Ok(Ok(Outcome::Good))), "{ended:?}");
    let last = "the bytes that were overwritten are zero again\n";
    assert!(text.string().ends_with(last), "{}", text.string());
    Ok(())
}

/// Promise: the report has both hosts, and a place for each fact.
#[test]
fn the_report_names_both_hosts() -> Result {
    let world = World::new();
    let server = world.start(&world.serve())?;
    let checked = world.check(&["transfer-zero"])?;
    server.stop()?;
    let report = &checked.report;
    assert_eq!(report["simulated"], true);
    assert_eq!(report["passed"], 1);
    for host in ["client", "server"] {
        assert!(report[host]["device"].is_string(), "{report:#}");
        assert!(report[host]["native_flush"].is_boolean(), "{report:#}");
        // A simulated host has no files.
        assert!(report[host]["kernel"].is_null(), "{report:#}");
    }
    assert_eq!(report["server"]["memory"]["kind"], "ordinary memory");
    assert!(
        report["time"]
            .as_str()
            .is_some_and(|time| time.len() == "2026-01-31T23:59:59Z".len() && time.ends_with('Z'))
    );
    Ok(())
}
