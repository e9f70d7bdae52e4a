//! Each fault that can be put into `rpma-log` breaks the promise of a scene.

use std::collections::BTreeSet;
use std::env;

use rpma_log::Fault;
use rpma_scenes::{Outcome, Played, Suite};

use crate::found_by::{BREAK, FOUND_BY, FOUND_BY_SCENE};
use crate::of_rpma_log::OfRpmaLog;
use crate::sums::Sums;

/// No scene finds it: a writer of the suite has a higher epoch than those before it.
const SAME_INSTANCE: &str = "same-instance";
/// With this one the log does not even open.
const NO_RECOUNT: &str = "no-recount";

/// The other scenes, each with a fault that it finds as well.
const FIND_AS_WELL: [(&str, &str); 20] = [
    ("late-answer", "reads-one"),
    ("returns", "joins-ungated"),
    ("dies-joining", "reads-one"),
    ("restarts", "joins-early"),
    ("writer-dies", "no-set-back"),
    ("dies-filling", "header-first"),
    ("two-writers", "joins-ungated"),
    ("two-replaced", "ignores-lists"),
    ("writer-in-change", "no-joint-list"),
    ("slow-change", "reads-old-list"),
    ("cuts-in-change", "list-in-place"),
    ("cuts", "visible"),
    ("joint-cuts", "posted"),
    ("cuts-in-recovery", "tells-early"),
    ("orders", "tells-early"),
    ("orders-of-recovery", "tells-early"),
    ("dies-appending", "trusts-records"),
    ("reads-unknown", "one-copy"),
    ("each-fault", "keeps-epoch"),
    ("several-faults", "keeps-epoch"),
];

