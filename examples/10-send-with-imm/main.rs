//! A client sends a message, and with it a number of 4 bytes that needs no memory on either side:
//! the immediate data.
//!
//! ```text
//! 10-send-with-imm server <server_address> <port>
//! 10-send-with-imm client <server_address> <port> <imm> [word]
//! ```
//!
//! # Differences from librpma's
//!
//! * The number in the private data is little-endian. In C, it is in the host's order.
//! * A word of more than 1023 bytes is refused. librpma's client prints the whole word, and sends
//!   the beginning of it.
//! * If the number is wrong, the server ends at once. librpma's ends after the client's end.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
