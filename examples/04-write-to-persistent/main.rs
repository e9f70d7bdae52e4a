//! A client writes a greeting into the server's memory, and makes sure with a read that it has
//! arrived there. (Example 05 does that with a flush.)
//!
//! ```text
//! 04-write-to-persistent server <server_address> <port> [<pmem-path>]
//! 04-write-to-persistent client <server_address> <port> [<pmem-path> [<pmem-offset>]]
//! ```
//!
//! # Differences from librpma's
//!
//! Those in `../common/memory.rs`.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
