//! The server: accepts one connection, and ends it.

use anyhow::{Result, bail};
use rpma::{ConnCfg, ConnEvent, Device, Ep, Peer, Side};

use crate::ANSWER;
use crate::common::cli::Role;

pub(crate) const ROLE: Role = Role {
    usage: "<addr> <port>",
    notes: "",
    main,
};

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    // The device that has the address, and on it a peer. The peer holds all objects that this
    // program registers and connects there.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // An endpoint receives the requests of clients. Each can be looked at before it is accepted;
    // dropping it would be a reject.
    let ep = Ep::listen(&peer, addr, port)?;
    let req = ep.next_conn_req(&ConnCfg::new())?;

    // Accepting the request. A few bytes travel with the answer: the private data.
    let conn = req.connect(b"Hello client!\0")?.wait_established(ANSWER)?;

    // Now the connection could be used. This example only looks at the data that the client has
    // sent with its request.
    crate::print_message(conn.get_private_data())?;

    // Ending it: the client is notified, and its answer is the last event.
    conn.disconnect()?;
    match conn.wait_ended(ANSWER)? {
        ConnEvent::Closed => Ok(()),
        event => bail!("{event}, while waiting for the connection's end"),
    }
    // Everything is freed here, in the right order.
}
