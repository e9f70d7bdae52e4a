//! The shared parts of these tests: regions, and the contents of a completion.

use crate::common::prelude::*;

/// A region for everything but persistent flushes.
pub(crate) fn any_use(peer: &Peer, len: usize) -> Result<Mr<Memory>> {
    region(peer, len, MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT)
}

pub(crate) fn all<M: RegisterableMemory>(mr: &Mr<M>) -> MrSlice<'_> {
    mr.slice(..).expect("all of it")
}

/// The result of a receive: its kind, its length, and the immediate data.
pub(crate) fn received(wc: &Wc, wr_id: u64) -> Result<(WcOpcode, Option<u32>, Option<u32>)> {
    assert_eq!(wc.wr_id(), wr_id, "{wc:?}");
    let success = wc.result()?;
    let len = success.byte_len().or(success.written_len());
    Ok((success.opcode(), len, success.imm_data()))
}

/// The next message has come: its kind, its length, and the immediate data.
#[track_caller]
pub(crate) fn receives(conn: &Conn, wr_id: u64) -> Result<(WcOpcode, Option<u32>, Option<u32>)> {
    received(&completion(conn)?, wr_id)
}

/// Both directions of a connection: the sender, and the receiver.
pub(crate) fn directions(pair: &Pair) -> [(&Conn, &Conn); 2] {
    [(&pair.client, &pair.server), (&pair.server, &pair.client)]
}
