//! A client: offers its name, and waits until the server ends the connection.

use anyhow::{Result, bail};
use rpma::{AlignedBuf, Device, Mr, MrUsage, Peer, Side};

use crate::common::cli::{BadArgument, Role, number};
use crate::common::data::CommonData;
use crate::common::{conn, names};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> <seed>",
    notes: "",
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let [seed, ..] = more else {
        bail!(BadArgument("no seed".to_owned()));
    };
    let name = names::of_seed(number("seed", seed)?);
    println!("My names is: {name}");

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // Memory that the server may read.
    let mut memory = AlignedBuf::zeroed(names::SIZE)?;
    memory.as_mut_slice()[..name.len()].copy_from_slice(name.as_bytes());
    let mr = Mr::reg(&peer, memory, MrUsage::READ_SRC)?;

    // The server learns from the request where it is.
    let data = CommonData {
        data_offset: 0,
        mr_desc: mr.get_descriptor(),
        pcfg_desc: None,
    };
    let conn = conn::connect(&peer, addr, port, &data.to_bytes())?;

    // The server reads now. On this side only the device takes part in it.
    conn::wait_and_disconnect(&conn)
}
