//! `cargo xtask bench`: the costs of operations, counted by tests/cost: in the guest beside others,
//! and on the simulated fabric to see whether they have grown. There tests/clients counts as well.

use std::fs;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::{Lab, PACKAGE};
use crate::process::output;
use crate::progress::run_step;
use crate::test::FEATURES;

/// Where the counts of the last record are, in the clone.
const COUNTS: &str = "tests/cost/counts.txt";

/// Counts instructions, and prints the requested table of tests/cost.
pub(crate) fn cost(workspace: &Workspace, what: &[&str]) -> Result<ExitStatus> {
    let mut lab = open(workspace)?;
    Ok(command(&mut lab)?.arg("--").args(what).status()?)
}

/// Measures times, by the instructions that pass meanwhile.
pub(crate) fn time(workspace: &Workspace) -> Result<ExitStatus> {
    let mut lab = open(workspace)?;
    lab.count_instructions();
    Ok(command(&mut lab)?.args(["--", "time"]).status()?)
}

/// Runs `rpma perf` with many settings, in the same way.
pub(crate) fn perf(workspace: &Workspace) -> Result<ExitStatus> {
    let mut lab = open(workspace)?;
    let mut build = lab.cargo(Headers::Native, "build --release -p rpma-cli --bin rpma")?;
    run_step(
        "compile rpma",
        &mut build,
        &workspace.log_file("bench-rpma.log")?,
    )?;
    lab.count_instructions();
    Ok(command(&mut lab)?.args(["--", "perf"]).status()?)
}

/// Records the counts of this library.
pub(crate) fn record_cost(workspace: &Workspace) -> Result<()> {
    let counts = output(&mut simulated(workspace, "record")?)?;
    ensure!(
        counts.lines().count() > 1,
        "nothing was counted: {counts:?}"
    );
    Ok(fs::write(workspace.root().join(COUNTS), counts)?)
}

fn open(workspace: &Workspace) -> Result<Lab<'_>> {
    let lab = Lab::open(workspace, "bench", false)?;
    let mut build = lab.cargo(Headers::Native, "bench --no-run --bench cost")?;
    run_step("compile", &mut build, &workspace.log_file("bench.log")?)?;
    Ok(lab)
}

/// Fails if an operation costs more than recorded.
pub(crate) fn check_cost(workspace: &Workspace) -> Result<Command> {
    simulated(workspace, "check")
}

/// Fails if a client costs its server more beside thousands of others than beside ten.
pub(crate) fn check_clients(workspace: &Workspace) -> Command {
    workspace.cargo(&format!(
        "bench --locked -p {PACKAGE} {FEATURES} --bench clients"
    ))
}

/// Of this library alone, without a device.
fn simulated(workspace: &Workspace, action: &str) -> Result<Command> {
    let mut bench = workspace.cargo(&format!(
        "bench --locked -p {PACKAGE} {FEATURES} --bench cost --"
    ));
    bench.args([action, &compiler(workspace)?]);
    Ok(bench)
}

fn command(lab: &mut Lab<'_>) -> Result<Command> {
    let mut bench = lab.cargo_on_device(Headers::Native, "bench", Duration::ZERO)?;
    bench.args(["--bench", "cost"]);
    Ok(bench)
}

/// Other compilers, other instructions.
fn compiler(workspace: &Workspace) -> Result<String> {
    let mut rustc = Command::new("rustc");
    let version = output(rustc.arg("--version").current_dir(workspace.root()))?;
    Ok(version.trim().to_owned())
}
