//! Shows a fault of the crate `rpma-log`: runs the test that finds it.

#[path = "../../tests/fabric/replicated_log/found_by.rs"]
mod found_by;

use std::collections::BTreeSet;
use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use self::found_by::{BREAK, FOUND_BY, FOUND_BY_SCENE};

/// The test of `tests/scenes` that finds faults.
const SCENES: &str = "faults::each_fault_is_found_by_its_scene";

/// Runs the test that finds this fault, and prints the failure.
pub(crate) fn show(name: &str) -> Result<ExitCode> {
    let of = |table: &[(&str, &'static str)]| {
        let found = table.iter().find(|(of, _)| *of == name);
        found.map(|(_, by)| *by)
    };
    let (program, test) = match (of(&FOUND_BY), of(&FOUND_BY_SCENE)) {
        (Some(test), _) => ("fabric", format!("replicated_log::{test}")),
        (None, Some(_)) => ("scenes", SCENES.to_owned()),
        (None, None) => {
            let names = FOUND_BY
                .iter()
                .chain(&FOUND_BY_SCENE)
                .map(|(name, _)| *name);
            let names = Vec::from_iter(BTreeSet::from_iter(names)).join(", ");
            bail!("the faults are flush, tail, platform (here), and of rpma-log: {names}");
        }
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
    run.args(["--test", program, &test, "--", "--exact", "--nocapture"]);
    let status = run.status().context("cargo could not be run")?;
    match status.success() {
        // As for the faults of the short log.
        true => Ok(ExitCode::FAILURE),
        false => bail!("the fault was not found"),
    }
}
