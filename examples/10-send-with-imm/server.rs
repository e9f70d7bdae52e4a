//! The server: receives one message and its immediate data.

use anyhow::{Context, Result, ensure};
use rpma::{AlignedBuf, ConnCfg, Device, Ep, Mr, MrUsage, Peer, Side, WcOpcode};

use crate::common::cli::Role;
use crate::common::conn;

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

    // A message lands directly in registered memory.
    let dst = Mr::reg(&peer, AlignedBuf::zeroed(SIZE)?, MrUsage::RECV)?;

    // A message needs a receive that waits for it: it is posted before the client can send.
    let ep = Ep::listen(&peer, addr, port)?;
    let req = ep.next_conn_req(&ConnCfg::new())?;
    req.recv(dst.slice(..)?, 0)?;
    let conn = conn::establish(req, &[])?;

    // With its request the client has sent the number that is going to come.
    let expected = conn.get_private_data().first_chunk();
    let expected = expected.context("the client has not sent the number to expect")?;
    let expected = u32::from_le_bytes(*expected);

    let wc = conn::next_completion(&conn)?;
    let success = wc.result()?;
    let opcode = success.opcode();
    ensure!(
        opcode == WcOpcode::RECV,
        "the completion of the receive is one of another operation: {opcode}"
    );

    // The immediate data comes with the completion, and the message is in memory.
    let imm = success.imm_data();
    let imm = imm.context("the message came without immediate data")?;
    ensure!(
        imm == expected,
        "the immediate data is {imm}, not {expected}"
    );
    let len = success.byte_len().context("the message has no length")?;
    let mut message = vec![0; len.try_into()?];
    dst.read_at(0, &mut message)?;
    let end = message.iter().position(|&byte| byte == 0);
    let value = String::from_utf8_lossy(&message[..end.unwrap_or(message.len())]);
    println!("Received value '{value}' with immediate data '{imm}'");

    conn::wait_and_disconnect(&conn)
}
