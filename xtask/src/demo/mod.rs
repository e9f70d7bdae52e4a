//! `cargo xtask demo`: the power cut, or librpma's examples.
//!
//! An example is shown by its tests (tests/programs/examples/pairs.rs), which print the programs that they
//! start, and their output.

mod power_cut;
#[path = "../../../examples/common/runs.rs"]
mod runs;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::process::{spawn, tail};
use crate::progress::run_step;
use runs::{EXAMPLES, LOG, LOG_SHOWS, find, test_name};

/// The beginnings of the names of the examples' tests: on DRAM, on persistent memory, and without
/// memory.
const MEMORIES: [&str; 3] = [
    "examples::pairs::dram::",
    "examples::pairs::pmem::",
    "examples::pairs::",
];
/// The longest that one example may take: some wait for the end of a time limit.
const LIMIT: Duration = Duration::from_secs(120);

/// The choice to show.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demo {
    PowerCut,
    /// The example of this name.
    One(&'static str),
    All,
}

impl Demo {
    /// `name` is that of an example, or its beginning.
    pub(crate) fn parse(name: Option<&str>, all: bool) -> Result<Self> {
        match name {
            Some(name) => Ok(Self::One(full_name(name)?)),
            None if all => Ok(Self::All),
            None => Ok(Self::PowerCut),
        }
    }

    /// Shows it; returns whether all went well.
    pub(crate) fn run(self, workspace: &Workspace, host: bool) -> Result<bool> {
        match (self, host) {
            (Self::PowerCut, false) => power_cut::show(workspace).map(|()| true),
            // Cutting this host's power is left to its owner.
            (Self::PowerCut, true) => one(workspace, power_cut::EXAMPLE, true),
            (Self::One(name), host) => one(workspace, name, host),
            (Self::All, host) => all(workspace, host),
        }
    }
}

fn full_name(name: &str) -> Result<&'static str> {
    if name == LOG {
        return Ok(LOG);
    }
    if let Some(example) = find(name) {
        return Ok(example.name);
    }
    let mut known = String::new();
    for (name, shows) in shows() {
        known += &format!("\n  {name:<42} {shows}");
    }
    bail!(
        "\"{name}\" is not the name of an example, nor the beginning of just one. The examples \
         are (the beginning of a name is enough, such as 05 or 08srq):{known}"
    );
}

/// All examples, each with its subject.
fn shows() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pairs = EXAMPLES.iter().map(|example| (example.name, example.shows));
    pairs.chain([(LOG, LOG_SHOWS)])
}

/// Shows one example, with the output of its programs.
fn one(workspace: &Workspace, name: &str, host: bool) -> Result<bool> {
    let (_, what) = shows()
        .find(|(known, _)| *known == name)
        .unwrap_or_default();
    println!("{name}: {what}\n");
    let test = test_name(name);
    let tests = MEMORIES.map(|memory| format!("{memory}{test}"));
    let options = ["--exact", "--nocapture"];
    show(workspace, host, &options, &tests, |line| {
        // The tests indent the lines to show, below the name of the memory.
        if line.starts_with("On ") {
            println!("\n{line}");
        } else if line.starts_with("  ") {
            println!("{line}");
        }
    })
}

/// Runs all examples, with one line for each and each of its memories.
fn all(workspace: &Workspace, host: bool) -> Result<bool> {
    let (mut passed, mut failed) = (0, 0);
    println!();
    let tests = MEMORIES.map(|memory| format!("{memory}_"));
    let ok = show(workspace, host, &[], &tests, |line| {
        let test = line.strip_prefix("test ");
        let Some((test, result)) = test.and_then(|test| test.split_once(" ... ")) else {
            return;
        };
        let example = test.replace("examples::pairs::", "").replace("::_", " ");
        let example = example.replace('_', "-");
        let example = example.trim_start_matches('-');
        let (count, verdict) = match result {
            "ok" => (&mut passed, "ok"),
            _ => (&mut failed, "FAIL"),
        };
        *count += 1;
        println!("  {verdict:<4} {example}");
    })?;
    println!("\n{passed} passed, {failed} failed");
    Ok(ok)
}

/// Runs tests of the examples, and gives each line of output to `see`. Returns whether they passed.
fn show(
    workspace: &Workspace,
    host: bool,
    options: &[&str],
    tests: &[String],
    mut see: impl FnMut(&str),
) -> Result<bool> {
    let mut lab = Lab::open(workspace, "demo", host)?;
    let log = workspace.log_file("demo.log")?;
    let mut examples = lab.cargo(Headers::Native, "build --examples")?;
    run_step("compile the examples", &mut examples, &log)?;
    let mut build = lab.cargo(Headers::Native, "test --no-run --test programs")?;
    run_step("compile what shows them", &mut build, &log)?;
    let mut cargo = lab.cargo_on_device(Headers::Native, "test", LIMIT)?;
    cargo.args(["--test", "programs", "--", "--include-ignored"]);
    cargo.args(options);
    // A host need not have persistent memory.
    let no_pmem = host && std::env::var_os("RPMA_TEST_DEVDAX").is_none();
    let tests = tests.iter();
    cargo.args(tests.filter(|test| !(no_pmem && test.contains("pmem"))));

    let mut file = File::options().append(true).open(&log)?;
    cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file.try_clone()?);
    let mut child = spawn(&mut cargo)?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            writeln!(file, "{line}")?;
            see(&line);
        }
    }
    let ok = child.wait()?.success();
    if !ok {
        let (log, end) = (log.display(), tail(&log, 30));
        println!("\nFAILED; the end of {log}:\n{end}");
    }
    Ok(ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        for unknown in ["", "0", "1", "l", "5", "05-flush-to-persistent-x"] {
            let text = Demo::parse(Some(unknown), false).unwrap_err().to_string();
            for (name, _) in shows() {
                assert!(text.contains(name), "{unknown:?}: {text}");
            }
        }
    }

    #[test]
    fn log_is_an_example_too() {
        assert!(matches!(
            Demo::parse(Some("log"), false),
            Ok(Demo::One("log"))
        ));
    }
}
