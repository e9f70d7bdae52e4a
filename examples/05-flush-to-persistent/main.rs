//! A client writes a greeting into the server's persistent memory and flushes it there, and no
//! program on the server's machine takes part in either. If the server has persistent memory and
//! was started with `on`, the flush is one for persistence: when it has completed, the greeting
//! survives a loss of power of the server, provided that `on` is true. Otherwise it is one for
//! visibility: when it has completed, a reader of the server's memory sees the greeting, and that
//! is all.
//!
//! ```text
//! 05-flush-to-persistent server <server_address> <port> [<pmem-path> [on]]
//! 05-flush-to-persistent client <server_address> <port> [<pmem-path> [<pmem-offset>]]
//! ```
//!
//! # Differences from librpma's
//!
//! Also those in `../common/memory.rs`.
//!
//! * `Translation:` is printed on DRAM and on persistent memory. In C, on DRAM only.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
