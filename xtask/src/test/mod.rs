//! `cargo xtask test`: everything that has to hold before a change lands, counted as one number; or
//! the tests of one program.

mod checkers;
mod features;
mod fuzz;
mod hosts;
mod iwarp;
mod left_out;
mod libtest;
mod one;
mod report;
mod shares;
mod sim;
mod subjects;
mod versions;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rustix::process::nice;

use crate::guest::chroot::{self, Headers};
use crate::host::Workspace;
use crate::lab::Lab;
use crate::progress::times;
pub(crate) use iwarp::alone as iwarp;
pub(crate) use one::{list, some};
use report::Report;
pub(crate) use sim::FEATURES;
use subjects::{Subject, subjects, tests_of};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Also the tests that are marked as long, and the checks of versions.
    pub(crate) long: bool,
    /// Device tests on the host's own RDMA device; no guest.
    pub(crate) host: bool,
    /// Device tests over the guest's soft-iWARP.
    pub(crate) iwarp: bool,
}

impl Options {
    /// The longest that one device test may take.
    fn limit(self) -> Duration {
        Duration::from_secs(if self.long { 10800 } else { 300 })
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
const SIM: &str =
    "--workspace --no-default-features --features rpma-examples/sim,rpma-cli/sim,rpma-scenes/sim";
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
    report.check("format", &mut workspace.cargo("fmt --all --check"))?;
    match on_host.map_or_else(open, Ok) {
        Ok(mut lab) => device_tests(&mut report, workspace, &mut lab, options)?,
        Err(error) => {
            host_checks(&mut report, workspace)?;
            host_tests(&mut report, workspace, options)?;
            report.not_run("everything in the guest", &error);
        }
    }
    if options.long {
        checkers::miri(&mut report, workspace)?;
        checkers::sanitizers(&mut report, workspace)?;
        fuzz::run(&mut report, workspace)?;
        versions::check(&mut report, workspace)?;
    }
    for line in shares::report(workspace, &times(), began.elapsed())? {
        println!("{line}");
    }
    Ok(report.close())
}

/// Only the tests between two hosts, all of them or by name.
pub(crate) fn hosts(workspace: &Workspace, names: &[String], options: Options) -> Result<bool> {
    let lab = Lab::open(workspace, "test", false)?;
    let mut report = Report::new(workspace);
    let hosts = "build --bin hosts --example replicated-log";
    let builds = vec![
        ("compile".to_owned(), lab.cargo(Headers::Native, hosts)?),
        ("compile rpma".to_owned(), lab.cargo(Headers::Native, CLI)?),
    ];
    if check_all(&mut report, builds)? {
        hosts::run(&mut report, workspace, &lab, names, options);
    }
    Ok(report.close())
}

/// Only the fuzz targets.
pub(crate) fn fuzz(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::new(workspace);
    fuzz::run(&mut report, workspace)?;
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

/// The checks of the sources, with the host's own libraries.
fn host_checks(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
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

/// Clippy once more where the guest's newer rdma-core brings other code to life: in the packages
/// whose build scripts set a cfg for it.
fn guest_clippy(lab: &Lab<'_>) -> Result<Command> {
    let packages = "-p rpma-sys -p rpma -p rpma-examples --features rpma-examples/device";
    let clippy = format!("clippy --locked --all-targets {packages} -- -Dwarnings");
    lab.bare_cargo(Headers::Native, &clippy)
}

/// The tests without a device that depend on rdma-core, in the guest's root directory.
fn guest_tests(lab: &Lab<'_>, options: Options) -> Result<Command> {
    let packages = "-p rpma-sys -p rpma -p rpma-cli --lib --bins --tests";
    let words = format!("test --locked --no-fail-fast {packages} --");
    let mut test = lab.bare_cargo(Headers::Native, &words)?;
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
    let of_guest = match options.host {
        true => None,
        false => Some(OfGuest {
            clippy: guest_clippy(lab)?,
            builds_of_44: builds(lab, Headers::Old44, options)?,
            tests: guest_tests(lab, options)?,
        }),
    };
    // The guests are the longest rows of steps, and wait most of the time: for limits that have to
    // pass, and for their own processors. So they begin as early as they can, and everything else
    // runs beside them.
    let (built_44, is_built_44) = mpsc::channel();
    let (rows, answers) = thread::scope(|scope| {
        let on_host = scope.spawn(move || on_host(workspace, of_guest, &built_44, options));
        let mut rows = vec![("the tests beside the guests".to_owned(), on_host)];
        let mut answers = match build(report, lab, options) {
            Ok(true) if options.host => {
                tests_on_device(report, lab, Headers::Native, &subjects, options)
            }
            Ok(true) => {
                let two_hosts = scope.spawn(|| two_hosts(workspace, options));
                rows.push(("two hosts".to_owned(), two_hosts));
                // A guest for each program, because the tests of one run one after the other.
                let mut of_programs = by_program(&subjects);
                let own = of_programs.pop_first().map(|(_, own)| own);
                for (program, subjects) in of_programs {
                    let name = program.clone();
                    let row = move || on_another_guest(workspace, &program, &subjects, options);
                    rows.push((name, scope.spawn(row)));
                }
                let own = own.unwrap_or_default();
                tests_on_device(report, lab, Headers::Native, &own, options)
            }
            Ok(false) => Ok(true),
            Err(error) => Err(error),
        };
        if !options.host && matches!(answers, Ok(true)) {
            answers = iwarp::run(report, lab, options);
        }
        if !options.host && matches!(answers, Ok(true)) {
            // An error of the other thread is reported below.
            let is_built = is_built_44.recv().unwrap_or(false);
            answers = tests_for_44(report, lab, is_built, subjects, options);
        }
        let joined = rows
            .into_iter()
            .map(|(name, row)| (name, row.join().expect("no panic")));
        (joined.collect::<Vec<_>>(), answers)
    });
    for (name, row) in rows {
        match row {
            Ok(row) => report.add(row),
            Err(error) => report.not_run(&name, &error),
        }
    }
    answers.map(drop)
}

/// The steps in the guest's root that need no machine.
struct OfGuest {
    clippy: Command,
    builds_of_44: Vec<(String, Command)>,
    tests: Command,
}

/// All steps that need no machine. Sends whether the tests for rdma-core 44 are built.
fn on_host<'a>(
    workspace: &'a Workspace,
    of_guest: Option<OfGuest>,
    built_44: &mpsc::Sender<bool>,
    options: Options,
) -> Result<Report<'a>> {
    // The guests take the longest. Their processors have precedence over the many threads of these
    // tests, and leave them some: with 19 a thread of a simulated fabric did not run for seconds, and
    // counted as one that stands still. On Linux this is about this thread and its children.
    nice(10)?;
    let mut report = Report::of_row(workspace, 1);
    host_checks(&mut report, workspace)?;
    if let Some(mut of_guest) = of_guest {
        report.check("guest: clippy", &mut of_guest.clippy)?;
        chroot::lend_dependencies(workspace)?;
        let is_built = check_all(&mut report, of_guest.builds_of_44)?;
        // Nobody asks if the guest does not answer.
        let _ = built_44.send(is_built);
        report.cargo_test("guest: tests without a device", &mut of_guest.tests)?;
    }
    host_tests(&mut report, workspace, options)?;
    Ok(report)
}

/// The device tests of a program, in a guest of their own beside that of the lab.
fn on_another_guest<'a>(
    workspace: &'a Workspace,
    program: &str,
    subjects: &[Subject],
    options: Options,
) -> Result<Report<'a>> {
    let mut lab = Lab::beside(workspace, program)?;
    let mut report = Report::of_row(workspace, 2);
    tests_on_device(&mut report, &mut lab, Headers::Native, subjects, options)?;
    Ok(report)
}

