//! The server: offers memory, and waits until the client is done.

use anyhow::Result;
use rpma::{AlignedBuf, Ep, Mr, MrUsage, Peer};

use crate::SIZE;
use crate::common::cli::Role;
use crate::common::conn;
use crate::common::data::CommonData;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port>",
    notes: "",
    main,
};

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    let peer = Peer::at(addr)?;
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    let mr = Mr::reg(&peer, AlignedBuf::zeroed(SIZE)?, usage)?;
    let data = CommonData {
        data_offset: 0,
        mr_desc: mr.get_descriptor(),
        pcfg_desc: None,
    };
    let ep = Ep::listen(&peer, addr, port)?;
    let conn = conn::accept(&ep, &data.to_bytes())?;
    conn::wait_and_disconnect(&conn)
}
