//! A client sends a message, and with it a number of 4 bytes that needs no memory on either side:
//! the immediate data.
//!
//! ```text
//! 10-send-with-imm server <server_address> <port>
//! 10-send-with-imm client <server_address> <port> <imm> [word]
//! ```

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
