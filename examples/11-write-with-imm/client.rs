//! The client: writes a number into the server's memory, with the same number as immediate data.

use anyhow::{Result, bail, ensure};
use rpma::{AlignedBuf, Device, Flags, Mr, MrRemote, MrUsage, Peer, Side, WcOpcode};

use crate::common::cli::{self, BadArgument, Role};
use crate::common::conn;
use crate::common::data::CommonData;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> <imm>",
    notes: "",
    main,
};

const SIZE: usize = 1024;
/// Distinguishes the write from other operations; any number would do.
const WRITE_ID: u64 = 1;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let [imm, ..] = more else {
        bail!(BadArgument("no immediate data".to_owned()));
    };
    let imm: u32 = cli::number("immediate data", imm)?;
    let mut memory = AlignedBuf::zeroed(SIZE)?;
    memory.as_mut_slice()[..4].copy_from_slice(&imm.to_le_bytes());

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // The device takes the bytes to write directly from the registered memory.
    let src = Mr::reg(&peer, memory, MrUsage::WRITE_SRC)?;

    // With its answer the server has sent where its memory is.
    let conn = conn::connect(&peer, addr, port, &[])?;
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let remote = MrRemote::from_descriptor(&data.mr_desc)?;
    let dst = remote.slice(data.range(SIZE))?;

    // A write of remote memory. The immediate data arrives when all of it is there.
    println!("Writing value '{imm}' with immediate data '{imm}'");
    let flags = Flags::COMPLETION_ALWAYS;
    conn.write_with_imm(dst, src.slice(..)?, flags, imm, WRITE_ID)?;
    let opcode = conn::wait_for_completion(&conn, WRITE_ID)?;
    ensure!(
        opcode == WcOpcode::RDMA_WRITE,
        "the completion of the write is one of another operation: {opcode}"
    );

    // The write is complete, so the server's device has the bytes and the immediate data: ending
    // the connection does not lose them.
    conn::disconnect_and_wait(&conn)
}
