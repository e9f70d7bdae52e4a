//! `cargo xtask test`: everything that has to hold before a change lands, counted as one number; or
//! the tests of one program.

mod checkers;
mod features;
mod hosts;
mod libtest;
mod one;
mod report;
mod shares;
mod sim;
mod subjects;
mod versions;

use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rustix::process::nice;

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::progress::times;
pub(crate) use one::{list, some};
use report::Report;
pub(crate) use sim::FEATURES;
use subjects::{Subject, subjects};

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

/// All code but the simulator's side of it.
const CLIPPY: &str = "clippy --locked --all-targets --workspace --features rpma-examples/device";

/// That side: the code that is compiled with the simulated fabric in the libraries' place.
const SIM: &str = "--workspace --no-default-features --features rpma-examples/sim,rpma-cli/sim";
/// The features of rpma-async that only dependants with tests turn on.
const RUNTIMES: &str = "--features rpma-async/tokio,rpma-async/async-io";
const TEST: &str = "test --locked --no-fail-fast --workspace";

/// The device tests of the parts that another rdma-core changes: flushes and atomic writes, their
/// basis, and the system calls. The build against rdma-core 44 runs these always and the others
/// with `--long`.
const CHANGED_BY_HEADERS: [&str; 5] = ["atomic", "batch", "connect", "syscalls", "transfer"];

/// Runs everything; returns whether all of it passed.
pub(crate) fn all(workspace: &Workspace, options: Options) -> Result<bool> {
    let began = Instant::now();
    let mut report = Report::new(workspace);
    // A host without a device gets that error before any long step runs in vain.
    let open = || Lab::open(workspace, "test", options.host);
    let on_host = options.host.then(open).transpose()?;
    host_checks(&mut report, workspace)?;
    match on_host.map_or_else(open, Ok) {
        Ok(mut lab) => {
            if !options.host {
                guest_clippy(&mut report, &lab)?;
            }
            device_tests(&mut report, workspace, &mut lab, options)?;
        }
        Err(error) => {
            host_tests(&mut report, workspace, options)?;
            report.not_run("everything in the guest", &error);
        }
    }
    if options.long {
        checkers::miri(&mut report, workspace)?;
        checkers::sanitizers(&mut report, workspace)?;
        versions::check(&mut report, workspace)?;
    }
    for line in shares::report(workspace, &times(), began.elapsed())? {
        println!("{line}");
    }
    Ok(report.close())
}

/// Only the tests between two hosts, all of them or by name.
pub(crate) fn hosts(workspace: &Workspace, names: &[String], options: Options) -> Result<bool> {
    let mut lab = Lab::open(workspace, "test", false)?;
    let mut report = Report::new(workspace);
    let hosts = "build --bin hosts --example replicated-log";
    let builds = [
        ("compile".to_owned(), lab.cargo(Headers::Native, hosts)?),
        ("compile rpma".to_owned(), lab.cargo(Headers::Native, CLI)?),
    ];
    if check_all(&mut report, builds)? {
        hosts::run(&mut report, workspace, &mut lab, names, options);
    }
    Ok(report.close())
}

/// Only Miri and the sanitizers, on the simulated fabric.
pub(crate) fn checkers(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::new(workspace);
    checkers::miri(&mut report, workspace)?;
    checkers::sanitizers(&mut report, workspace)?;
    Ok(report.close())
}

/// Only the checks of versions.
pub(crate) fn versions(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::new(workspace);
    versions::check(&mut report, workspace)?;
    Ok(report.close())
}

/// The tests without a device, with the host's own libraries: first those that find the most in the
/// shortest time.
fn host_checks(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    report.check("format", &mut workspace.cargo("fmt --all --check"))?;
    let mut clippy = workspace.cargo(&format!("{CLIPPY} -- -Dwarnings"));
    report.check("clippy", &mut clippy)?;
    let clippy = format!("clippy --locked --all-targets {SIM} -- -Dwarnings");
    report.check("clippy, simulated", &mut workspace.cargo(&clippy))?;
    // As docs.rs builds it: with the simulator, with its additions, and with both runtimes.
    let mut doc = workspace.cargo(&format!("doc --locked --no-deps {SIM} {RUNTIMES}"));
    report.check("documentation", doc.env("RUSTDOCFLAGS", "-Dwarnings"))?;
    Ok(())
}

fn host_tests(report: &mut Report<'_>, workspace: &Workspace, options: Options) -> Result<()> {
    features::check(report, workspace)?;
    let mut test = workspace.cargo(&format!("{TEST} --"));
    report.cargo_test("tests without a device", test.args(options.long_args()))?;
    sim::run(report, workspace, options)
}

/// The host's checks once more where the guest's newer rdma-core brings other code to life: clippy,
/// and [`guest_tests`]. Without xtask, which is a program of the host.
fn guest_clippy(report: &mut Report<'_>, lab: &Lab<'_>) -> Result<()> {
    let clippy = format!("{CLIPPY} --exclude=xtask -- -Dwarnings");
    let mut clippy = lab.bare_cargo(Headers::Native, &clippy)?;
    report.check("guest: clippy", &mut clippy)?;
    Ok(())
}

/// The tests without a device in the guest's root directory.
fn guest_tests(lab: &Lab<'_>, options: Options) -> Result<Command> {
    let mut test = lab.bare_cargo(Headers::Native, &format!("{TEST} --exclude=xtask --"))?;
    test.args(options.long_args());
    Ok(test)
}

