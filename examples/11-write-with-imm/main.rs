//! A client writes into the server's memory, and notifies the server with immediate data: a number
//! of 4 bytes that comes when the written bytes are there.
//!
//! ```text
//! 11-write-with-imm server <server_address> <port>
//! 11-write-with-imm client <server_address> <port> <imm>
//! ```
//!
//! # Differences from librpma's
//!
//! * If the number is wrong, the server ends at once. librpma's ends after the client's end.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
