//! The additional checks of `--long`: the versions that README.md and the manifests promise. These
//! take an installed tool or the network, which `cargo xtask test` must do without.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::report::Report;
use crate::guest::Guest;
use crate::guest::chroot;
use crate::host::{Toolchain, Workspace};
use crate::process::output;

pub(super) fn check(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    // Uncommitted changes are tested as well.
    let mut publish = workspace.cargo("publish --dry-run --workspace --locked --allow-dirty");
    report.check("versions: publish, dry run", &mut publish)?;

    // Advisories are looked up where there is a network: in the forge's workflow.
    let mut deny = workspace.cargo("deny --all-features check licenses bans sources");
    report.check(
        "versions: cargo deny (cargo install --locked cargo-deny)",
        &mut deny,
    )?;

    // Its own assembly, and the simulator's types: neither headers nor a linker are needed to look.
    let check = "check --locked -p rpma-async --no-default-features --features sim,tokio,async-io \
                 --target aarch64-unknown-linux-gnu";
    report.check(
        "versions: aarch64 (rustup target add aarch64-unknown-linux-gnu)",
        &mut workspace.cargo(check),
    )?;

    let guest = Guest::get(workspace)?;
    let toolchain = Toolchain::find(workspace)?;
    let rust = env!("CARGO_PKG_RUST_VERSION");
    let mut oldest = chroot::oldest_rust(&guest, workspace, &toolchain, rust);
    report.check(&format!("versions: Rust {rust}"), &mut oldest)?;
    oldest_dependencies(report, workspace)
}

/// The libraries with the oldest versions of their dependencies, in a copy of the clone: Cargo.lock
/// becomes another one.
fn oldest_dependencies(report: &mut Report<'_>, workspace: &Workspace) -> Result<()> {
    let dir = workspace.state_dir("oldest")?;
    let cargo = |words| {
        let mut cargo = workspace.cargo(words);
        // This variable makes any toolchain take the options of a nightly one.
        cargo.current_dir(&dir).env("RUSTC_BOOTSTRAP", "1");
        cargo
    };
    for entry in fs::read_dir(workspace.root())? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        let mut copy = Command::new("cp");
        copy.args(["-a", "--remove-destination", "-T"])
            .arg(entry.path())
            .arg(dir.join(&name));
        output(&mut copy)?;
    }
    let mut update = cargo("update -Z direct-minimal-versions");
    if report.check("versions: the oldest dependencies, resolved", &mut update)? {
        let test = "test --locked -p rpma-sys -p rpma -p rpma-async --features rpma-async/async-io";
        let mut test = cargo(test);
        report.cargo_test("versions: the oldest dependencies, tested", &mut test)?;
    }
    Ok(())
}
