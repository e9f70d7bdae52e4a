//! A server with one thread serves up to 10 clients at a time, as in example 06, with an
//! epoll of the program's own. The completion queues of a connection share one completion channel.
//!
//! ```text
//! 06scch-multiple-connections server <server_address> <port> [<timeout>]
//! 06scch-multiple-connections client <server_address> <port> <seed>
//! ```
//!
//! The server ends after <timeout> seconds (15, if it is not given) without an event.
//!
//! # Differences from librpma's
//!
//! As in example 06.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
