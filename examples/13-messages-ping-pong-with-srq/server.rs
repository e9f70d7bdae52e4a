//! The server: sends each client's counter back, increased by one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rpma::wait::{Happened, Member, Wait};
use rpma::{
    AlignedBuf, Conn, ConnCfg, ConnEvent, Device, Ep, Error, Flags, Mr, MrUsage, Peer, Side, Srq,
    SrqCfg, Wc, WcOpcode,
};

use crate::common::cli::{Role, timeout};
use crate::common::{conn, messages};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<timeout>]",
    notes: "",
    main,
};

const MAX_CLIENTS: usize = 10;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let timeout = timeout(more, 5)?;

    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // One wait for all connections and for the queue from which they take their receives. That
    // queue has its own completion queue. The queues are made for their places in the wait.
    let mut wait = Wait::new()?;
    let place = wait.place();
    let srq = Srq::new(&peer, &place.srq_cfg(&peer, &SrqCfg::new())?)?;
    wait.add_srq(place, srq.clone())?;
    let mut cfg = ConnCfg::new();
    cfg.set_srq(Some(&srq));

    // Room for a message of each client.
    let size = MAX_CLIENTS * messages::SIZE;
    let recv = Mr::reg(&peer, AlignedBuf::zeroed(size)?, MrUsage::RECV)?;
    let send = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::SEND)?;
    let post_receive = |at: usize| srq.recv(recv.slice(at..at + messages::SIZE)?, at as u64);

    let ep = Ep::listen(&peer, addr, port)?;
    let mut clients: Vec<Member> = Vec::new();
    let mut until = Instant::now() + timeout;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let request = match ep.next_request_timeout(left) {
            Ok(request) => request,
            Err(Error::NoEvent) => break,
            Err(error) => return Err(error.into()),
        };
        if clients.len() == MAX_CLIENTS {
            log::warn!("There are {MAX_CLIENTS} clients already: another one is rejected.");
            continue;
        }
        // One more receive for one more client. A message takes the first receive that is left,
        // from any client.
        post_receive(clients.len() * messages::SIZE)?;
        let place = wait.place();
        let req = request.into_req(&peer, &place.cfg(&peer, &cfg)?)?;
        clients.push(wait.add(place, conn::establish(req, &[])?)?);
        println!("The client #{} has been connected.", clients.len());
        until = Instant::now() + timeout;
    }
    println!("Server ended listening.");

    let mut active = clients.clone();
    let mut wcs = [Wc::default()];
    while !active.is_empty() {
        // Answers complete in the queues of their connections, messages in that of the shared
        // receive queue; one wait is for all of them, and for the end of a connection.
        let ended = active.iter().find_map(|client| ended(&wait, *client));
        // A client may take as long as it likes: see conn::next_completion.
        let conns = active.iter().filter_map(|client| wait.conn(*client));
        let limit = conns.map(conn::limit).min().unwrap_or(Duration::MAX);
        match (wait.next(&mut wcs, limit)?, ended) {
            (Some(Happened::Completions(..)), _) => {}
            (Some(Happened::Failed(_, error)), _) => return Err(error.into()),
            (None, Some(event)) => bail!(conn::Ended(event)),
            _ => continue,
        }
        let wc = wcs[0];
        if wc.result()?.opcode() == WcOpcode::SEND {
            continue;
        }
        messages::check_message(&wc)?;
        let qp_num = wc.qp_num();
        let is_it = |client: &Member| wait.conn(*client).map(Conn::get_qp_num) == Some(qp_num);
        let client = active.iter().position(is_it);
        let client = client.with_context(|| format!("no client has the queue pair {qp_num}"))?;
        let at = wc.wr_id() as usize;
        let counter = recv.load_u64(at)?;
        if counter == messages::DONE {
            active.remove(client);
            continue;
        }
        println!("[server] value received: {counter} from the connection [qp#{qp_num}]");

        // First the receive for the next message, then the answer that makes the client send it.
        post_receive(at)?;

        // The answer is taken out of the memory when it is posted, so that the memory is free for
        // that to another client at once.
        println!(
            "[server] value sent: {} from the connection [qp#{qp_num}]",
            counter + 1
        );
        send.store_u64(0, counter + 1)?;
        let flags = Flags::COMPLETION_ALWAYS | Flags::INLINE;
        if let Some(conn) = wait.conn(active[client]) {
            conn.send(send.slice(..)?, flags, messages::SEND_ID)?;
        }
    }

    let conns: Vec<_> = clients
        .into_iter()
        .filter_map(|client| wait.remove(client))
        .collect();
    conn::end_after_last_message(&conns)
}

/// How this client's connection ended, if it has.
fn ended(wait: &Wait, client: Member) -> Option<ConnEvent> {
    wait.conn(client)?.ended().cloned()
}
