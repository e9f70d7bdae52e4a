//! Compiling the examples.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::guest::Guest;
use crate::guest::chroot::{self, Headers};
use crate::host::{Toolchain, Workspace};
use crate::progress::{Step, run_step};

const STEP: &str = "compile the examples";

/// In the guest's root. Returns the directory of the programs, as the guest sees it.
pub(super) fn in_guest(workspace: &Workspace, guest: &Guest, examples: &[&str]) -> Result<PathBuf> {
    let toolchain = Toolchain::find(workspace)?;
    let log = log(workspace)?;
    let mut fetch = workspace.cargo();
    run_step(
        "fetch dependencies",
        fetch.args(["fetch", "--locked"]),
        &log,
    )?;
    let mut cargo = chroot::command(guest, workspace, &toolchain, Headers::Native, "cargo")?;
    run_step(STEP, arguments(&mut cargo, examples), &log)?;
    Ok(PathBuf::from("/src/target/guest/debug/examples"))
}

/// On this host. Returns the directory of the programs.
pub(super) fn on_host(workspace: &Workspace, examples: &[&str]) -> Result<PathBuf> {
    let log = log(workspace)?;
    let mut cargo = workspace.cargo();
    arguments(&mut cargo, examples).arg("--message-format=json-render-diagnostics");
    let step = Step::start(STEP);
    let output = cargo.stderr(Stdio::inherit()).output()?;
    std::fs::write(&log, &output.stdout)?;
    if !output.status.success() {
        step.failed("");
        bail!("the examples do not build; see {}", log.display());
    }
    step.done("");
    // Wherever cargo puts them.
    let programs = crate::test::executables(&log)?;
    let dir = programs.get(examples[0]).and_then(|path| path.parent());
    dir.map(Path::to_owned)
        .with_context(|| format!("cargo did not build {}", examples[0]))
}

fn arguments<'a>(cargo: &'a mut Command, examples: &[&str]) -> &'a mut Command {
    cargo.args(["build", "--locked"]);
    for example in examples {
        cargo.args(["--example", example]);
    }
    cargo
}

fn log(workspace: &Workspace) -> Result<PathBuf> {
    workspace.log_file("demo-build.log")
}
