//! The linking of a program that uses rpma, and of its tests with the feature `sim`:
//! `tests/linking/` is such a program, in a workspace of its own.
//!
//! Promises: the simulator is in the tests alone, never in the result of `cargo build`; and while
//! no fabric is alive the program's tests find no device, and get the reason.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::failed::Result;

/// Runs cargo with these words on the program, with a target directory that is ours.
fn cargo(words: &[&str]) -> Result<Output> {
    Ok(command(words).output()?)
}

fn command(words: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(words)
        .args(["--offline", "--manifest-path"])
        .arg(root.join("tests/linking/Cargo.toml"))
        .arg("--target-dir")
        .arg(target());
    command
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("linking")
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// The libraries that a program is linked to, and whether the simulator is in it.
fn linked(program: &Path) -> Result<(bool, bool)> {
    let bytes = std::fs::read(program)?;
    let has = |what: &str| {
        bytes
            .windows(what.len())
            .any(|part| part == what.as_bytes())
    };
    Ok((has("libibverbs.so"), has("no simulated Fabric is alive")))
}

#[test]
#[ignore = "long: it compiles a workspace of its own three times"]
fn the_simulator_is_in_the_tests_alone() -> Result {
    let built = cargo(&["build", "--release"])?;
    assert!(built.status.success(), "{}", text(&built));
    let program = target().join("release/linking");
    assert_eq!(
        linked(&program)?,
        (true, false),
        "libibverbs, and no simulator"
    );

    let tested = cargo(&["test"])?;
    let said = text(&tested);
    assert!(tested.status.success(), "{said}");
    assert!(said.contains("test a_write_arrives ... ok"), "{said}");
    assert!(said.contains("test without_a_fabric ... ok"), "{said}");

    // Not even when it is built after its tests.
    let built = cargo(&["build"])?;
    assert!(built.status.success(), "{}", text(&built));
    assert_eq!(linked(&target().join("debug/linking"))?, (true, false));
    Ok(())
}

/// Promise: a build without the libraries ends with the packages, and with the way to do without.
#[test]
#[ignore = "long: it compiles bindgen"]
fn a_build_without_libraries_names_the_simulated_one() -> Result {
    let mut build = command(&["build"]);
    build.env_remove("PKG_CONFIG_PATH");
    let built = build.env("PKG_CONFIG_LIBDIR", "/nonexistent").output()?;
    let said = text(&built);
    assert!(!built.status.success(), "{said}");
    for words in ["libibverbs-dev", "--no-default-features --features sim"] {
        assert!(said.contains(words), "{said}");
    }
    Ok(())
}
