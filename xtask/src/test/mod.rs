//! `cargo xtask test`: everything that has to hold before a change lands, counted as one number.

mod device;
mod libtest;
mod report;

use std::path::Path;
use std::process::Command;

use anyhow::{Result, anyhow};

use crate::guest::Guest;
use crate::guest::chroot::{self, Headers};
use crate::host::{Toolchain, Workspace};
use crate::host_device;
pub(crate) use device::executables;
use device::{Machine, Place};
use report::Report;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Also the tests that are marked as long.
    pub(crate) long: bool,
    /// Device tests on the host's own RDMA device; no guest.
    pub(crate) host: bool,
}

/// Runs everything; tells whether all of it passed.
pub(crate) fn run(workspace: &Workspace, options: Options) -> Result<bool> {
    let (dir, _lock) = workspace.own_dir("test")?;
    let mut report = Report::new(workspace);
    let toolchain = Toolchain::find(workspace)?;
    if options.host {
        // Before anything long runs in vain.
        let env = host_device::test_env()?;
        host_checks(&mut report, workspace, options)?;
        host_device_tests(&mut report, workspace, Place::Host(env), options)?;
    } else {
        fetch(&mut report, workspace)?;
        host_checks(&mut report, workspace, options)?;
        match Guest::get(workspace) {
            Ok(guest) => {
                let lab = Lab {
                    guest: &guest,
                    workspace,
                    toolchain: &toolchain,
                    dir: &dir,
                    options,
                };
                lab.checks(&mut report)?;
                lab.device_tests(&mut report)?;
            }
            Err(error) => report.not_run("everything in the guest", &format!("{error:#}")),
        }
    }
    Ok(report.close())
}

/// Builds in the guest's root have no network.
fn fetch(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    report.check(
        "fetch dependencies",
        workspace.cargo().args(["fetch", "--locked"]),
        false,
    )?;
    Ok(())
}

/// The device tests of what another rdma-core changes, flushes and atomic writes, and of what they
/// stand on. The build against rdma-core 44 runs these always and the others with `--long`.
const CHANGED_BY_HEADERS: [&str; 3] = ["atomic", "connect", "transfer"];

const CLIPPY: &str = "clippy --locked --all-targets --all-features --workspace";
const TEST: &str = "test --locked --no-fail-fast --workspace";

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ')
}

/// What needs no device, with the host's own libraries.
fn host_checks(report: &mut Report<'_>, workspace: &Workspace, options: Options) -> Result<()> {
    report.check(
        "format",
        workspace.cargo().args(["fmt", "--all", "--check"]),
        false,
    )?;
    let mut clippy = workspace.cargo();
    clippy.args(words(CLIPPY)).args(["--", "-Dwarnings"]);
    report.check("clippy", &mut clippy, false)?;
    let mut doc = workspace.cargo();
    doc.args(words("doc --locked --workspace --no-deps --all-features"));
    report.check(
        "documentation",
        doc.env("RUSTDOCFLAGS", "-Dwarnings"),
        false,
    )?;
    let mut test = workspace.cargo();
    test.args(words(TEST)).args(long_args(options));
    report.cargo_test("tests without a device", &mut test)
}

fn long_args(options: Options) -> &'static [&'static str] {
    if options.long {
        &["--", "--include-ignored"]
    } else {
        &[]
    }
}

fn host_device_tests(
    report: &mut Report<'_>,
    workspace: &Workspace,
    mut place: Place<'_>,
    options: Options,
) -> Result<()> {
    report.check(
        "examples",
        workspace.cargo().args(device::example_args()),
        false,
    )?;
    let build = report.check(
        "device tests: build",
        workspace.cargo().args(device::build_args()),
        true,
    )?;
    let Some(build) = build else {
        report.not_run("device tests", "they do not build");
        return Ok(());
    };
    let programs = executables(&build)?;
    for name in device::names(workspace)? {
        let program = programs
            .get(&name)
            .ok_or_else(|| anyhow!("cargo did not build {name}"))?;
        let mut list = Command::new(program);
        list.args(["--list", "--format=terse"]);
        place.run(
            report,
            &format!("device: {name}"),
            program,
            &mut list,
            options,
        )?;
    }
    Ok(())
}

/// Where the guest's part happens.
#[derive(Debug)]
struct Lab<'a> {
    guest: &'a Guest,
    workspace: &'a Workspace,
    toolchain: &'a Toolchain,
    /// For the guest's files of this run.
    dir: &'a Path,
    options: Options,
}

impl Lab<'_> {
    fn in_root(&self, headers: Headers, program: &str) -> Result<Command> {
        chroot::command(self.guest, self.workspace, self.toolchain, headers, program)
    }

    /// The host's checks once more where the guest's newer rdma-core brings other code to life.
    /// Without xtask, which is a program of the host.
    fn checks(&self, report: &mut Report<'_>) -> Result<()> {
        let mut clippy = self.in_root(Headers::Native, "cargo")?;
        clippy
            .args(words(CLIPPY))
            .args(["--exclude=xtask", "--", "-Dwarnings"]);
        report.check("guest: clippy", &mut clippy, false)?;
        let mut test = self.in_root(Headers::Native, "cargo")?;
        test.args(words(TEST))
            .arg("--exclude=xtask")
            .args(long_args(self.options));
        report.cargo_test("guest: tests without a device", &mut test)
    }

    fn device_tests(&self, report: &mut Report<'_>) -> Result<()> {
        let names = device::names(self.workspace)?;
        if names.is_empty() {
            report.not_run("device tests", "the root package has none");
            return Ok(());
        }
        let mut machine = None;
        for (headers, label) in [
            (Headers::Native, "device"),
            (Headers::Old44, "rdma-core 44"),
        ] {
            let mut examples = self.in_root(headers, "cargo")?;
            examples.args(device::example_args());
            report.check(&format!("{label}: examples"), &mut examples, false)?;
            let mut build = self.in_root(headers, "cargo")?;
            build.args(device::build_args());
            let Some(build) = report.check(&format!("{label}: build"), &mut build, true)? else {
                report.not_run(&format!("{label}: tests"), "they do not build");
                continue;
            };
            let programs = executables(&build)?;
            let place = match &mut machine {
                Some(place) => place,
                empty => match Machine::start(self.guest, self.workspace, self.dir) {
                    Ok(started) => empty.insert(Place::Guest(Box::new(started))),
                    Err(error) => {
                        report.not_run("device tests", &format!("{error:#}"));
                        return Ok(());
                    }
                },
            };
            for name in &names {
                let step = format!("{label}: {name}");
                let Some(program) = programs.get(name) else {
                    report.not_run(&step, "cargo did not build it");
                    continue;
                };
                // In the root and not in the guest: there is nothing to wait for.
                let mut list = self.in_root(headers, &program.display().to_string())?;
                list.args(["--list", "--format=terse"]);
                let mut options = self.options;
                if headers == Headers::Old44 {
                    if !options.long && !CHANGED_BY_HEADERS.contains(&name.as_str()) {
                        report.left_for_long(libtest::list(&mut list)?);
                        continue;
                    }
                    // Once is enough for what takes minutes.
                    options.long = false;
                }
                place.run(report, &step, program, &mut list, options)?;
            }
        }
        Ok(())
    }
}
