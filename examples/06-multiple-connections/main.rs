//! A server with one thread serves up to 10 clients at a time: it reads the name of each. One wait
//! is for all of them and for the endpoint.
//!
//! ```text
//! 06-multiple-connections server <server_address> <port>
//! 06-multiple-connections client <server_address> <port> <seed>
//! ```
//!
//! The server ends after 15 seconds without an event.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
