//! `cargo xtask test PROGRAM`: the tests of one device test program; and the list of all of them.

use std::process::ExitStatus;

use anyhow::{Result, bail, ensure};

use super::{CLI, Options, programs};
use crate::guest::chroot::Headers::Native;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::process::output;
use crate::progress::run_step;

/// The programs that start other ones, and which.
const STARTS: [(&str, &str); 4] = [
    ("cli", CLI),
    ("connect", "build --example 01-connection"),
    ("examples", "build --examples"),
    ("swapped", "build --examples"),
];

/// Runs the tests of a program that have one of `names` in theirs, with all that they print.
pub(crate) fn some(
    workspace: &Workspace,
    program: &str,
    names: &[String],
    options: Options,
) -> Result<ExitStatus> {
    is_known(workspace, program)?;
    let mut lab = Lab::open(workspace, "test", options.host)?;
    // First the steps that can fail without a machine.
    let mut builds = vec![lab.cargo(Native, &format!("test --no-run --test {program}"))?];
    for (_, build) in STARTS.iter().filter(|(name, _)| *name == program) {
        builds.push(lab.cargo(Native, build)?);
    }
    for mut build in builds {
        let status = build.status()?;
        if !status.success() {
            return Ok(status);
        }
    }
    if ask(&lab, program, names, &[])?.is_empty() {
        bail!(
            "no test of {program} has \"{}\" in its name; `cargo xtask test --list {program}` shows \
             them",
            names.join("\" or \"")
        );
    }
    // A long test that is named is meant to run, for as long as it takes.
    let is_long = !names.is_empty() && !ask(&lab, program, names, &["--ignored"])?.is_empty();
    let options = Options {
        long: options.long || is_long,
        ..options
    };
    let mut test = lab.cargo_on_device(Native, "test", options.limit())?;
    test.args(["--test", program, "--", "--nocapture"]);
    test.args(options.long_args());
    Ok(test.args(names).status()?)
}

/// Prints the device tests, each as it is given to `cargo xtask test`.
pub(crate) fn list(
    workspace: &Workspace,
    program: Option<&str>,
    names: &[String],
    host: bool,
) -> Result<()> {
    let (programs, build) = match program {
        Some(program) => {
            is_known(workspace, program)?;
            (vec![program.to_owned()], format!(" --test {program}"))
        }
        None => (programs(workspace)?, String::new()),
    };
    let lab = Lab::open(workspace, "test", host)?;
    let log = workspace.log_file("list.log")?;
    let mut build = lab.cargo(Native, &format!("test --no-run{build}"))?;
    run_step("compile the device tests", &mut build, &log)?;
    for program in programs {
        let long = ask(&lab, &program, names, &["--ignored"])?;
        for test in ask(&lab, &program, names, &[])? {
            let mark = if long.contains(&test) { "  # long" } else { "" };
            println!("{program} {test}{mark}");
        }
    }
    Ok(())
}

/// The tests of a program that have one of `names` in theirs.
fn ask(lab: &Lab<'_>, program: &str, names: &[String], options: &[&str]) -> Result<Vec<String>> {
    let mut cargo = lab.cargo(Native, &format!("test --test {program}"))?;
    cargo.args(["--", "--list", "--format=terse"]);
    cargo.args(options).args(names);
    let tests = output(&mut cargo)?;
    let tests = tests.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.map(str::to_owned).collect())
}

fn is_known(workspace: &Workspace, program: &str) -> Result<()> {
    let known = programs(workspace)?;
    ensure!(
        known.iter().any(|name| name == program),
        "there is no device test program \"{program}\". They are: {}. (`cargo xtask test --list` \
         shows their tests; those without a device run with `cargo test`.)",
        known.join(", ")
    );
    Ok(())
}