fn device_tests(
    report: &mut Report<'_>,
    workspace: &Workspace,
    lab: &mut Lab<'_>,
    options: Options,
) -> Result<()> {
    let subjects = subjects(workspace)?;
    if subjects.is_empty() {
        report.not_run("device tests", &anyhow!("the root package has none"));
    }
    let is_built = build(report, lab, Headers::Native)?;
    let of_guest = match options.host {
        true => None,
        false => Some((builds(lab, Headers::Old44)?, guest_tests(lab, options)?)),
    };
    // The guests wait most of the time: for limits that have to pass, and for their own processors.
    let (built_44, is_built_44) = mpsc::channel();
    let (beside, answers) = thread::scope(|scope| {
        let beside = scope.spawn(move || -> Result<_> {
            // The guests take the longest. Their processors have precedence over the many threads
            // of these tests. On Linux this is about this thread and its children.
            nice(19)?;
            let mut report = Report::beside(workspace);
            if let Some((builds_of_44, mut tests)) = of_guest {
                let is_built = check_all(&mut report, builds_of_44)?;
                // Nobody asks if the guest does not answer.
                let _ = built_44.send(is_built);
                report.cargo_test("guest: tests without a device", &mut tests)?;
            }
            host_tests(&mut report, workspace, options)?;
            Ok(report)
        });
        let mut answers = match is_built {
            true => tests_on_device(report, lab, Headers::Native, &subjects, options),
            false => Ok(true),
        };
        if !options.host {
            if let Ok(true) = answers {
                // An error of the other thread is reported below.
                let is_built = is_built_44.recv().unwrap_or(false);
                answers = tests_for_44(report, lab, is_built, subjects, options);
            }
            hosts::run(report, workspace, lab, &[], options);
        }
        (beside.join().expect("no panic"), answers)
    });
    match beside {
        Ok(of_host) => report.add(of_host),
        Err(error) => report.not_run("the tests beside the guest", &error),
    }
    answers.map(drop)
}

/// Runs the device tests that were compiled against the headers of rdma-core 44; returns whether
/// there is a device for others.
fn tests_for_44(
    report: &mut Report<'_>,
    lab: &mut Lab<'_>,
    is_built: bool,
    subjects: Vec<Subject>,
    options: Options,
) -> Result<bool> {
    if !is_built {
        not_built(report, Headers::Old44);
        return Ok(true);
    }
    let is_changed =
        |subject: &Subject| options.long || CHANGED_BY_HEADERS.contains(&&*subject.name);
    let subjects: Vec<_> = subjects.into_iter().filter(is_changed).collect();
    // Once is enough for steps that take minutes.
    let options = Options {
        long: false,
        ..options
    };
    tests_on_device(report, lab, Headers::Old44, &subjects, options)
}

const BUILD: &str = "test --no-run";
/// The command of rpma-cli, which a test program starts.
const CLI: &str = "build -p rpma-cli --bin rpma";

fn label(headers: Headers) -> &'static str {
    match headers {
        Headers::Native => "device",
        Headers::Old44 => "rdma-core 44",
    }
}

/// Compiles the device tests; returns whether they are there.
fn build(report: &mut Report<'_>, lab: &Lab<'_>, headers: Headers) -> Result<bool> {
    let is_built = check_all(report, builds(lab, headers)?)?;
    if !is_built {
        not_built(report, headers);
    }
    Ok(is_built)
}

/// The builds of the device tests and of the programs that they start, with their names.
fn builds(lab: &Lab<'_>, headers: Headers) -> Result<[(String, Command); 2]> {
    let label = label(headers);
    Ok([
        (format!("{label}: build"), lab.cargo(headers, BUILD)?),
        (format!("{label}: build rpma"), lab.cargo(headers, CLI)?),
    ])
}

/// Whether all of them succeed.
fn check_all(report: &mut Report<'_>, builds: [(String, Command); 2]) -> Result<bool> {
    let mut all = true;
    for (label, mut build) in builds {
        all &= report.check(&label, &mut build)?;
    }
    Ok(all)
}

fn not_built(report: &mut Report<'_>, headers: Headers) {
    let tests = format!("{}: tests", label(headers));
    report.not_run(&tests, &anyhow!("they do not build"));
}

/// Runs the tests about these subjects; returns whether there is a device for others.
fn tests_on_device(
    report: &mut Report<'_>,
    lab: &mut Lab<'_>,
    headers: Headers,
    subjects: &[Subject],
    options: Options,
) -> Result<bool> {
    for subject in subjects {
        let step = format!("{}: {}", label(headers), subject.name);
        let tests = subject.tests(lab, headers, &[])?;
        let mut test = match lab.cargo_on_device(headers, "test", options.limit()) {
            Ok(test) => test,
            Err(error) => {
                report.not_run(&step, &error);
                continue;
            }
        };
        test.args(subject.args(&tests)).args(options.long_args());
        let Some(log) = report.cargo_test(&step, &mut test)? else {
            continue;
        };
        if let Err(error) = lab.replace_machine(&log.with_extension("console")) {
            report.not_run("the other device tests", &error);
            return Ok(false);
        }
    }
    Ok(true)
}

/// The script that cargo's runner is.
#[cfg(test)]
fn runner() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.sh")
}
