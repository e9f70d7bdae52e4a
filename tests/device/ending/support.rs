//! The shared parts of these tests: operations of no bytes, and connections without an answer.

use crate::common::prelude::*;

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// Long enough that only a hang is longer, short enough that the kernel's own limits are longer.
pub(crate) const SOON: Duration = Duration::from_millis(300);

pub(crate) fn write_nothing(conn: &Conn, wr_id: u64) -> Result<Posted, Error> {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id)
}

/// An outgoing connection without an answer yet, and the endpoint that it asks.
pub(crate) fn unanswered(peer: &Peer) -> Result<(Conn, Ep)> {
    let ep = listen(peer)?;
    Ok((ask(peer, &ep, &ConnCfg::new())?, ep))
}
