//! A client and a server send a counter to and fro, as messages. Each message lands in a receive
//! that the other side has posted before.
//!
//! ```text
//! 08-messages-ping-pong server <server_address> <port>
//! 08-messages-ping-pong client <server_address> <port> <seed> <rounds> [<sleep>]
//! ```
//!
//! The last round is the message that ends the exchange: with 3 rounds the client sends 2 values.
//!
//! # Differences from librpma's
//!
//! Those in `../common/messages.rs`.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
