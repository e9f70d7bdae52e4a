//! The server: offers its memory, and then only waits until the client is done.

use anyhow::Result;
use rpma::{Device, Ep, MrUsage, Peer, Side};

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

    // Registering memory gives the device access to it, and sets the operations that a client may
    // do there.
    let region = memory.register(&peer, MrUsage::WRITE_DST | MrUsage::READ_SRC)?;
    hello::print_old(&region)?;

    // The client learns from the region's descriptor where the memory is.
    let data = CommonData {
        data_offset: region.offset_of(0)?,
        mr_desc: region.descriptor(),
        pcfg_desc: None,
    };
    let ep = Ep::listen(&peer, addr, port)?;
    let conn = conn::accept(&ep, &data.to_bytes())?;

    // The client writes now. On this side only the device takes part in it.
    conn::wait_and_disconnect(&conn)?;

    hello::print_new(&region)
}
