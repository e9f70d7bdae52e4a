//! A client and a server send a counter to and fro, as in example 12. The two completion queues of a
//! connection share one completion channel, and one call waits for both.
//!
//! ```text
//! 12scch-receive-completion-queue server <server_address> <port>
//! 12scch-receive-completion-queue client <server_address> <port> <seed> <rounds> [<sleep>]
//! ```
//!
//! The last round is the message that ends the exchange: with 3 rounds the client sends 2 values.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod server;

use std::process::ExitCode;

use anyhow::Result;
use common::{messages, watch};
use rpma::{ComplChannel, Conn, ConnCfg, Cq, CqKind, Wc};

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

/// What has completed, and nobody has waited for yet. The two kinds come in either order: the answer to
/// a message can be here before the acknowledgement of that message.
#[derive(Default)]
struct Completed {
    sends: u32,
    messages: u32,
}

impl Completed {
    /// Waits until a message is sent. Before that its memory must not change.
    fn wait_for_send(&mut self, conn: &Conn) -> Result<()> {
        while self.sends == 0 {
            self.wait(conn)?;
        }
        self.sends -= 1;
        Ok(())
    }

    /// Waits until a message is here.
    fn wait_for_message(&mut self, conn: &Conn) -> Result<()> {
        while self.messages == 0 {
            self.wait(conn)?;
        }
        self.messages -= 1;
        Ok(())
    }

    /// Waits for an event of either queue, or the connection's end, which is an error.
    fn wait(&mut self, conn: &Conn) -> Result<()> {
        // The descriptor of each of the two queues is that of the channel (Conn::get_compl_fd).
        watch::completion_event(conn, conn.get_cq())?;
        self.take(conn.wait()?)
    }

    /// Empties the queue that had an event: what is in there by now gives no other one.
    fn take(&mut self, (cq, kind): (&Cq, CqKind)) -> Result<()> {
        let mut wcs = [Wc::default()];
        while cq.get_wc(&mut wcs)? > 0 {
            wcs[0].result()?;
            match kind {
                CqKind::Main => self.sends += 1,
                CqKind::Receive => {
                    messages::check_message(&wcs[0])?;
                    self.messages += 1;
                }
            }
        }
        Ok(())
    }
}
