//! The server: sends each counter back, increased by one.

use anyhow::{Context, Result, bail, ensure};
use rpma::wait::Wait;
use rpma::{AlignedBuf, ConnCfg, Device, Ep, Flags, Mr, MrUsage, Peer, Side, Srq, SrqCfg};

use crate::common::cli::{BadArgument, Role};
use crate::common::conn;
use crate::common::messages::{self, Completions};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [m|r]",
    notes: "",
    main,
};

/// How many completions the connection's queue for receives has room for.
const RCQ_SIZE: u32 = 10;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let place = more.first().map(String::as_str);
    if !matches!(place, None | Some("m" | "r")) {
        let text = format!("the third argument is m or r, not \"{}\"", more[0]);
        bail!(BadArgument(text));
    }

    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // One wait for the connection and for the shared receive queue, if that has a completion queue
    // of its own. Their queues are made for their places in the wait.
    let mut wait = Wait::new()?;
    let (srq_place, conn_place) = (wait.place(), wait.place());
    let mut srq_cfg = SrqCfg::new();
    let has_own = place.is_none();
    if has_own {
        srq_cfg = srq_place.srq_cfg(&peer, &srq_cfg)?;
    } else {
        srq_cfg.set_rcq_size(0);
    }
    let srq = Srq::new(&peer, &srq_cfg)?;

    // Without it receives complete in the queue for receives of the connection on which they
    // arrive, if it has one, or else in its main queue.
    let mut cfg = ConnCfg::new();
    cfg.set_srq(Some(&srq));
    if place == Some("r") {
        cfg.set_rcq_size(RCQ_SIZE);
    }
    let cfg = conn_place.cfg(&peer, &cfg)?;

    // The device takes messages directly from registered memory, and puts them there.
    let send = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::SEND)?;
    let recv = Mr::reg(&peer, AlignedBuf::zeroed(messages::SIZE)?, MrUsage::RECV)?;

    // The client may send as soon as it is connected. So the first receive comes before that.
    let ep = Ep::listen(&peer, addr, port)?;
    srq.recv(recv.slice(..)?, messages::RECV_ID)?;
    let conn = conn::establish(ep.next_conn_req(&cfg)?, &[])?;

    let client = wait.add(conn_place, conn)?;
    if has_own {
        wait.add_srq(srq_place, srq.clone())?;
    }
    let mut completions = Completions::of_wait(&mut wait, client);
    let mut answered = false;
    loop {
        // If there are many connections, this identifies the one of a message.
        let qp_num = completions.wait_for_message()?.qp_num();
        let own = completions.conn()?.get_qp_num();
        ensure!(
            qp_num == own,
            "the message came on queue pair {qp_num}, and the connection's is {own}"
        );
        let counter = recv.load_u64(0)?;
        if counter == messages::DONE {
            break;
        }
        println!("Value received: {counter}");

        // First the receive for the next message, then the answer that makes the client send it.
        srq.recv(recv.slice(..)?, messages::RECV_ID)?;

        // The memory is free when the answer before is sent.
        if answered {
            completions.wait_for_send()?;
        }
        println!("Value sent: {}", counter + 1);
        send.store_u64(0, counter + 1)?;
        let (bytes, flags) = (send.slice(..)?, Flags::COMPLETION_ALWAYS);
        completions.conn()?.send(bytes, flags, messages::SEND_ID)?;
        answered = true;
    }

    let conn = wait.remove(client).context("it is a member")?;
    conn::end_after_last_message(&[conn])
}
