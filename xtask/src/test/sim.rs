//! The device tests of one process, on the simulated fabric: in parallel, for each kind of device;
//! and those of the simulated fabric itself.

use std::fmt;
use std::process::Command;

use anyhow::{Result, ensure};

use super::Options;
use super::left_out::{self, On};
use super::report::Report;
use super::subjects::{listed, programs_with};
use crate::bench;
use crate::host::Workspace;
use crate::lab::{ONE_PROCESS, PACKAGE};
use crate::process::output;

/// A kind of device, by its name in tests/common/fabric.rs, and the tests that are not for it.
const PROFILES: [(&str, &[&str]); 4] = [
    ("rxe-6.12", &[]),
    ("rxe-6.1", NATIVE),
    ("strict", &[]),
    ("adapter", NATIVE),
];

/// The tests that need a native flush and a native atomic write.
const NATIVE: &[&str] = &[
    "is_there_to_be_tested",
    "a_native_operation_that_fails_and_happens_all_the_same",
];

/// soft-iWARP, on which `left_out.rs` has the tests that cannot pass.
const IWARP: &str = "siw-6.12";

/// Of the tests about the simulator these run on the device that the environment names.
const LOG: Log = Log {
    program: "fabric",
    subject: "replicated_log::",
};

struct Log {
    program: &'static str,
    subject: &'static str,
}

/// Test programs, as arguments of cargo.
struct Programs(Vec<String>);

impl Programs {
    /// Those that need a feature.
    fn only(workspace: &Workspace, feature: &str) -> Result<Self> {
        let programs = programs_with(workspace, &[feature])?;
        ensure!(!programs.is_empty(), "no test program needs {feature}");
        Ok(Self(programs))
    }
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |program: &String| format!("--test {program}");
        f.write_str(&self.0.iter().map(each).collect::<Vec<_>>().join(" "))
    }
}

/// They wait most of the time.
const THREADS: &str = "16";

/// The features for it.
pub(crate) const FEATURES: &str = "--no-default-features --features sim";

pub(super) fn run(report: &mut Report<'_>, workspace: &Workspace, options: Options) -> Result<()> {
    let tests = format!("test --locked -p {PACKAGE} {FEATURES} --tests");
    let mut build = workspace.cargo(&format!("{tests} --no-run"));
    if !report.check("simulated: build", &mut build)? {
        return Ok(());
    }
    // The README's first command.
    let mut sim_log = workspace.cargo(&format!("run --locked {FEATURES} --example sim-log"));
    report.check("simulated: sim-log", &mut sim_log)?;
    // The examples in the documentation. Those of `rpma::sim` need it.
    let mut doc = workspace.cargo(&format!(
        "test --locked --doc -p rpma -p rpma-async -p rpma-log -p rpma-sim {FEATURES} --features rpma-log/tokio"
    ));
    report.cargo_test("simulated: documentation", &mut doc)?;
    // The commands of rpma-cli, both sides in one process, and the judge of rpma-scenes.
    let mut cli = workspace.cargo(&format!(
        "test --locked -p rpma-cli -p rpma-scenes {FEATURES} --no-fail-fast"
    ));
    report.cargo_test("simulated: rpma-cli, rpma-scenes", &mut cli)?;
    // Its reader of callgrind's requests is of this processor.
    if cfg!(target_arch = "x86_64") {
        let what = "simulated: the data path costs no more than recorded";
        report.check(what, &mut bench::check_cost(workspace)?)?;
        let what = "simulated: a client costs as much beside ten thousand";
        report.check(what, &mut bench::check_clients(workspace))?;
    }
    // The tests about the simulator, on every kind of device by itself; and the tests that run in
    // the guest as well, for each kind.
    let own = Programs::only(workspace, "sim")?;
    let both = Programs::only(workspace, ONE_PROCESS)?;
    let tests = format!("test --locked -p {PACKAGE} {FEATURES} --no-fail-fast");
    // Tests of many similar items have a share of them: another one for each profile.
    let share = |number: usize| {
        if options.long {
            "all".to_owned()
        } else {
            number.to_string()
        }
    };
    let mut test = workspace.cargo(&format!("{tests} {own} --"));
    test.env("RUST_TEST_THREADS", THREADS);
    test.env("RPMA_SIM_SHARE", share(0));
    report.cargo_test("simulated: every device", &mut test)?;
    for (number, (profile, others)) in PROFILES.into_iter().enumerate() {
        let mut test = workspace.cargo(&format!("{tests} {both} --"));
        test.env("RPMA_SIM_PROFILE", profile);
        test.env("RPMA_SIM_SHARE", share(number));
        test.env("RUST_TEST_THREADS", THREADS);
        for other in others {
            test.args(["--skip", other]);
        }
        report.cargo_test(&format!("simulated: {profile}"), &mut test)?;
    }
    let step = format!("simulated: {IWARP}");
    match over_iwarp(workspace, &tests) {
        Ok(mut test) => {
            test.env("RPMA_SIM_SHARE", share(0));
            report.cargo_test(&step, &mut test)?;
        }
        Err(error) => report.not_run(&step, &error),
    }
    Ok(())
}

/// The tests of soft-iWARP: those of the device and of the replicated log that can pass there.
fn over_iwarp(workspace: &Workspace, tests: &str) -> Result<Command> {
    let tests_of = |program: &str| -> Result<_> {
        let mut list = workspace.cargo(&format!("{tests} --test {program} --"));
        Ok(listed(&output(list.args(["--list", "--format=terse"]))?))
    };
    let mut all = tests_of(left_out::PROGRAM)?;
    let log = tests_of(LOG.program)?.into_iter();
    all.extend(log.filter(|test| test.starts_with(LOG.subject)));
    let left = left_out::of(On::Simulated);
    let able = left_out::without(all.iter().cloned(), &all, left)?;
    let programs = format!("--test {} --test {}", left_out::PROGRAM, LOG.program);
    let mut test = workspace.cargo(&format!("{tests} {programs} --"));
    test.env("RPMA_SIM_PROFILE", IWARP);
    test.env("RUST_TEST_THREADS", THREADS);
    test.arg("--exact").args(able);
    Ok(test)
}
