//! Example 09 with one completion channel for both completion queues of a connection: a program that
//! waits for either queue sleeps in one place.
//!
//! ```text
//! 09scch-flush-to-persistent-GPSPM server <server_address> <port> [<pmem-path>]
//! 09scch-flush-to-persistent-GPSPM client <server_address> <port> [<pmem-path> [<pmem-offset>]]
//! ```

mod client;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/gpspm.rs"]
mod gpspm;
mod server;

use std::process::ExitCode;

use anyhow::Result;
use rpma::{Conn, Wc};

fn main() -> ExitCode {
    common::cli::run(&client::ROLE, &server::ROLE)
}

/// Waits for the next completion in either queue of the connection. The connection's end is an error.
///
/// Here each queue gets one completion. Where it may get more, it has to be emptied before the next
/// wait: what is in there already gives no event.
fn next_completion(conn: &Conn) -> Result<Wc> {
    let mut wcs = [Wc::default()];
    loop {
        // The descriptor of each of the two queues is that of their channel (Conn::get_compl_fd).
        common::watch::completion_event(conn, conn.get_cq())?;
        let (cq, _kind) = conn.wait()?;
        if cq.get_wc(&mut wcs)? > 0 {
            wcs[0].result()?;
            return Ok(wcs[0]);
        }
    }
}
