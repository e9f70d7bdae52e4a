//! The server: offers its memory, and then only waits until the client is done.

use anyhow::Result;
use rpma::{Device, Ep, MrUsage, Peer, PeerCfg, Side};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{conn, hello, memory};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path> [on]]",
    notes: memory::NOTES_ON,
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
    // do there. A flush for persistence makes sense only on persistent memory. This only permits
    // it. Whether it can be relied on is the meaning of "on", below.
    let mut usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    if memory.is_pmem() {
        usage |= MrUsage::FLUSH_TYPE_PERSISTENT;
    }
    let region = memory.register(&peer, usage)?;
    hello::print_old(&region)?;

    // The writes of a device may get no further than into a cache of the processor, which loses
    // them with the power. By "on", the operator of this machine vouches that they are not lost:
    // that the device's writes bypass the caches (Intel's DDIO is off for it), or that the caches
    // are saved when the power fails (eADR). No program can check that, and if it is wrong, data
    // can be lost after a flush for persistence as well. Without "on" the client's library refuses
    // such a flush: then only a program of the server can make the bytes durable (example 09).
    //
    // This is the configuration of our side, for the other side to read. Any other word is no
    // promise.
    let mut pcfg = PeerCfg::new();
    pcfg.set_direct_write_to_pmem(more.get(1).is_some_and(|word| word == "on"));

    // The client learns from the descriptors where the memory is and which guarantee it has.
    let data = CommonData {
        data_offset: region.offset_of(0)?,
        mr_desc: region.descriptor(),
        pcfg_desc: Some(pcfg.get_descriptor()),
    };
    let ep = Ep::listen(&peer, addr, port)?;
    let conn = conn::accept(&ep, &data.to_bytes())?;

    // The client writes and flushes now. On this side only the device takes part in it.
    conn::wait_and_disconnect(&conn)?;

    // The text that is there now. Only the client has learned whether its flush has completed: it
    // may have been killed before.
    hello::print_new(&region)
}