fn by_program(subjects: &[Subject]) -> BTreeMap<String, Vec<Subject>> {
    let mut of_programs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for subject in subjects {
        let own = of_programs.entry(subject.program.clone()).or_default();
        own.push(subject.clone());
    }
    of_programs
}

/// The tests between two hosts, with machines of their own beside the one of the device tests.
fn two_hosts<'a>(workspace: &'a Workspace, options: Options) -> Result<Report<'a>> {
    let lab = Lab::beside(workspace, "two-hosts")?;
    let mut report = Report::new(workspace);
    hosts::run(&mut report, workspace, &lab, &[], options);
    Ok(report)
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

/// The command of rpma-cli, which a test program starts.
const CLI: &str = "build -p rpma-cli --bin rpma";

fn label(headers: Headers) -> &'static str {
    match headers {
        Headers::Native => "device",
        Headers::Old44 => "rdma-core 44",
    }
}

/// Compiles the device tests; returns whether they are there.
fn build(report: &mut Report<'_>, lab: &Lab<'_>, options: Options) -> Result<bool> {
    let is_built = check_all(report, builds(lab, Headers::Native, options)?)?;
    if !is_built {
        not_built(report, Headers::Native);
    }
    Ok(is_built)
}

/// The builds of the device tests and of the programs that they start, with their names.
fn builds(lab: &Lab<'_>, headers: Headers, options: Options) -> Result<Vec<(String, Command)>> {
    let all = [("build", "test --no-run"), ("build rpma", CLI)];
    // Those of the tests that always run.
    let changed = [
        ("build", "test --no-run --test device --test programs"),
        ("build 01", "build --example 01-connection"),
    ];
    let builds = match headers {
        Headers::Old44 if !options.long => changed,
        _ => all,
    };
    let named = |(name, words)| {
        let name = format!("{}: {name}", label(headers));
        Ok((name, lab.cargo(headers, words)?))
    };
    builds.into_iter().map(named).collect()
}

/// Whether all of them succeed.
fn check_all(report: &mut Report<'_>, builds: Vec<(String, Command)>) -> Result<bool> {
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
    let mut of_programs = BTreeMap::new();
    for subject in subjects {
        let step = format!("{}: {}", label(headers), subject.name);
        let program = &*subject.program;
        if !of_programs.contains_key(program) {
            let tests = tests_of(lab, headers, program, &[])?;
            of_programs.insert(program.to_owned(), tests);
        }
        let tests = subject.of(&of_programs[program], &[]);
        let mut test = match lab.cargo_on_device(headers, "test", options.limit()) {
            Ok(test) => test,
            Err(error) => {
                report.not_run(&step, &error);
                continue;
            }
        };
        test.args(subject.args(&tests)).args(options.long_args());
        if !run_on_device(report, lab, &step, &mut test)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs a command of [`Lab::cargo_on_device`] as a step; returns whether there is a device for others.
fn run_on_device(
    report: &mut Report<'_>,
    lab: &mut Lab<'_>,
    step: &str,
    test: &mut Command,
) -> Result<bool> {
    let Some(log) = report.cargo_test(step, test)? else {
        return Ok(true);
    };
    let replaced = lab.replace_machine(&log.with_extension("console"));
    if let Err(error) = &replaced {
        report.not_run("the other device tests", error);
    }
    Ok(replaced.is_ok())
}

/// The script that cargo's runner is.
#[cfg(test)]
fn runner() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.sh")
}
