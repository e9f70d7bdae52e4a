//! The server: offers a message, and then only waits until the client is done.

use anyhow::Result;
use rpma::{AlignedBuf, Device, Ep, Mr, MrUsage, Peer, Side};

use crate::common::cli::Role;
use crate::common::conn;
use crate::common::data::CommonData;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port>",
    notes: "",
    main,
};

const MESSAGE: &[u8] = b"Hello client!\0";

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    let mut memory = AlignedBuf::zeroed(MESSAGE.len())?;
    memory.as_mut_slice().copy_from_slice(MESSAGE);

    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // Registering memory gives the device access to it, and permits a client to do this there:
    // read.
    let mr = Mr::reg(&peer, memory, MrUsage::READ_SRC)?;

    // The client learns from the region's descriptor where the memory is.
    let data = CommonData {
        data_offset: 0,
        mr_desc: mr.get_descriptor(),
        pcfg_desc: None,
    };
    let ep = Ep::listen(&peer, addr, port)?;
    let conn = conn::accept(&ep, &data.to_bytes())?;

    // The client reads now. On this side only the device takes part in it.
    conn::wait_and_disconnect(&conn)
}
