//! The client: offers its greeting, and then only waits until the server has read it.

use anyhow::Result;
use rpma::{Device, MrUsage, Peer, Side};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{conn, hello, memory};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path> [<pmem-offset>]]",
    notes: memory::NOTES,
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    // The greeting: in persistent memory, if the arguments name some.
    let memory = hello::client_memory(more)?;

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // Registering memory gives the device access to it, and permits the server to do this there:
    // read.
    let src = memory.register(&peer, MrUsage::READ_SRC)?;
    hello::print_next(&src)?;

    // The server learns with the request where the memory is, and where the string is in it.
    let data = CommonData {
        data_offset: src.offset_of(hello::STR.start)?,
        mr_desc: src.descriptor(),
        pcfg_desc: None,
    };
    let conn = conn::connect(&peer, addr, port, &data.to_bytes())?;

    // The server reads now, and ends the connection when it has the greeting.
    conn::wait_and_disconnect(&conn)?;

    // The next run has it in the other language.
    hello::translate(&src)
}
