//! Turns the findings of rpma-sys in the headers into cfgs for the examples and the device tests,
//! and the log of docs/testing-your-program.md into a file for tests/fabric/power/late.rs.

use std::path::Path;
use std::{env, fs};

const PAGE: &str = "docs/testing-your-program.md";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PAGE}");
    for name in ["native_flush", "native_atomic_write"] {
        println!("cargo::rustc-check-cfg=cfg({name})");
        let variable = format!("DEP_RPMA_VERBS_{}", name.to_uppercase());
        if env::var(variable).is_ok_and(|value| value == "1") {
            println!("cargo::rustc-cfg={name}");
        }
    }
    let page = fs::read_to_string(PAGE).expect("the page of the log");
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("log-of-the-docs.rs"), log_of(&page)).expect("it is written");
}

/// The code of the page that has a `Replica`, with a limit of 300 ms for each wait.
fn log_of(page: &str) -> String {
    let mut blocks = page
        .split("```")
        .filter(|block| block.starts_with("rust\n"));
    let log = blocks.find(|block| block.contains("struct Replica"));
    let log = log
        .expect("the page has the log")
        .trim_start_matches("rust\n");
    let (limit, shorter) = ("Duration::from_secs(10)", "Duration::from_millis(300)");
    assert!(log.contains(limit), "the log has its limit in one place");
    log.replace(limit, shorter)
}
