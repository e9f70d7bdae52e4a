//! A client and a server send a counter to and fro, as in example 08. Their connections have two
//! completion queues: one for sends, and one for receives.
//!
//! ```text
//! 12-receive-completion-queue server <server_address> <port>
//! 12-receive-completion-queue client <server_address> <port> <seed> <rounds> [<sleep>]
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

/// How many completions the queue for receives has room for.
const RCQ_SIZE: u32 = 10;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
