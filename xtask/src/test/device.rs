//! The tests that need an RDMA device: programs of the root package, run one at a time, in the
//! guest or on a host that has a device.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::report::Report;
use super::{Options, libtest};
use crate::guest::Guest;
use crate::host::Workspace;
use crate::progress::{Step, spawn_logged, tail};
use crate::vm::{CONSOLE, Lifetime, Ssh, Vm, attach_to};

/// The package whose tests need a device, and the feature that says so.
const PACKAGE: &str = "rpma-examples";
const FEATURE: &str = "device";
/// The longest that one test program may take.
const LIMIT: Duration = Duration::from_secs(600);
const LONG_LIMIT: Duration = Duration::from_secs(7200);
/// How ssh itself ends when the connection fails or is lost.
const SSH_FAILED: i32 = 255;
/// After which a guest that does not answer is given up.
const GRACE: Duration = Duration::from_secs(30);

/// What builds the device tests, to be added to a `cargo` command.
pub(super) fn build_args() -> Vec<String> {
    let args = "test --locked --tests --no-run --message-format=json-render-diagnostics -p";
    let mut args: Vec<String> = args.split(' ').map(str::to_owned).collect();
    args.extend([PACKAGE, "--features", FEATURE].map(str::to_owned));
    args
}

/// What builds the examples, which tests start and people try out.
pub(super) fn example_args() -> [&'static str; 7] {
    [
        "build",
        "--locked",
        "--examples",
        "-p",
        PACKAGE,
        "--features",
        FEATURE,
    ]
}

/// The names of all device tests that the package has.
pub(super) fn names(workspace: &Workspace) -> Result<Vec<String>> {
    let mut cargo = workspace.cargo();
    cargo.args(["metadata", "--no-deps", "--format-version=1", "--locked"]);
    let output = cargo.output().context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut names = Vec::new();
    for package in list(&metadata["packages"])
        .iter()
        .filter(|p| p["name"] == PACKAGE)
    {
        for target in list(&package["targets"]) {
            let needs_device = list(&target["required-features"])
                .iter()
                .any(|f| f == FEATURE);
            if list(&target["kind"]).iter().any(|kind| kind == "test") && needs_device {
                names.extend(target["name"].as_str().map(str::to_owned));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// The programs that a build made, by name, from what cargo wrote.
pub(crate) fn executables(build_output: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let text = fs::read_to_string(build_output)?;
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = messages.filter_map(|message| {
        let name = message["target"]["name"].as_str()?;
        Some((
            name.to_owned(),
            PathBuf::from(message["executable"].as_str()?),
        ))
    });
    Ok(found.collect())
}

/// Where device tests run.
#[derive(Debug)]
pub(super) enum Place<'a> {
    Guest(Box<Machine<'a>>),
    /// With what the tests are told about the host.
    Host(Vec<(&'static str, String)>),
}

/// The guest that the tests run in: the one that `vm up` started, or one for this run only.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    guest: &'a Guest,
    workspace: &'a Workspace,
    dir: &'a Path,
    own: Option<Vm>,
    ssh: Ssh,
}

impl<'a> Machine<'a> {
    pub(super) fn start(guest: &'a Guest, workspace: &'a Workspace, dir: &'a Path) -> Result<Self> {
        if let Some(ssh) = attach_to(guest, workspace)? {
            println!("       the guest is up already: using it");
            return Ok(Self {
                guest,
                workspace,
                dir,
                own: None,
                ssh,
            });
        }
        Vm::forget_memory(dir)?;
        let vm = Vm::boot(guest, workspace, dir, Lifetime::Ours, "boot")?;
        Ok(Self {
            guest,
            workspace,
            dir,
            ssh: vm.ssh().clone(),
            own: Some(vm),
        })
    }

    /// A guest that no longer answers is replaced. One that `vm up` started is left to its owner.
    /// The console of the old one is kept as `console`.
    fn restart(&mut self, console: &Path) -> Result<()> {
        let Some(vm) = self.own.take() else {
            bail!("the guest of `cargo xtask vm up` does not answer; see its console log");
        };
        vm.cut_power()?;
        fs::copy(self.dir.join(CONSOLE), console).context("cannot keep the console log")?;
        let vm = Vm::boot(
            self.guest,
            self.workspace,
            self.dir,
            Lifetime::Ours,
            "boot again",
        )?;
        self.ssh = vm.ssh().clone();
        self.own = Some(vm);
        Ok(())
    }
}

impl Place<'_> {
    /// Runs one test program. `list` is a command that prints its tests.
    pub(super) fn run(
        &mut self,
        report: &mut Report<'_>,
        name: &str,
        program: &Path,
        list: &mut Command,
        options: Options,
    ) -> Result<()> {
        let log = report.log(name)?;
        let mut step = Step::start(name);
        let listed = libtest::list(list)?;

        let limit = if options.long { LONG_LIMIT } else { LIMIT };
        let mut command = self.command(program, limit, options.long);
        let started = Instant::now();
        let mut child = spawn_logged(&mut command, &log, None)?;
        let status = step.wait(&mut child, Some(limit + GRACE))?;
        let late = || {
            let tail = tail(&log, 10);
            format!(
                "not finished after {} s; it said last:\n{tail}",
                limit.as_secs()
            )
        };
        // Of a local program we see the signal itself, of a remote one what the shell makes of it.
        let signal = |status: ExitStatus| match status.code() {
            Some(code @ 129..=192) => Some(code - 128),
            _ => status.signal(),
        };
        let console = log.with_extension("console");
        let mut lost = false;
        let ended = match status {
            Some(status) if status.success() => Ok(()),
            Some(status) if signal(status) == Some(9) && started.elapsed() >= limit => Err(late()),
            Some(status) if status.code() == Some(SSH_FAILED) => {
                lost = true;
                Err(format!(
                    "the guest went away; its console: {}",
                    console.display()
                ))
            }
            Some(status) => Err(match signal(status) {
                Some(signal) => format!("the program was killed by signal {signal}"),
                None => format!("the program ended with {status}"),
            }),
            None => {
                lost = true;
                Err(late())
            }
        };
        report.program(step, name, listed, ended, &log);
        match self {
            Self::Guest(machine) if lost => machine.restart(&console),
            _ => Ok(()),
        }
    }

    fn command(&self, program: &Path, limit: Duration, long: bool) -> Command {
        let seconds = limit.as_secs().to_string();
        let program = program.display().to_string();
        let mut argv = vec![
            "timeout",
            "-s",
            "KILL",
            &seconds,
            &program,
            "--test-threads=1",
        ];
        if long {
            argv.push("--include-ignored");
        }
        match self {
            Self::Guest(machine) => {
                // Without a shell that waits, ssh would report a signal as a failure of its own.
                let shell = vec![
                    "env",
                    "RUST_BACKTRACE=1",
                    "sh",
                    "-c",
                    "\"$@\"; exit $?",
                    "sh",
                ];
                let argv = [shell, argv].concat();
                machine.ssh.command(&argv, false)
            }
            Self::Host(env) => {
                let mut command = Command::new(argv[0]);
                command.args(&argv[1..]).env("RUST_BACKTRACE", "1");
                command.envs(env.iter().map(|(name, value)| (name, value)));
                command
            }
        }
    }
}
