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
//!
//! # Differences from librpma's
//!
//! Also those in `../common/messages.rs`.
//!
//! * An eleventh client is rejected, and the others are served. librpma's server fails, and
//!   disconnects all clients.
//! * Each answer is copied from memory when it is posted. In C, another client's message may
//!   overwrite it before it is sent.
//! * Answers have completions, which are polled. In C they have none, and the send queue is full
//!   after some rounds.
//! * The queue pair of each message is checked. In C, it is not checked if there is only one
//!   client.
//! * If a client dies, the server ends with status 1, as soon as it no longer listens. librpma's
//!   waits for ever.
//! * Only an accepted client restarts the server's time limit. In C, any request restarts it.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
