//! The client: sends a counter, gets it back increased, and sends that.

use std::thread::sleep;

use anyhow::Result;
use rpma::{AlignedBuf, ConnCfg, ConnReq, Device, Flags, Mr, MrUsage, Peer, Side};

use crate::RCQ_SIZE;
use crate::common::cli::Role;
use crate::common::conn;
use crate::common::messages::{self, ClientArgs, Completions};

pub(crate) const ROLE: Role = Role {
    usage: messages::CLIENT_USAGE,
    notes: messages::CLIENT_NOTES,
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let args = ClientArgs::parse(more)?;

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // The device takes messages directly from registered memory, and puts them there.
    let send = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::SEND)?;
    let recv = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::RECV)?;

    // Setting a size for the queue for receives makes it.
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(RCQ_SIZE);
    let req = ConnReq::new(&peer, addr, port, &cfg)?;
    let conn = conn::establish(req, &[])?;
    let mut completions = Completions::new(&conn);

    let mut counter = args.seed;
    for _ in 1..args.rounds {
        // The receive comes first, as in example 08.
        conn.recv(recv.slice(..)?, messages::RECV_ID)?;

        messages::check_counter(counter)?;
        println!("CLIENT: Value sent: {counter}");
        send.store_u64(0, counter)?;
        conn.send(send.slice(..)?, Flags::COMPLETION_ALWAYS, messages::SEND_ID)?;

        // One wait is for both queues (Conn::next). The answer may be there first.
        completions.wait_for_send()?;
        completions.wait_for_message()?;
        counter = recv.load_u64(0)?;
        println!("CLIENT: Value received: {counter}");

        sleep(args.sleep);
    }

    // As in example 08: the last message is acknowledged before the connection ends.
    send.store_u64(0, messages::DONE)?;
    conn.send(send.slice(..)?, Flags::COMPLETION_ALWAYS, messages::SEND_ID)?;
    completions.wait_for_send()?;
    conn::disconnect_and_wait(&conn)
}
