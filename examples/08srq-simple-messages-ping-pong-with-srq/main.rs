//! A client and a server send a counter to and fro, as in example 08. The server takes the messages
//! from a shared receive queue.
//!
//! ```text
//! 08srq-simple-messages-ping-pong-with-srq server <server_address> <port> [m|r]
//! 08srq-simple-messages-ping-pong-with-srq client <server_address> <port> <seed> <rounds> [<sleep>]
//! ```
//!
//! The server's last argument chooses where its receives complete: in the main completion queue of
//! the connection (m), in the connection's completion queue for receives (r), or, without it, in
//! the completion queue of the shared receive queue.
//!
//! # Differences from librpma's
//!
//! Also those in `../common/messages.rs`.
//!
//! * Answers have completions, which are polled. In C they have none, and the send queue is full
//!   after some rounds.
//! * The queue pair of each message is checked. In C, that of the last message is not.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
