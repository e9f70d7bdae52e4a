//! The server: offers its memory, and waits for the immediate data of a write.

use anyhow::{Context, Result, ensure};
use rpma::{AlignedBuf, ConnCfg, Device, Ep, Mr, MrSlice, MrUsage, Peer, Side, WcOpcode};

use crate::common::cli::Role;
use crate::common::conn;
use crate::common::data::CommonData;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port>",
    notes: "",
    main,
};

const SIZE: usize = 1024;

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // Registering memory gives the device access to it, and permits a client to do this there:
    // write.
    let dst = Mr::reg(&peer, AlignedBuf::zeroed(SIZE)?, MrUsage::WRITE_DST)?;

    // The client learns from the region's descriptor where the memory is.
    let data = CommonData {
        data_offset: 0,
        mr_desc: dst.get_descriptor(),
        pcfg_desc: None,
    };

    // A write with immediate data takes a receive, as a message does. But its bytes go to the
    // client's destination: the receive needs no memory.
    let ep = Ep::listen(&peer, addr, port)?;
    let req = ep.next_conn_req(&ConnCfg::new())?;
    req.recv(MrSlice::EMPTY, 0)?;
    let conn = conn::establish(req, &data.to_bytes())?;

    let wc = conn::next_completion(&conn)?;
    let success = wc.result()?;
    let opcode = success.opcode();
    ensure!(
        opcode == WcOpcode::RECV_RDMA_WITH_IMM,
        "the completion of the receive is one of another operation: {opcode}"
    );

    // The immediate data comes with the completion, and the written bytes are in memory.
    let imm = success.imm_data();
    let imm = imm.context("the write came without immediate data")?;
    let mut bytes = [0; 4];
    dst.read_at(0, &mut bytes)?;
    let value = u32::from_le_bytes(bytes);
    ensure!(
        imm == value,
        "the immediate data is {imm}, and the client has written {value}"
    );
    println!("The value '{value}' was written together with immediate data '{imm}'");

    conn::wait_and_disconnect(&conn)
}
