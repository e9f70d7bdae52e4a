//! `cargo xtask test`: everything that has to hold before a change lands, counted as one number; or
//! the tests of one program.

mod hosts;
mod libtest;
mod one;
mod report;
mod versions;

use std::time::Duration;

use anyhow::{Context, Result};
use cargo_metadata::{MetadataCommand, TargetKind};

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::{FEATURE, Lab, PACKAGE};
pub(crate) use one::{list, some};
use report::Report;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Also the tests that are marked as long, and the checks of versions.
    pub(crate) long: bool,
    /// Device tests on the host's own RDMA device; no guest.
    pub(crate) host: bool,
}

impl Options {
    /// The longest that one device test may take.
    fn limit(self) -> Duration {
        Duration::from_secs(if self.long { 7200 } else { 300 })
    }

    /// For libtest.
    fn long_args(self) -> &'static [&'static str] {
        if self.long {
            &["--include-ignored"]
        } else {
            &[]
        }
    }
}

const CLIPPY: &str = "clippy --locked --all-targets --all-features --workspace";
const TEST: &str = "test --locked --no-fail-fast --workspace";

/// The device tests of what another rdma-core changes, flushes and atomic writes, and of what they
/// stand on. The build against rdma-core 44 runs these always and the others with `--long`.
const CHANGED_BY_HEADERS: [&str; 3] = ["atomic", "connect", "transfer"];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ')
}

/// Runs everything; tells whether all of it passed.
pub(crate) fn all(workspace: &Workspace, options: Options) -> Result<bool> {
    let mut report = Report::new(workspace);
    // A host without a device is told so before anything long runs in vain.
    let on_host = if options.host {
        Some(Lab::open(workspace, "test", true)?)
    } else {
        None
    };
    host_checks(&mut report, workspace, options)?;
    match on_host.map_or_else(|| Lab::open(workspace, "test", false), Ok) {
        Ok(mut lab) => {
            if !options.host {
                guest_checks(&mut report, &lab, options)?;
            }
            device_tests(&mut report, workspace, &mut lab, options)?;
            if !options.host {
                hosts::run(&mut report, workspace, &mut lab, options)?;
            }
        }
        Err(error) => report.not_run("everything in the guest", &format!("{error:#}")),
    }
    if options.long {
        versions::check(&mut report, workspace)?;
    }
    Ok(report.close())
}

/// Only what runs between two hosts.
pub(crate) fn hosts(workspace: &Workspace, options: Options) -> Result<bool> {
    let mut lab = Lab::open(workspace, "test", false)?;
    let mut report = Report::new(workspace);
    if report.check(
        "compile",
        &mut lab.cargo(Headers::Native, "build --bin hosts")?,
    )? {
        hosts::run(&mut report, workspace, &mut lab, options)?;
    }
    Ok(report.close())
}

/// Only the checks of versions.
pub(crate) fn versions(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::new(workspace);
    versions::check(&mut report, workspace)?;
    Ok(report.close())
}

/// What needs no device, with the host's own libraries.
fn host_checks(report: &mut Report<'_>, workspace: &Workspace, options: Options) -> Result<()> {
    let mut fmt = workspace.cargo();
    report.check("format", fmt.args(["fmt", "--all", "--check"]))?;
    let mut clippy = workspace.cargo();
    clippy.args(words(CLIPPY)).args(["--", "-Dwarnings"]);
    report.check("clippy", &mut clippy)?;
    let mut doc = workspace.cargo();
    doc.args(words("doc --locked --workspace --no-deps --all-features"));
    report.check("documentation", doc.env("RUSTDOCFLAGS", "-Dwarnings"))?;
    let mut test = workspace.cargo();
    test.args(words(TEST)).arg("--").args(options.long_args());
    report.cargo_test("tests without a device", &mut test)?;
    Ok(())
}

/// The host's checks once more where the guest's newer rdma-core brings other code to life.
/// Without xtask, which is a program of the host.
fn guest_checks(report: &mut Report<'_>, lab: &Lab<'_>, options: Options) -> Result<()> {
    let mut clippy = lab.bare_cargo(Headers::Native, &[])?;
    clippy
        .args(words(CLIPPY))
        .args(["--exclude=xtask", "--", "-Dwarnings"]);
    report.check("guest: clippy", &mut clippy)?;
    let mut test = lab.bare_cargo(Headers::Native, &[])?;
    test.args(words(TEST))
        .args(["--exclude=xtask", "--"])
        .args(options.long_args());
    report.cargo_test("guest: tests without a device", &mut test)?;
    Ok(())
}

fn device_tests(
    report: &mut Report<'_>,
    workspace: &Workspace,
    lab: &mut Lab<'_>,
    options: Options,
) -> Result<()> {
    let programs = programs(workspace)?;
    if programs.is_empty() {
        report.not_run("device tests", "the root package has none");
    }
    for &headers in lab.headers() {
        let label = match headers {
            Headers::Native => "device",
            Headers::Old44 => "rdma-core 44",
        };
        let mut build = lab.cargo(headers, "test --no-run")?;
        if !report.check(&format!("{label}: build"), &mut build)? {
            report.not_run(&format!("{label}: tests"), "they do not build");
            continue;
        }
        for name in &programs {
            let mut options = options;
            if headers == Headers::Old44 {
                if !options.long && !CHANGED_BY_HEADERS.contains(&name.as_str()) {
                    continue;
                }
                // Once is enough for what takes minutes.
                options.long = false;
            }
            let step = format!("{label}: {name}");
            let mut test = match lab.cargo_on_device(headers, options.limit()) {
                Ok(test) => test,
                Err(error) => {
                    report.not_run(&step, &format!("{error:#}"));
                    continue;
                }
            };
            test.args(["--test", name, "--"]).args(options.long_args());
            let ended = report.cargo_test(&step, &mut test)?;
            if ended.machine_lost {
                let console = ended.log.with_extension("console");
                if let Err(error) = lab.replace_machine(&console) {
                    report.not_run("the other device tests", &format!("{error:#}"));
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The names of the programs whose tests need a device.
fn programs(workspace: &Workspace) -> Result<Vec<String>> {
    let mut metadata = MetadataCommand::new();
    metadata
        .no_deps()
        .manifest_path(workspace.root().join("Cargo.toml"));
    let packages = metadata.exec().context("cargo metadata")?.packages;
    let root = packages.into_iter().find(|package| package.name == PACKAGE);
    let targets = root.map(|package| package.targets).unwrap_or_default();
    let mut names: Vec<_> = targets
        .into_iter()
        .filter(|target| target.is_kind(TargetKind::Test))
        .filter(|target| target.required_features.iter().any(|name| name == FEATURE))
        .map(|target| target.name)
        .collect();
    names.sort();
    Ok(names)
}

/// The script that cargo's runner is.
#[cfg(test)]
fn runner() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.sh")
}
