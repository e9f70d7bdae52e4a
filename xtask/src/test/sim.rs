//! The device tests of one process, on the simulated fabric: in parallel, for each kind of device.

use anyhow::Result;

use super::report::Report;
use crate::host::Workspace;
use crate::lab::PACKAGE;

/// A kind of device, by its name in tests/common/fabric.rs, and the tests that are not for it.
const PROFILES: [(&str, &[&str]); 3] = [
    ("rxe-6.12", &[]),
    // It has neither native flush nor native atomic write.
    (
        "rxe-6.1",
        &[
            "is_there_to_be_tested",
            "a_native_operation_that_fails_and_happens_all_the_same",
        ],
    ),
    ("strict", &[]),
];

/// They wait most of the time.
const THREADS: &str = "16";

/// What is compiled for it.
pub(super) const FEATURES: &str = "--no-default-features --features sim";

pub(super) fn run(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    let tests = format!("test --locked -p {PACKAGE} {FEATURES} --tests");
    let mut build = workspace.cargo(&format!("{tests} --no-run"));
    if !report.check("simulated: build", &mut build)? {
        return Ok(());
    }
    // The README's first command.
    let mut sim_log = workspace.cargo(&format!("run --locked {FEATURES} --example sim-log"));
    report.check("simulated: sim-log", &mut sim_log)?;
    // The examples in the documentation, of which those of `rpma::sim` need it.
    let mut doc = workspace.cargo(&format!(
        "test --locked --doc -p rpma -p rpma-sim {FEATURES}"
    ));
    report.cargo_test("simulated: documentation", &mut doc)?;
    for (profile, others) in PROFILES {
        let mut test = workspace.cargo(&format!("{tests} --no-fail-fast --"));
        test.env("RPMA_SIM_PROFILE", profile);
        test.env("RUST_TEST_THREADS", THREADS);
        for other in others {
            test.args(["--skip", other]);
        }
        report.cargo_test(&format!("simulated: {profile}"), &mut test)?;
    }
    Ok(())
}
