//! Example 06 with tokio and `rpma-async`: the server has a task for each client, all of them on
//! one thread.
//!
//! ```text
//! 06tokio-multiple-connections server <server_address> <port> [<timeout>]
//! 06tokio-multiple-connections client <server_address> <port> <seed>
//! ```
//!
//! The client is that of example 06. The server ends after <timeout> seconds (15, if it is not
//! given) without an event.

#[path = "../06-multiple-connections/client.rs"]
mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
