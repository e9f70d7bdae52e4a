//! `cargo xtask test PROGRAM`: the tests of one device test program; and the list of all of them.

use std::process::ExitStatus;

use anyhow::Result;

use super::{Options, programs};
use crate::guest::chroot::Headers::Native;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::process::output;
use crate::progress::run_step;

/// The programs that start the examples.
const STARTS_EXAMPLES: [&str; 2] = ["examples", "swapped"];

/// Runs the tests of a program that have one of `names` in theirs, with all that they print. (cargo
/// itself says so if there is no such program.)
pub(crate) fn some(
    workspace: &Workspace,
    program: &str,
    names: &[String],
    options: Options,
) -> Result<ExitStatus> {
    let mut lab = Lab::open(workspace, "test", options.host)?;
    // First what can fail without a machine.
    let mut builds = vec![lab.cargo(Native, &format!("test --no-run --test {program}"))?];
    if STARTS_EXAMPLES.contains(&program) {
        builds.push(lab.cargo(Native, "build --examples")?);
    }
    for mut build in builds {
        let status = build.status()?;
        if !status.success() {
            return Ok(status);
        }
    }
    let mut test = lab.cargo_on_device(Native, options.limit())?;
    test.args(["--test", program, "--", "--nocapture"]);
    test.args(options.long_args()).args(names);
    Ok(test.status()?)
}

/// Prints the device tests, each as it is given to `cargo xtask test`.
pub(crate) fn list(
    workspace: &Workspace,
    program: Option<&String>,
    names: &[String],
    host: bool,
) -> Result<()> {
    let lab = Lab::open(workspace, "test", host)?;
    let programs = match program {
        Some(program) => vec![program.clone()],
        None => programs(workspace)?,
    };
    let mut build = lab.cargo(Native, "test --no-run")?;
    run_step(
        "compile the device tests",
        &mut build,
        &workspace.log_file("list.log")?,
    )?;
    for program in programs {
        let ask = |options: &[&str]| {
            let mut cargo = lab.cargo(Native, &format!("test --test {program}"))?;
            cargo
                .args(["--", "--list", "--format=terse"])
                .args(options)
                .args(names);
            output(&mut cargo)
        };
        let long = ask(&["--ignored"])?;
        for line in ask(&[])?.lines() {
            if let Some(test) = line.strip_suffix(": test") {
                let is_long = long.lines().any(|other| other == line);
                println!(
                    "{program} {test}{}",
                    if is_long { "  (with --long)" } else { "" }
                );
            }
        }
    }
    Ok(())
}