fn fault(name: &str) -> Fault {
    name.parse().unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Whether a fault is the one that the variable names, if it does.
fn is_chosen(name: &str) -> bool {
    env::var(BREAK).map_or(true, |only| only == name)
}

fn is_found(name: &str, scene: &str) {
    let report = Suite::new(OfRpmaLog::with(fault(name))).scene(scene).find();
    let failure = report.failure();
    let failure = failure.unwrap_or_else(|| panic!("{scene} does not find {name}: {report}"));
    println!("{name} is found in {:.1?}.\n{failure}\n", failure.time());
}

/// Promise: the scene of the table finds the fault.
#[test]
fn each_fault_is_found_by_its_scene() {
    for (name, scene) in FOUND_BY_SCENE.iter().filter(|(name, _)| is_chosen(name)) {
        is_found(name, scene);
    }
}

/// Promise: each other scene finds a fault as well.
#[test]
#[ignore = "long: 10 seconds"]
fn each_scene_finds_a_fault() {
    for (scene, name) in FIND_AS_WELL {
        is_found(name, scene);
    }
}

/// Promise: a choice by the order of the servers is found, because each server is away in a run.
#[test]
fn a_log_that_takes_the_first_server_is_found() {
    let report = Suite::new(Sums::TakesFirst).scene("was-away").find();
    assert!(report.failure().is_some(), "{report}");
}

/// Promise: no scene before that of the table finds the fault.
#[test]
#[ignore = "long: 1 minute"]
fn each_fault_is_found_by_its_scene_first() {
    let table = FOUND_BY_SCENE.iter().filter(|(name, _)| is_chosen(name));
    let table: Vec<_> = table.copied().collect();
    let first = table.iter().map(|(name, _)| {
        let report = Suite::new(OfRpmaLog::with(fault(name))).find();
        let failure = report.failure().map(Played::scene);
        (*name, failure.unwrap_or("none"))
    });
    assert_eq!(Vec::from_iter(first), table);
}

fn report_of(name: &str, scene: &str) -> String {
    let report = Suite::new(OfRpmaLog::with(fault(name))).scene(scene).find();
    let failure = report.failure().expect("the scene of the table");
    failure.to_string()
}

/// Promise: the report of a loss of power has the calls of the log, the recoveries, and the records of
/// each server. If one that ran had all of them, the report leads to the recovery.
#[test]
fn the_report_of_a_loss_has_the_calls_and_the_recoveries() {
    let report = report_of("trusts-records", "dies-appending");
    for text in [
        "\nThe records whose bytes are in the image:\n    server-0: 0",
        "look at the recovery, and not only at flushes",
        "\nThe recoveries from the image, one after the other:\n    server-",
        "\nThe power fails at event ",
        "\n    writer 2 appends record 2, 40 bytes: durable at ",
    ] {
        assert!(report.contains(text), "{report}");
    }
}

/// Promise: the report of a scene has the records of each server, at each loss of power and at the end.
#[test]
fn the_report_has_the_records_of_each_server() {
    let report = report_of("tells-early", "unknown-stays");
    for text in [
        "\n    the power of server-0 fails. Records that are left in its memory: 0",
        "\nThe records whose bytes are in the memories at the end:\n    server-0: 0",
    ] {
        assert!(report.contains(text), "{report}");
    }
}

/// Promise: a record that is lost is reported with the servers that had it before the opening, also
/// in an image, and if the opening has overwritten it.
#[test]
fn the_report_of_a_lost_record_has_its_servers() {
    for (name, scene, right) in [
        (
            "reads-one",
            "was-away",
            "record 1 (at 64) was durable, and is lost. Before writer 2 opened the log, server-0, server-1, server-2 \
             ran, and server-0, server-1 had the bytes of record 1. Writer 2 ",
        ),
        (
            "posted",
            "joint-cuts",
            "record 1 (at 64) was durable, and is lost. Before writer 12 opened the log, server-1, server-2 ran, and \
             only server-0 had the bytes of record 1. Writer 12 ",
        ),
        (
            "takes-place",
            "after-unknown",
            "record 2 (at 64) was durable, and is lost: record 1 is read in its place. Before writer 2 opened the log, \
             server-0, server-2 ran, and server-0, server-1 had the bytes of record 2. Writer 2 ",
        ),
    ] {
        let report = report_of(name, scene);
        let why = report.lines().nth(2).expect("a third line");
        assert!(why.starts_with(right), "{report}");
    }
}

/// Promise: the report of a scene under faults has those that the failure needs, and their places.
#[test]
fn the_report_has_the_faults() {
    for (scene, with) in [
        ("each-fault", "\nwith the fault \""),
        ("several-faults", "\nwith the faults \""),
    ] {
        let report = report_of("keeps-epoch", scene);
        let after = report.split_once(with).expect(&report).1;
        let lines: Vec<_> = after.lines().collect();
        let (fault, rest) = lines[0].split_once('"').expect(&report);
        let alone = format!(": run it alone with RPMA_SIM_FAULT=\"{fault}\"");
        assert_eq!(rest, alone, "{report}");
        let happened = lines[1..]
            .iter()
            .take_while(|line| line.starts_with("    "));
        let places = happened.filter(|line| line.contains("on ") && line.contains(", at "));
        assert_eq!(places.count(), fault.split("; ").count(), "{report}");
    }
}

/// Promise: the report has the waits of a scene, and not the pauses in which requests arrive.
#[test]
fn the_report_has_the_waits() {
    let report = report_of("gives-up", "minutes-away");
    let lines = report.lines().map(str::trim);
    let lines = lines.skip_while(|line| !line.starts_with("the scene waits for "));
    let [away, starts, returns, ..] = Vec::from_iter(lines)[..] else {
        panic!("{report}");
    };
    assert!(away.starts_with("the scene waits for 1"), "{report}");
    assert!(starts.contains(" starts at "), "{report}");
    assert_eq!(returns, "the scene waits for 30s", "{report}");
}

/// Promise: the report of damage has the bit.
#[test]
fn the_report_of_damage_has_the_bit() {
    let report = report_of("no-length", "damage");
    let has_bit = |line: &str| {
        let flips = line.strip_prefix("    bit ");
        flips.is_some_and(|flips| flips.contains(" of the memory of server-"))
    };
    assert!(report.lines().any(has_bit), "{report}");
}

/// Promise: a scene that is not tried has its reason in the answer.
#[test]
#[should_panic(expected = "not tried, as the log is not able to replace a server")]
fn a_scene_that_is_not_tried_has_its_reason() {
    Suite::new(Sums::Right).scene("old-list").run().check();
}

/// Promise: a log that does not open passes no scene.
#[test]
fn a_log_that_does_not_open_is_not_tried() {
    let report = Suite::new(OfRpmaLog::with(fault(NO_RECOUNT))).run();
    let is_tried = |played: &&Played| !matches!(played.outcome(), Outcome::NotTried(_));
    let tried = report.scenes().iter().find(is_tried);
    assert!(tried.is_none(), "{report}");
}

/// Promise: each fault has a scene that finds it, and each scene a fault that it finds.
#[test]
fn the_table_has_each_fault() {
    let of_table = FOUND_BY_SCENE.iter().map(|(name, _)| *name);
    let others = [
        SAME_INSTANCE,
        NO_RECOUNT,
        // Only a lost flush shows it.
        Fault::TrustsWords.name(),
        Fault::Nothing.name(),
    ];
    let table: BTreeSet<_> = of_table.chain(others).collect();
    let all: BTreeSet<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
    assert_eq!(table, all);
    assert!(FOUND_BY.iter().all(|(name, _)| all.contains(name)));
    let of_tables = FOUND_BY_SCENE.iter().map(|(_, scene)| *scene);
    let of_tables: BTreeSet<_> = of_tables
        .chain(FIND_AS_WELL.map(|(scene, _)| scene))
        .collect();
    let scenes: BTreeSet<_> = Suite::<OfRpmaLog>::names().iter().map(|of| of.0).collect();
    assert_eq!(of_tables, scenes);
}
