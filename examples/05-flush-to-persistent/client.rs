//! The client: writes its greeting into the server's memory, and flushes.

use anyhow::{Context, Result};
use rpma::{Device, Flags, FlushType, MrRemote, MrUsage, Peer, PeerCfg, Side};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{conn, hello, memory};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path> [<pmem-offset>]]",
    notes: memory::NOTES,
    main,
};

/// Distinguishes the flush from other operations; any number except the write's would do.
const FLUSH_ID: u64 = 0xF01D;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    // The greeting: in persistent memory, if the arguments name some.
    let memory = hello::client_memory(more)?;

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // The device takes the bytes to write directly from the registered memory.
    let src = memory.register(&peer, MrUsage::WRITE_SRC)?;
    hello::print_next(&src)?;

    // The server's answer has the place of its memory, and the server's promise whether the writes
    // of a device there survive a loss of power. The connection needs it as well: without the
    // promise it refuses a flush for persistence.
    let conn = conn::connect(&peer, addr, port, &[])?;
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let pcfg = data
        .pcfg_desc
        .context("the server has sent no peer configuration")?;
    let pcfg = PeerCfg::from_descriptor(&pcfg)?;
    conn.apply_remote_peer_cfg(&pcfg);
    let remote = MrRemote::from_descriptor(&data.mr_desc)?;
    let dst = remote.slice(data.range(hello::STR_SIZE))?;
    log::info!(
        "the server offers {} bytes of memory; writing {} of them through {}",
        remote.get_size(),
        dst.len(),
        device.get_name()
    );

    // A write to remote memory. Even its completion would only mean that the server's device has
    // the bytes: they may still be in the device, on their way, or in a cache of the processor. So
    // no completion is asked for, unless the write fails: then the wait below gets that.
    let string = src.slice(hello::STR)?;
    conn.write(dst, string, Flags::COMPLETION_ON_ERROR, 0)?;

    // A flush of the same bytes. It covers every write to them that was posted before it on this
    // connection. Its completion means that the bytes have arrived. If the server has promised it
    // and is right, they survive a loss of power there. Otherwise a reader of the server's memory
    // sees them, and a loss of power may still take them. If it fails, the state of the bytes is
    // unknown: all of them may be there, or a part, or no byte.
    //
    // The printed words are those of librpma's example. "Supported" means promised by the server.
    let flush_type = if pcfg.get_direct_write_to_pmem() {
        println!("RPMA_FLUSH_TYPE_PERSISTENT is supported");
        FlushType::Persistent
    } else {
        println!(
            "RPMA_FLUSH_TYPE_PERSISTENT is NOT supported, RPMA_FLUSH_TYPE_VISIBILITY is used instead"
        );
        FlushType::Visibility
    };
    log::info!(
        "{}",
        if conn.has_native_flush() {
            "flushing with the device's own flush operation"
        } else {
            "flushing by a small read, which cannot overtake the write and pushes it before it: the \
             device, or the rdma-core that this was built with, has no flush operation"
        }
    );
    conn.flush(dst, flush_type, Flags::COMPLETION_ALWAYS, FLUSH_ID)?;
    let opcode = conn::wait_for_completion(&conn, FLUSH_ID)?;
    log::info!(
        "the flush of {} bytes has completed ({opcode:?})",
        dst.len()
    );

    // The flush has completed, and so has the write before it: the greeting may change here. The
    // next run has it in the other language, if it is in persistent memory.
    hello::translate(&src)?;

    conn::disconnect_and_wait(&conn)
}
