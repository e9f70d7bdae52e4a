//! A client appends words to a log in the server's persistent memory. Each word is safe before the
//! log counts it: whenever the power fails, the log holds whole words only.
//!
//! ```text
//! 07-atomic-write server <server_address> <port> [<pmem-path>]
//! 07-atomic-write client <server_address> <port> <word1> [<word2> …]
//! ```

mod client;
#[path = "../common/mod.rs"]
mod common;
mod layout;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
