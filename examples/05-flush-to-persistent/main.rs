//! A client writes a greeting into the server's persistent memory and flushes it there: when the flush
//! for persistence has completed, the greeting survives a loss of power, and no program of the server
//! had to do anything. Without persistent memory and `on` at the server, the flush is one for
//! visibility: when it has completed, the server's programs see the greeting, and that is all.
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
