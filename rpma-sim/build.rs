//! Ends the build with one sentence where the simulator cannot run, before the compiler lists each
//! function of Linux that is missing.

use std::{env, process};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "linux") {
        println!(
            "cargo::error=rpma and its simulated fabric need Linux: build in a container (`docker run --rm -it -v \
             .:/src -w /src rust cargo sim-test`) or in a virtual machine with Linux. On x86-64 Linux, `cargo xtask \
             vm up` starts a guest with RDMA"
        );
        process::exit(1);
    }
}
