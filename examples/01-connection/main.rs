//! Two programs connect, and exchange a message each while they do.
//!
//! ```text
//! 01-connection server <addr> <port>
//! 01-connection client <addr> <port>
//! ```
//!
//! # Differences from librpma's
//!
//! * If all bytes of the private data are zero, the program prints `No message received`. librpma's
//!   prints `Received a message: ` and the bytes, because private data always arrives, padded with
//!   zeros.
//! * A text without a zero at its end, or one that is not UTF-8, is an error.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::ffi::CStr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

/// For the other side to answer: it may stand still, and the kernel would wait with us.
const ANSWER: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}

/// Prints the message in the private data of a connection: a text that ends with a zero. Private
/// data arrives padded with zeros, even if the peer has sent none.
fn print_message(private_data: &[u8]) -> Result<()> {
    if private_data.iter().all(|&byte| byte == 0) {
        println!("No message received");
        return Ok(());
    }
    let message = CStr::from_bytes_until_nul(private_data)
        .ok()
        .and_then(|message| message.to_str().ok())
        .filter(|message| !message.is_empty())
        .context("the peer's private data is not a text that ends with a zero")?;
    println!("Received a message: {message}");
    Ok(())
}
