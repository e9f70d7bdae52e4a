//! A minute of each fuzz target, from the corpus in the repository. What a run finds beyond that
//! corpus stays in `target/fuzz`, for the next one.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::report::Report;
use crate::host::Workspace;

/// For how long a target runs, in seconds.
const TIME: u32 = 60;
/// The longest input. Decoders take at most a few hundred bytes, and changes of a memory are short.
const LEN: u32 = 512;

pub(super) fn run(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    let is_there = report.scenario("fuzz: cargo-fuzz", || {
        let found = cargo(workspace, &["fuzz", "--version"]).output();
        ensure!(
            found.is_ok_and(|found| found.status.success()),
            "it is not installed: rustup toolchain install nightly --profile minimal, and cargo install \
             cargo-fuzz --locked"
        );
        Ok(String::new())
    });
    let mut build = cargo(workspace, &["fuzz", "build", "-O"]);
    if !is_there || !report.check("fuzz: compile", &mut build)? {
        return Ok(());
    }
    for target in targets(workspace)? {
        let found = workspace.root().join("target/fuzz").join(&target);
        fs::create_dir_all(&found)?;
        let corpus = workspace.root().join("fuzz/corpus").join(&target);
        let mut fuzz = cargo(workspace, &["fuzz", "run", "-O", &target]);
        fuzz.args([found, corpus]).arg("--");
        fuzz.args([
            format!("-max_total_time={TIME}"),
            format!("-max_len={LEN}"),
            "-timeout=10".to_owned(),
        ]);
        report.check(&format!("fuzz: {target}"), &mut fuzz)?;
    }
    Ok(())
}

/// The names of the files in `fuzz/fuzz_targets`.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let mut targets = Vec::new();
    let dir = workspace.root().join("fuzz/fuzz_targets");
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        targets.push(name.context("a target has a name")?.to_owned());
    }
    targets.sort();
    Ok(targets)
}

fn cargo(workspace: &Workspace, args: &[&str]) -> Command {
    let mut cargo = Command::new("rustup");
    cargo.current_dir(workspace.root());
    // Those of the toolchain that runs this.
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(variable);
    }
    cargo.args(["run", "nightly", "cargo"]).args(args);
    cargo
}
