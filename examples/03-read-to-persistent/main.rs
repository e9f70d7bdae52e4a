//! A server reads a greeting from the memory of its client into its own persistent memory: either
//! side may connect, and either side may read.
//!
//! ```text
//! 03-read-to-persistent server <server_address> <port> [<pmem-path>]
//! 03-read-to-persistent client <server_address> <port> [<pmem-path> [<pmem-offset>]]
//! ```
//!
//! # Differences from librpma's
//!
//! Also those in `../common/memory.rs`.
//!
//! * The start of the data must fit the 16 bits of the wire. In C, it wraps around.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
