//! A client reads a message from the server's memory, and no program of the server takes part in
//! it.
//!
//! ```text
//! 02-read-to-volatile server <server_address> <port>
//! 02-read-to-volatile client <server_address> <port>
//! ```
//!
//! # Differences from librpma's
//!
//! * It is an error if the region has more than 1024 bytes, if the server sends no descriptor, or
//!   if the message has no zero at its end. librpma's client exits with 0, or reads past its
//!   buffer.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
