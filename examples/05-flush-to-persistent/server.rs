//! The server: offers its memory, and then only waits until the client is done.

use anyhow::Result;
use rpma::{Device, Ep, MrUsage, Peer, PeerCfg, Side};

use crate::cli::Role;
use crate::data::CommonData;
use crate::memory::Memory;
use crate::{conn, hello, memory};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path>] [direct-pmem-write]",
    notes: memory::NOTES,
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let memory = match more {
        [] => Memory::dram(hello::STR_SIZE, b"\0")?,
        [path, ..] => Memory::pmem(path, 0, hello::STR_SIZE, b"\0")?,
    };

    // The device that has the address, and on it a peer: what this program registers and connects.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // Registering memory gives the device access to it, and says what a client may do there. A
    // persistent flush makes sense only for persistent memory.
    let mut usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    if !more.is_empty() {
        usage |= MrUsage::FLUSH_TYPE_PERSISTENT;
    }
    let region = memory.register(&peer, usage)?;

    let old = region.load::<{ hello::STR_SIZE }>()?;
    if old[0] != 0 {
        println!("Old value: {}", hello::text(&old));
    }

    // What a device writes may get no further than into a cache of the processor, which loses it
    // with the power. "on" is the word of whoever runs this machine that it does not: either the
    // devices' writes bypass the caches, or the caches are saved when the power fails. Only with it
    // will a client do a persistent flush.
    let mut pcfg = PeerCfg::new();
    pcfg.set_direct_write_to_pmem(more.get(1).is_some_and(|word| word == "on"));

    // The client learns from the descriptors where the memory is and what it may rely on.
    let data = CommonData {
        data_offset: region.data_offset()?,
        mr_desc: region.descriptor(),
        pcfg_desc: Some(pcfg.get_descriptor()),
    };
    let ep = Ep::listen(&peer, addr, port)?;
    let conn = conn::accept(&ep, &data.to_bytes())?;

    // The client writes and flushes now, and nothing here takes part in it but the device.
    conn::wait_and_disconnect(&conn)?;

    let new = region.load::<{ hello::STR_SIZE }>()?;
    println!("New value: {}", hello::text(&new));
    Ok(())
}
