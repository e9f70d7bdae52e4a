//! The client: connects, and waits until the server ends the connection.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use rpma::{Conn, ConnCfg, ConnEvent, ConnReq, Device, Error, Peer, Side};

use crate::ANSWER;
use crate::common::cli::Role;

const MAX_TRIES: u32 = 10;
const RETRY_DELAY: Duration = Duration::from_secs(5);

pub(crate) const ROLE: Role = Role {
    usage: "<addr> <port>",
    notes: "",
    main,
};

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    // The device through which the address is reached, and on it a peer. The peer holds all objects
    // that this program registers and connects there.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;
    let conn = connect(&peer, addr, port)?;

    // Now the connection could be used. This example only looks at the data that the server has
    // sent with its answer.
    crate::print_message(conn.get_private_data())?;

    // The server ends the connection, and waits for the answer.
    match conn.wait_ended(ANSWER)? {
        ConnEvent::Closed => Ok(conn.disconnect()?),
        event => bail!("{event}, while waiting for the connection's end"),
    }
    // Everything is freed here, in the right order.
}

/// Connects. While the server rejects that, because it does not listen yet, it tries again.
fn connect(peer: &Peer, addr: &str, port: u16) -> Result<Conn> {
    let mut tries = 1;
    loop {
        // The request finds the way to the server. Connecting sends it, with a few bytes of our
        // own: the private data.
        let req = ConnReq::new(peer, addr, port, &ConnCfg::new())?;
        let conn = req.connect(b"Hello server!\0")?;
        match conn.wait_established(ANSWER) {
            Err(Error::NotEstablished(event)) if is_reject(&event) && tries < MAX_TRIES => {
                eprintln!("Retrying...");
                sleep(RETRY_DELAY);
                tries += 1;
            }
            connected => return Ok(connected?),
        }
    }
}

fn is_reject(event: &ConnEvent) -> bool {
    matches!(event, ConnEvent::Rejected { .. })
}
