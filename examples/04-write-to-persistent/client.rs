//! The client: writes its greeting into the server's memory, and reads a little after it.

use anyhow::{Result, ensure};
use rpma::{AlignedBuf, Device, Flags, Mr, MrRemote, MrUsage, Peer, Side, WcOpcode};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{conn, hello, memory};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path> [<pmem-offset>]]",
    notes: memory::NOTES,
    main,
};

/// How much is read after the write: the contents do not matter.
const RAW_SIZE: usize = 8;
/// Distinguishes the read from other operations; any number would do.
const RAW_ID: u64 = 1;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    // The greeting: in persistent memory, if the arguments name some.
    let memory = hello::client_memory(more)?;

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // The device takes the bytes to write directly from the registered memory, and the bytes that
    // it reads from the server land in such memory.
    let src = memory.register(&peer, MrUsage::WRITE_SRC)?;
    let raw = Mr::reg(&peer, AlignedBuf::zeroed(RAW_SIZE)?, MrUsage::READ_DST)?;
    hello::print_next(&src)?;

    // With its answer the server has sent where its memory is.
    let conn = conn::connect(&peer, addr, port, &[])?;
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let remote = MrRemote::from_descriptor(&data.mr_desc)?;
    let dst = remote.slice(data.range(hello::STR_SIZE))?;

    // A write of remote memory. Even its completion would only mean that the server's device has
    // the bytes: they may still be on their way to the memory. So it asks for one only on an error.
    let string = src.slice(hello::STR)?;
    conn.write(dst, string, Flags::COMPLETION_ON_ERROR, 0)?;

    // A read of the same memory region. The server's device does it after the write, and the answer
    // cannot overtake the written bytes on their way: when it is here, they have arrived.
    let head = remote.slice(..RAW_SIZE as u64)?;
    conn.read(raw.slice(..)?, head, Flags::COMPLETION_ALWAYS, RAW_ID)?;
    let opcode = conn::wait_for_completion(&conn, RAW_ID)?;
    ensure!(
        opcode == WcOpcode::RDMA_READ,
        "the completion of the read is one of another operation: {opcode}"
    );

    // The next run has it in the other language.
    hello::translate(&src)?;

    conn::disconnect_and_wait(&conn)
}
