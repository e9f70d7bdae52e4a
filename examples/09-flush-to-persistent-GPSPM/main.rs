//! A client writes a greeting into the server's persistent memory, and asks the server's program to
//! make it durable: the general purpose server persistency method. It is for servers with devices
//! that do not write to persistent memory directly. (In example 05 the client alone does it.)
//!
//! ```text
//! 09-flush-to-persistent-GPSPM server <server_address> <port> [<pmem-path>]
//! 09-flush-to-persistent-GPSPM client <server_address> <port> [<pmem-path> [<pmem-offset>]]
//! ```
//!
//! # Differences from librpma's
//!
//! Those in `../common/memory.rs` and `../common/gpspm.rs`.

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
