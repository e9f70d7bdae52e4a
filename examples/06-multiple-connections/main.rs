//! A server with one thread serves up to 10 clients at a time: it reads the name of each. One wait
//! is for all of them and for the endpoint.
//!
//! ```text
//! 06-multiple-connections server <server_address> <port> [<timeout>]
//! 06-multiple-connections client <server_address> <port> <seed>
//! ```
//!
//! The server ends after <timeout> seconds (15, if it is not given) without an event.
//!
//! # Differences from librpma's
//!
//! * While ten clients are connected, another one is rejected. In C, it takes the tenth client's
//!   place.
//! * If a client's request fails, or its name cannot be read, the server writes a line to stderr,
//!   serves the others, and ends with status 1. librpma's ends with 0.
//! * The server ends after 101 consecutive requests that the endpoint cannot take.
//! * The name is read at the offset that the client has sent. In C, it is read at offset 0, which
//!   both clients send.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
