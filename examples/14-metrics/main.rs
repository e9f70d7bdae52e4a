//! The counters of a connection, handed to the `metrics` facade: the client writes, and then shows
//! the numbers that an exporter would get. Not one of librpma's.
//!
//! ```text
//! 14-metrics server <server_address> <port>
//! 14-metrics client <server_address> <port>
//! ```

mod client;
#[path = "../common/mod.rs"]
mod common;
mod recorder;
mod report;
mod server;

use std::process::ExitCode;

/// Bytes of the server's memory.
const SIZE: usize = 256;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
