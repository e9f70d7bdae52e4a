//! The client: writes its greeting into the server's memory, and asks for a flush.

use anyhow::{Result, ensure};
use rpma::{ConnCfg, ConnReq, Device, Flags, MrRemote, MrUsage, Peer, Side};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{conn, hello, memory};
use crate::gpspm::{self, FlushRequest, FlushResponse, Messages};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path> [<pmem-offset>]]",
    notes: memory::NOTES,
    main,
};

/// Distinguishes the response to our request from others; any number would do.
const FLUSH_ID: u64 = 0xF01D;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    // The greeting: in persistent memory, if the arguments name some.
    let memory = hello::client_memory(more)?;

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // The device takes the bytes to write directly from the registered memory. Messages have memory
    // of their own.
    let src = memory.register(&peer, MrUsage::WRITE_SRC)?;
    let messages = Messages::new(&peer)?;
    hello::print_next(&src)?;

    // The receives of the connection complete in a queue of their own.
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(1);
    let conn = conn::establish(ConnReq::new(&peer, addr, port, &cfg)?, &[])?;

    // With its answer the server has sent where its memory is.
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let remote = MrRemote::from_descriptor(&data.mr_desc)?;
    let dst = remote.slice(data.range(hello::STR_SIZE))?;

    // A write of remote memory. Even its completion would only mean that the server's device has
    // the bytes: they may still be on their way to the memory. So it asks for one only on an error.
    let string = src.slice(hello::STR)?;
    conn.write(dst, string, Flags::COMPLETION_ON_ERROR, 0)?;

    // A message that asks the server to flush these bytes. It comes after the write on the same
    // connection, so when the server has it, the server's processor sees the bytes. A message needs
    // a receive that waits for it: the one for the response is posted before the request is sent.
    conn.recv(messages.receive_buffer()?, 0)?;
    let request = FlushRequest {
        offset: data.data_offset.into(),
        length: dst.len(),
        op_context: FLUSH_ID,
    };
    conn.send(messages.put(&request)?, Flags::COMPLETION_ALWAYS, 0)?;

    // The bytes are durable when the server answers so.
    let response: FlushResponse = gpspm::sent_and_answered(&conn, &messages)?;
    ensure!(
        response.op_context == FLUSH_ID,
        "the response is one to another request: 0x{:X}",
        response.op_context
    );

    // The next run has it in the other language.
    hello::translate(&src)?;

    conn::disconnect_and_wait(&conn)
}
