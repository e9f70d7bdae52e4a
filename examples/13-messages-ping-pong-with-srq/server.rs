//! The server: sends each client's counter back, increased by one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rpma::{
    AlignedBuf, ComplChannel, CompletionChannel, Conn, ConnCfg, Device, Ep, Error, Flags, Mr,
    MrUsage, Next, Peer, Side, Source, Srq, SrqCfg, Wc, WcOpcode,
};

use crate::common::cli::{BadArgument, Role, number};
use crate::common::{conn, messages};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<timeout>]",
    notes: "",
    main,
};

const MAX_CLIENTS: usize = 10;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let timeout = match more {
        [] => Duration::from_secs(5),
        [seconds, ..] => Duration::from_secs(number::<u32>("timeout", seconds)?.into()),
    };
    if timeout.is_zero() {
        bail!(BadArgument("the timeout is at least 1 second".to_owned()));
    }

    // The device that has the address, and a peer on it: with that this program registers memory and
    // makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // All connections take their receives from this queue, which has its own completion queue.
    // All queues have their events on one channel. (The keys tell them apart for who takes the events himself.)
    let channel = CompletionChannel::new(&peer)?;
    let mut srq_cfg = SrqCfg::new();
    srq_cfg.set_compl_channel(Some((channel.clone(), 1)));
    let srq = Srq::new(&peer, &srq_cfg)?;
    let mut cfg = ConnCfg::new();
    cfg.set_srq(Some(&srq));
    cfg.set_compl_channel(ComplChannel::Of {
        channel: channel.clone(),
        key: 2,
    });

    // Room for a message of each client.
    let size = MAX_CLIENTS * messages::SIZE;
    let recv = Mr::reg(&peer, AlignedBuf::zeroed(size)?, MrUsage::RECV)?;
    let send = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::SEND)?;
    let post_receive = |at: usize| srq.recv(recv.slice(at..at + messages::SIZE)?, at as u64);

    let ep = Ep::listen(&peer, addr, port)?;
    let mut conns: Vec<Conn> = Vec::new();
    let mut until = Instant::now() + timeout;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let req = match ep.next_conn_req_timeout(&cfg, left) {
            Ok(req) => req,
            Err(Error::NoEvent) => break,
            Err(error) => return Err(error.into()),
        };
        if conns.len() == MAX_CLIENTS {
            log::warn!("There are {MAX_CLIENTS} clients already: another one is rejected.");
            continue;
        }
        // One more receive for one more client. A message takes the first receive that is left, whoever
        // sends it.
        post_receive(conns.len() * messages::SIZE)?;
        conns.push(conn::establish(req, &[])?);
        println!("The client #{} has been connected.", conns.len());
        until = Instant::now() + timeout;
    }
    println!("Server ended listening.");

    let mut active: Vec<&Conn> = conns.iter().collect();
    // Until when a message of a client that has ended its connection may still come.
    let mut until: Option<Instant> = None;
    let mut wcs = [Wc::default()];
    while !active.is_empty() {
        // Answers complete in the queues of their connections, messages in that of the shared receive
        // queue; one wait is for all of them, and for the end of a connection.
        let sources = active.iter().map(|conn| Source::Conn(conn));
        let sources: Vec<_> = sources.chain([Source::Srq(&srq)]).collect();
        let ended = active.iter().find_map(|conn| conn.ended());
        let limit = match ended {
            // A client may take as long as it likes: see conn::next_completion.
            None => Duration::MAX,
            Some(_) => until
                .get_or_insert_with(|| Instant::now() + conn::GRACE)
                .saturating_duration_since(Instant::now()),
        };
        if ended.is_none() {
            until = None;
        }
        match (channel.next(&sources, &mut wcs, limit), ended) {
            (Ok((_, Next::Completions(_))), _) => {}
            (Ok((_, Next::Event(_))), _) => continue,
            (Err(Error::TimedOut(_)), Some(event)) => bail!(conn::Ended(event.clone())),
            (Err(error), _) => return Err(error.into()),
        }
        let wc = wcs[0];
        if wc.result()?.opcode() == WcOpcode::SEND {
            continue;
        }
        messages::check_message(&wc)?;
        let qp_num = wc.qp_num();
        let client = active.iter().position(|conn| conn.get_qp_num() == qp_num);
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
        active[client].send(send.slice(..)?, flags, messages::SEND_ID)?;
    }

    conn::end_after_last_message(&conns)
}
