//! The sets of features of rpma-async and rpma-log that users build, and the one crate that no
//! runtime may enter.

use anyhow::{Result, ensure};

use super::report::Report;
use crate::host::Workspace;
use crate::process::output;

/// The features of a build, on the simulator: no code depends on a runtime and on the libraries as
/// well. Other steps compile both runtimes together, with either.
const RUNTIMES: [&str; 3] = ["", "tokio", "async-io"];

/// Crates that only rpma-async may need.
const NOT_IN_RPMA: [&str; 4] = ["async-io", "futures-core", "rpma-async", "tokio"];

pub(super) fn check(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    for runtime in RUNTIMES {
        let words = format!(
            "clippy --locked -p rpma-async --all-targets --no-default-features --features sim,{runtime} \
             -- -Dwarnings"
        );
        let name = format!("clippy, rpma-async with sim {runtime}");
        report.check(name.trim_end(), &mut workspace.cargo(&words))?;
    }
    let log = "clippy --locked -p rpma-log --all-targets --no-default-features --features sim -- -Dwarnings";
    report.check(
        "clippy, rpma-log without a runtime",
        &mut workspace.cargo(log),
    )?;
    report.scenario("rpma needs no runtime", || rpma_needs_no_runtime(workspace));
    Ok(())
}

/// A program that blocks must not build a runtime.
fn rpma_needs_no_runtime(workspace: &Workspace) -> Result<String> {
    let tree =
        "tree --locked -p rpma --all-features --edges normal,build --prefix none --format {p}";
    let tree = output(&mut workspace.cargo(tree))?;
    let names = || tree.lines().filter_map(|line| line.split(' ').next());
    ensure!(names().any(|name| name == "rpma-sys"), "{tree}");
    for name in NOT_IN_RPMA {
        ensure!(!names().any(|found| found == name), "rpma needs {name}");
    }
    Ok(String::new())
}
