//! The client: reads the server's memory.

use std::ffi::CStr;

use anyhow::{Context, Result, ensure};
use rpma::{AlignedBuf, Device, Flags, Mr, MrRemote, MrUsage, Peer, Side, WcOpcode};

use crate::common::cli::Role;
use crate::common::conn;
use crate::common::data::CommonData;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port>",
    notes: "",
    main,
};

const SIZE: usize = 1024;
/// Distinguishes the read from other operations; any number would do.
const READ_ID: u64 = 1;

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // The read bytes land directly in registered memory.
    let dst = Mr::reg(&peer, AlignedBuf::zeroed(SIZE)?, MrUsage::READ_DST)?;

    // With its answer the server has sent where its memory is, and how much.
    let conn = conn::connect(&peer, addr, port, &[])?;
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let src = MrRemote::from_descriptor(&data.mr_desc)?;
    let size = usize::try_from(src.get_size())?;
    ensure!(
        size <= SIZE,
        "the server's memory region has {size} bytes, more than the {SIZE} that there is room for"
    );

    // A read of all of it. Posting only hands it to the device: the bytes are here when the read
    // has completed.
    conn.read(
        dst.slice(..size)?,
        src.slice(..)?,
        Flags::COMPLETION_ALWAYS,
        READ_ID,
    )?;
    let opcode = conn::wait_for_completion(&conn, READ_ID)?;
    ensure!(
        opcode == WcOpcode::RDMA_READ,
        "the completion of the read is one of another operation: {opcode}"
    );

    let mut bytes = [0; SIZE];
    dst.read_at(0, &mut bytes)?;
    let message = CStr::from_bytes_until_nul(&bytes).context("the message has no end")?;
    println!("Read a message: {}", message.to_string_lossy());

    conn::disconnect_and_wait(&conn)
}
