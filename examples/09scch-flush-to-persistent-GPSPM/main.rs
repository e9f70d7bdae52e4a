//! Example 09 with one completion channel for both completion queues of a connection: a program
//! that waits for either queue sleeps in one place.
//!
//! ```text
//! 09scch-flush-to-persistent-GPSPM server <server_address> <port> [<pmem-path>]
//! 09scch-flush-to-persistent-GPSPM client <server_address> <port> [<pmem-path> [<pmem-offset>]]
//! ```
//!
//! # Differences from librpma's
//!
//! Also those in `../common/memory.rs` and `../common/gpspm.rs`.
//!
//! * Completions may come in either order. In C, they must come in one order.

mod client;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/gpspm.rs"]
mod gpspm;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
