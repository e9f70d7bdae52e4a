//! `cargo xtask bench`: what operations cost.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::Lab;

/// Counts instructions, and prints the table.
pub(crate) fn cost(workspace: &Workspace) -> Result<ExitStatus> {
    let mut lab = Lab::open(workspace, "bench", false)?;
    let mut bench = lab.cargo_on_device(Headers::Native, "bench", Duration::ZERO)?;
    Ok(bench.args(["--bench", "cost"]).status()?)
}
