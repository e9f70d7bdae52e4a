//! A client appends words to the logs of two servers, with tokio and `rpma-async`. Both devices
//! read each word from the same memory, at the same time. Not one of librpma's.
//!
//! ```text
//! 15-append-to-replicas server <server_address> <port> [<pmem-path>]
//! 15-append-to-replicas client <server_address> <port> <2nd_server_address> <2nd_port> <word1> [<word2> …]
//! ```
//!
//! The server and its log are those of example 07.

mod client;
#[path = "../common/mod.rs"]
mod common;
#[path = "../07-atomic-write/layout.rs"]
mod layout;
#[path = "../07-atomic-write/server.rs"]
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
