//! `cargo xtask test SUBJECT`: the device tests about one subject; and the list of all of them.

use std::collections::BTreeMap;
use std::process::ExitStatus;

use anyhow::{Result, bail};

use super::subjects::{subject, subjects, tests_of};
use super::{CLI, Options};
use crate::guest::chroot::Headers::Native;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::progress::run_step;

/// The subjects whose tests start other programs, and which.
const STARTS: [(&str, &str); 4] = [
    ("cli", CLI),
    ("connect", "build --example 01-connection"),
    ("examples", "build --examples"),
    ("swapped", "build --examples"),
];

/// Runs the tests about a subject that have one of `names` in theirs, with all that they print.
pub(crate) fn some(
    workspace: &Workspace,
    name: &str,
    names: &[String],
    options: Options,
) -> Result<ExitStatus> {
    let subject = subject(workspace, name)?;
    let mut lab = Lab::open(workspace, "test", options.host)?;
    lab.over_iwarp(options.iwarp);
    // First the steps that can fail without a machine.
    let build = format!("test --no-run --test {}", subject.program);
    let mut builds = vec![lab.cargo(Native, &build)?];
    for (_, build) in STARTS.iter().filter(|(starts, _)| *starts == name) {
        builds.push(lab.cargo(Native, build)?);
    }
    for mut build in builds {
        let status = build.status()?;
        if !status.success() {
            return Ok(status);
        }
    }
    let tests = subject.of(&tests_of(&lab, Native, &subject.program, &[])?, names);
    if tests.is_empty() {
        bail!(
            "no test of {name} has \"{}\" in its name; `cargo xtask test --list {name}` shows them",
            names.join("\" or \"")
        );
    }
    // A long test that is named is meant to run, for as long as it takes.
    let long = tests_of(&lab, Native, &subject.program, &["--ignored"])?;
    let is_long = !names.is_empty() && !subject.of(&long, names).is_empty();
    let options = Options {
        long: options.long || is_long,
        ..options
    };
    let mut test = lab.cargo_on_device(Native, "test", options.limit())?;
    test.args(subject.args(&tests)).arg("--nocapture");
    Ok(test.args(options.long_args()).status()?)
}

/// Prints the device tests, each as it is given to `cargo xtask test`.
pub(crate) fn list(
    workspace: &Workspace,
    name: Option<&str>,
    names: &[String],
    host: bool,
) -> Result<()> {
    let subjects = match name {
        Some(name) => vec![subject(workspace, name)?],
        None => subjects(workspace)?,
    };
    let lab = Lab::open(workspace, "test", host)?;
    let log = workspace.log_file("list.log")?;
    let build = match &*subjects {
        [one] => format!("test --no-run --test {}", one.program),
        _ => "test --no-run".to_owned(),
    };
    run_step(
        "compile the device tests",
        &mut lab.cargo(Native, &build)?,
        &log,
    )?;
    let mut of_programs = BTreeMap::new();
    for subject in subjects {
        let program = &*subject.program;
        if !of_programs.contains_key(program) {
            let list = |options: &[&str]| tests_of(&lab, Native, program, options);
            of_programs.insert(program.to_owned(), (list(&[])?, list(&["--ignored"])?));
        }
        let (tests, long) = &of_programs[program];
        for test in subject.of(tests, names) {
            let mark = if long.contains(&test) { "  # long" } else { "" };
            let own = subject.without_program(&test).expect("its own");
            println!("{} {own}{mark}", subject.name);
        }
    }
    Ok(())
}
