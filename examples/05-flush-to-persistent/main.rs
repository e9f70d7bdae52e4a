//! A client writes a greeting into the server's persistent memory and flushes it there: when the
//! flush has completed, the greeting is safe, and no program of the server had to do anything.
//!
//! ```text
//! 05-flush-to-persistent server <server_address> <port> [<pmem-path> [on]]
//! 05-flush-to-persistent client <server_address> <port> [<pmem-path> [<pmem-offset>]]
//! ```

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
