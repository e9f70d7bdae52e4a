//! Turns the version of the headers that rpma-sys has found into a variable of the compiler.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(version) = env::var("DEP_RPMA_VERBS_LIBIBVERBS") {
        println!("cargo::rustc-env=RPMA_CLI_BUILT_WITH={version}");
    }
}
