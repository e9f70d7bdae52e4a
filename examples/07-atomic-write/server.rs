//! The server: offers its log, and prints it when the client is done.

use std::io::Write;

use anyhow::Result;
use rpma::{Device, Ep, MrUsage, Peer, Side};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::memory::{Contents, Memory};
use crate::common::{conn, memory};
use crate::layout::{DATA_OFFSET, LOG_SIZE, USED_OFFSET, check_used};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path>]",
    notes: memory::NOTES,
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    // An empty log, or in persistent memory the words of earlier clients.
    let contents = Contents {
        signature: b"LOG\0\0\0\0\0",
        size: LOG_SIZE - USED_OFFSET,
        initial: &(DATA_OFFSET as u64).to_le_bytes(),
    };
    let memory = match more {
        [] => Memory::dram(USED_OFFSET, &contents)?,
        [path, ..] => Memory::pmem(path, 0, &contents)?,
    };

    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // The operations that a client may do with the log.
    let flush = if memory.is_pmem() {
        MrUsage::FLUSH_TYPE_PERSISTENT
    } else {
        MrUsage::FLUSH_TYPE_VISIBILITY
    };
    let region = memory.register(&peer, MrUsage::WRITE_DST | MrUsage::READ_SRC | flush)?;

    // The client learns from the region's descriptor where the log is.
    let data = CommonData {
        data_offset: region.offset_of(0)?,
        mr_desc: region.descriptor(),
        pcfg_desc: None,
    };
    let ep = Ep::listen(&peer, addr, port)?;
    let conn = conn::accept(&ep, &data.to_bytes())?;

    // The client writes now. On this side only the device takes part in it.
    conn::wait_and_disconnect(&conn)?;

    // One line for each word, with any bytes in it.
    let used = check_used(u64::from_le_bytes(region.load()?))?;
    let log = region.load::<{ LOG_SIZE - USED_OFFSET }>()?;
    let mut lines = log[DATA_OFFSET - USED_OFFSET..used - USED_OFFSET].to_vec();
    for byte in lines.iter_mut().filter(|byte| **byte == 0) {
        *byte = b'\n';
    }
    Ok(std::io::stdout().write_all(&lines)?)
}
