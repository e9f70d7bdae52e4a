//! Up to 10 clients and a server send counters to and fro. All clients' messages land in the
//! receives of one shared receive queue.
//!
//! ```text
//! 13-messages-ping-pong-with-srq server <server_address> <port> [<timeout>]
//! 13-messages-ping-pong-with-srq client <server_address> <port> <seed> <rounds> [<sleep>]
//! ```
//!
//! The server accepts clients until no client has come for <timeout> seconds (5, if it is not
//! given), and serves them then.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
