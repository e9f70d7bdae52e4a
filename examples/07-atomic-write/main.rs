//! A client appends words to a log in the server's persistent memory. Each word is safe before the
//! log counts it: whenever the power fails, the log holds whole words only.
//!
//! ```text
//! 07-atomic-write server <server_address> <port> [<pmem-path>]
//! 07-atomic-write client <server_address> <port> <word1> [<word2> …]
//! ```
//!
//! # Differences from librpma's
//!
//! Also those in `../common/memory.rs`.
//!
//! * All words go into the log, or no word. If there is no room for all, or a word has more than
//!   1023 bytes, the client ends with status 1 or 255. librpma's writes after the log's end, and
//!   cuts a long word.
//! * The client refuses a server whose log is not at offset 8, or in a region of fewer than 1040
//!   bytes. librpma's uses any offset and size that it receives.
//! * `Log size exhausted.` appears when the log's 1024 bytes are used. In C, it appears when the
//!   whole region is used, which may be the whole device.
//! * If the log's unused part begins at an impossible place, that is an error on both sides.
//!   librpma's server prints the memory up to that place.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod layout;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}
