//! The server: reads the client's greeting, and makes it durable.

use anyhow::{Result, ensure};
use rpma::{Device, Ep, Flags, MrRemote, MrUsage, Peer, Side, WcOpcode};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{conn, hello, memory};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path>]",
    notes: memory::NOTES,
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    // Room for a string: in persistent memory, if the arguments name some.
    let memory = hello::server_memory(more)?;

    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // The read bytes land directly in registered memory.
    let dst = memory.register(&peer, MrUsage::READ_DST)?;
    hello::print_old(&dst)?;

    // With its request the client has sent where its memory is.
    let ep = Ep::listen(&peer, addr, port)?;
    let conn = conn::accept(&ep, &[])?;
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let remote = MrRemote::from_descriptor(&data.mr_desc)?;
    let src = remote.slice(data.range(hello::STR_SIZE))?;

    // A read. How long the device tries to reach a client that is gone is the client's choice, and
    // may be for ever: so this also watches the connection.
    let string = dst.slice(0..hello::STR_SIZE)?;
    conn.read(string, src, Flags::COMPLETION_ALWAYS, 0)?;
    let wc = conn::next_completion(&conn)?;
    let opcode = wc.result()?.opcode();
    ensure!(
        opcode == WcOpcode::RDMA_READ,
        "the completion of the read is one of another operation: {opcode}"
    );

    // The bytes are here, but maybe only in a cache of the processor. This is the program's own
    // memory, so it needs no flush over the network: it writes the cache back.
    dst.persist(0..hello::STR_SIZE)?;
    hello::print_new(&dst)?;

    conn::disconnect_and_wait(&conn)
}
