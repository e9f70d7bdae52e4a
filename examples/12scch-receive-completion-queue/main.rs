//! A client and a server send a counter to and fro, as in example 12. The two completion queues of
//! a connection share one completion channel, and one call waits for both.
//!
//! ```text
//! 12scch-receive-completion-queue server <server_address> <port>
//! 12scch-receive-completion-queue client <server_address> <port> <seed> <rounds> [<sleep>]
//! ```
//!
//! The last round is the message that ends the exchange: with 3 rounds the client sends 2 values.
//!
//! # Differences from librpma's
//!
//! Also those in `../common/messages.rs`.
//!
//! * Completions may come in either order. In C, they must come in one order.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

use rpma::{ComplChannel, ConnCfg};

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}

/// The settings of both sides.
fn conn_cfg() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(10);
    cfg.set_compl_channel(ComplChannel::Shared);
    cfg
}
