//! Miri, ThreadSanitizer and AddressSanitizer over the whole library on the simulated fabric. They
//! take a nightly toolchain of one date, so that their results stay the same.

use std::process::Command;

use anyhow::{Result, ensure};

use super::report::Report;
use super::sim::FEATURES;
use crate::host::Workspace;
use crate::lab::PACKAGE;

const NIGHTLY: &str = "nightly-2026-05-20";

/// The tests that Miri runs of a program: those with `only` in their names, except for those that
/// have one of `slow`. Most of the slow ones take it more than a minute.
struct Interpreted {
    program: &'static str,
    only: &'static str,
    slow: &'static [&'static str],
}

/// The modules of rpma-async, which have subjects of the same names as others.
const AWAITED: &str = "awaited::";

const MIRI: [Interpreted; 7] = [
    Interpreted {
        program: "fabric",
        only: "strict::",
        slow: &[],
    },
    Interpreted {
        program: "device",
        only: "batch::",
        slow: &[AWAITED],
    },
    // The last one writes 24 bytes one by one over a word of 8. This Miri panics at atomic accesses
    // of two sizes, also if one follows the other.
    Interpreted {
        program: "device",
        only: "commit::",
        slow: &[
            AWAITED,
            "everything_is_there_with_one_completion",
            "a_pointer_beside_its_data_is_right",
        ],
    },
    Interpreted {
        program: "device",
        only: "writer::",
        slow: &[AWAITED],
    },
    Interpreted {
        program: "device",
        only: "srq::",
        slow: &[
            AWAITED,
            "every_refusal_of_a_shared_receive_queue",
            "objects_may_be_dropped_in_any_order",
            "a_failed_connection_leaves_the_receives_to_the_others",
        ],
    },
    // The last two: one asks for a file, which Miri does not have, and one sleeps for seconds.
    Interpreted {
        program: "fabric",
        only: "power::cuts::",
        slow: &[
            "a_sample_is_by_the_seed",
            "an_image_can_be_mapped",
            "a_check_is_not_called_after_its_end",
        ],
    },
    Interpreted {
        program: "fabric",
        only: "threads::",
        slow: &[
            "power::threads::",
            "a_deadlock_is_told",
            "a_lock_is_shared_between_fabrics",
            "a_lost_notification_is_found",
            "an_end_is_repeated",
            "the_same_program_is_repeated_by_its_seed",
            "the_seed_chooses_who_is_woken",
        ],
    },
];

/// The subjects that the sanitizers run, by program: most of those with threads, or unsafe code
/// below.
const SANITIZED: [(&str, &[&str]); 2] = [
    (
        "device",
        &[
            "atomic::",
            "batch::",
            "commit::",
            "events::",
            "failing::",
            "messages::",
            "next::",
            "responder::",
            "srq::",
            "teardown::",
            "transfer::",
            "wait::",
            "writer::",
        ],
    ),
    (
        "fabric",
        &[
            "links::",
            "order::",
            "power::",
            "replicas::",
            "sweep::",
            "threads::",
        ],
    ),
];

/// The tests of rpma-async that take the sanitizers more than a minute: each byte that a server
/// persists is looked at.
const SLOW_ASYNC: [&str; 3] = ["a_dropped_wait_undoes_nothing", "replicas::", "serving::"];

/// The crate with unit tests that run as well: they cover its references into registered memory,
/// and the files that `tests/loom` includes.
const ASYNC: &str = "rpma-async";

/// The crate whose unit tests Miri runs as well: they cover the way of finding stores that
/// compares.
const SIM: &str = "rpma-sim";

/// A work request names memory by a number.
const MIRIFLAGS: &str = "-Zmiri-permissive-provenance";

pub(super) fn miri(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    if !is_installed(report, "miri") {
        return Ok(());
    }
    for Interpreted {
        program,
        only,
        slow,
    } in MIRI
    {
        let mut miri = nightly(workspace, "miri test", PACKAGE);
        miri.env("MIRIFLAGS", MIRIFLAGS);
        miri.args(["--test", program, "--no-fail-fast", "--", only]);
        for test in slow {
            miri.args(["--skip", test]);
        }
        report.cargo_test(&format!("miri: {only}"), &mut miri)?;
    }
    let mut miri = nightly(workspace, "miri test", ASYNC);
    miri.env("MIRIFLAGS", MIRIFLAGS);
    miri.args(["-p", SIM, "--lib", "--no-fail-fast"]);
    report.cargo_test(&format!("miri: {ASYNC} and {SIM}"), &mut miri)?;
    Ok(())
}

pub(super) fn sanitizers(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    if !is_installed(report, "sanitizers") {
        return Ok(());
    }
    // ThreadSanitizer does not see assembly.
    for (name, flags) in [
        ("thread", "-Zsanitizer=thread --cfg rpma_portable_copies"),
        ("address", "-Zsanitizer=address"),
    ] {
        let test = |package| {
            // The standard library has to be compiled for it as well.
            let mut test = nightly(workspace, "test -Zbuild-std", package);
            test.args([
                "--target",
                &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
            ]);
            test.env("RUSTFLAGS", flags);
            // A failing destroy leaks on purpose.
            test.env("ASAN_OPTIONS", "detect_leaks=0");
            test.env(
                "CARGO_TARGET_DIR",
                workspace.root().join("target").join(name),
            );
            test.arg("--no-fail-fast");
            test
        };
        for (program, subjects) in SANITIZED {
            let mut tests = test(PACKAGE);
            tests.args(["--test", program, "--", "--skip", AWAITED]);
            tests.args(subjects);
            report.cargo_test(&format!("sanitizer: {name}, {program}"), &mut tests)?;
        }
        let mut awaited = test(PACKAGE);
        awaited.args(["--test", "device", "--", AWAITED]);
        for slow in SLOW_ASYNC {
            awaited.args(["--skip", slow]);
        }
        report.cargo_test(&format!("sanitizer: {name}, awaited"), &mut awaited)?;
        let mut units = test(ASYNC);
        units.arg("--lib");
        report.cargo_test(&format!("sanitizer: {name}, {ASYNC}"), &mut units)?;
    }
    Ok(())
}

fn nightly(workspace: &Workspace, command: &str, package: &str) -> Command {
    let mut cargo = Command::new("rustup");
    cargo.current_dir(workspace.root());
    // Those of the toolchain that runs this.
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(variable);
    }
    cargo.args(["run", NIGHTLY, "cargo"]);
    cargo.args(command.split(' '));
    cargo.args(["--locked", "-p", package]);
    cargo.args(FEATURES.split(' '));
    cargo.env("RPMA_SIM_SHARE", "all");
    cargo
}

/// Whether the toolchain is there; if not, that is a failure.
fn is_installed(report: &mut Report<'_>, what: &str) -> bool {
    report.scenario(&format!("{what}: {NIGHTLY}"), || {
        let mut miri = Command::new("rustup");
        let found = miri.args(["run", NIGHTLY, "cargo", "miri", "--version"]).output();
        ensure!(
            found.is_ok_and(|found| found.status.success()),
            "it is not installed: rustup toolchain install {NIGHTLY} --profile minimal -c miri -c rust-src"
        );
        Ok(String::new())
    })
}
