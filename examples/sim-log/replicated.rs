//! Shows a fault of the crate `rpma-log`: runs the test that finds it.

#[path = "../../tests/fabric/replicated_log/found_by.rs"]
mod found_by;

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use self::found_by::{BREAK, FOUND_BY};

/// Runs the test that finds this fault, and prints the failure.
pub(crate) fn show(name: &str) -> Result<ExitCode> {
    let Some((_, test)) = FOUND_BY.iter().find(|(of, _)| *of == name) else {
        let names = FOUND_BY.map(|(name, _)| name).join(", ");
        bail!("the faults are flush, tail, platform (here), and of rpma-log: {names}");
    };
    println!("Broken: {name}, in rpma-log. The test {test} finds it.\n");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = Command::new(cargo);
    run.current_dir(env!("CARGO_MANIFEST_DIR")).env(BREAK, name);
    run.args([
        "test",
        "--quiet",
        "--no-default-features",
        "--features",
        "sim",
    ]);
    let test = format!("replicated_log::{test}");
    run.args(["--test", "fabric", &test, "--", "--exact", "--nocapture"]);
    let status = run.status().context("cargo could not be run")?;
    match status.success() {
        // As for the faults of the short log.
        true => Ok(ExitCode::FAILURE),
        false => bail!("the fault was not found"),
    }
}
