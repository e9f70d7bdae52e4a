//! The server: sends each counter back, increased by one.

use anyhow::Result;
use rpma::{AlignedBuf, Device, Ep, Flags, Mr, MrUsage, Peer, Side};

use crate::common::cli::Role;
use crate::common::conn;
use crate::common::messages::{self, Completions};
use crate::conn_cfg;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port>",
    notes: "",
    main,
};

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // The device takes messages directly from registered memory, and puts them there.
    let send = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::SEND)?;
    let recv = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::RECV)?;

    // The client may send as soon as it is connected. So its first message needs a receive before
    // the request is accepted.
    let ep = Ep::listen(&peer, addr, port)?;
    let req = ep.next_conn_req(&conn_cfg())?;
    req.recv(recv.slice(..)?, messages::RECV_ID)?;
    let conn = conn::establish(req, &[])?;

    let mut completions = Completions::new(&conn);
    let mut answered = false;
    loop {
        completions.wait_for_message()?;
        let counter = recv.load_u64(0)?;
        if counter == messages::DONE {
            break;
        }
        println!("SERVER: Value received: {counter}");

        // First the receive for the next message, then the answer that makes the client send it.
        conn.recv(recv.slice(..)?, messages::RECV_ID)?;

        // The memory is free when the answer before is sent.
        if answered {
            completions.wait_for_send()?;
        }
        println!("SERVER: Value sent: {}", counter + 1);
        send.store_u64(0, counter + 1)?;
        conn.send(send.slice(..)?, Flags::COMPLETION_ALWAYS, messages::SEND_ID)?;
        answered = true;
    }

    conn::end_after_last_message(&[conn])
}
