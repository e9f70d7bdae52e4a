//! The client: sends a word, or an empty message, and immediate data.

use anyhow::{Result, bail, ensure};
use rpma::{AlignedBuf, Device, Flags, Mr, MrSlice, MrUsage, Peer, Side, WcOpcode};

use crate::common::cli::{self, BadArgument, Role};
use crate::common::conn;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> <imm> [word]",
    notes: "",
    main,
};

const SIZE: usize = 1024;
/// Distinguishes the send from other operations; any number would do.
const SEND_ID: u64 = 1;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let [imm, words @ ..] = more else {
        bail!(BadArgument("no immediate data".to_owned()));
    };
    let imm: u32 = cli::number("immediate data", imm)?;
    let mut memory = AlignedBuf::zeroed(SIZE)?;
    if let Some(word) = words.first() {
        cli::check_word(word, SIZE)?;
        memory.as_mut_slice()[..word.len()].copy_from_slice(word.as_bytes());
    }

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // The device takes the bytes to send directly from the registered memory.
    let src = Mr::reg(&peer, memory, MrUsage::SEND)?;

    // By the request the server gets the number that it has to expect.
    let conn = conn::connect(&peer, addr, port, &imm.to_le_bytes())?;

    // A message may have no bytes at all.
    let message = match words.first() {
        Some(word) => {
            println!("Sending value '{word}' with immediate data '{imm}'");
            src.slice(..)?
        }
        None => {
            println!("Sending immediate data '{imm}'");
            MrSlice::EMPTY
        }
    };
    conn.send_with_imm(message, Flags::COMPLETION_ALWAYS, imm, SEND_ID)?;
    let opcode = conn::wait_for_completion(&conn, SEND_ID)?;
    ensure!(
        opcode == WcOpcode::SEND,
        "the completion of the send is one of another operation: {opcode}"
    );

    // The send is complete, so the server's device has the message: ending the connection does not
    // lose it.
    conn::disconnect_and_wait(&conn)
}
