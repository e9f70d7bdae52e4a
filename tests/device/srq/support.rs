//! The shared parts of these tests: queues, servers that use them, and messages of no bytes.

use crate::common::prelude::*;

pub(crate) fn srq(peer: &Peer, rq_size: u32, rcq_size: u32) -> Result<Srq> {
    let mut cfg = SrqCfg::new();
    Ok(Srq::new(
        peer,
        cfg.set_rq_size(rq_size).set_rcq_size(rcq_size),
    )?)
}

/// A server's settings with `srq`.
pub(crate) fn using(srq: &Srq) -> ConnCfg {
    ConnCfg::new().set_srq(Some(srq)).clone()
}

/// Clients of one endpoint. Their server sides use `cfg`.
pub(crate) fn pairs(peer: &Peer, cfg: &ConnCfg, count: usize) -> Result<Vec<Pair>> {
    let pair = |_| Pair::with(peer, &ConnCfg::new(), cfg);
    (0..count).map(pair).collect()
}

/// Posts receives until the queue is full; how many there were.
pub(crate) fn fill(srq: &Srq, depth: u32) -> u32 {
    let recv = |number| srq.recv(MrSlice::EMPTY, number);
    crate::common::fill(Queue::SharedReceive, depth.into(), recv) as u32
}

/// Sends so many messages.
pub(crate) fn messages(conn: &Conn, count: usize) -> Result {
    (0..count).try_for_each(|_| send_nothing(conn))
}

/// Takes so many receives that have succeeded out of a queue.
pub(crate) fn take(cq: &Cq, count: usize) -> Result<Vec<Wc>> {
    let next = |_| {
        let wc = next_completion(cq)?;
        wc.result()?;
        Ok(wc)
    };
    (0..count).map(next).collect()
}

/// The queue in which the receives of a connection complete.
pub(crate) fn receives_of<'a>(srq: &'a Srq, server: &'a Conn) -> &'a Cq {
    let own = srq.get_rcq().or(server.get_rcq());
    own.unwrap_or(server.get_cq())
}
