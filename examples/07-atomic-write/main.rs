//! A client appends words to a log in the server's persistent memory. Each word is safe before the
//! log says that it is there: whenever the power fails, the log holds whole words only.
//!
//! ```text
//! 07-atomic-write server <server_address> <port> [<pmem-path>]
//! 07-atomic-write client <server_address> <port> <word1> [<word2> …]
//! ```

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// The log as it is in memory:
///
/// ```text
/// offset  size
///      0     8  the signature, in persistent memory
///      8     8  where its unused part begins, from the log's first byte on (little-endian)
///     16  1024  words that end with a zero each
/// ```
const USED_OFFSET: usize = 8;
const DATA_OFFSET: usize = 16;
const LOG_SIZE: usize = DATA_OFFSET + 1024;

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}

/// Where the unused part begins, if what a log says can be true.
fn check_used(used: u64) -> Result<usize> {
    match usize::try_from(used) {
        Ok(used @ DATA_OFFSET..=LOG_SIZE) => Ok(used),
        _ => bail!(
            "the log is damaged: its unused part begins at {used}, not between {DATA_OFFSET} and \
             {LOG_SIZE}"
        ),
    }
}
