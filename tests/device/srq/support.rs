//! The shared parts of these tests: queues, servers that use them, and messages of no bytes.

use crate::common::prelude::*;

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

pub(crate) fn srq(peer: &Peer, rq_size: u32, rcq_size: u32) -> Result<Srq> {
    let mut cfg = SrqCfg::new();
    cfg.set_rq_size(rq_size).set_rcq_size(rcq_size);
    Ok(Srq::new(peer, &cfg)?)
}

/// A server's settings with `srq`.
pub(crate) fn using(srq: &Srq) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_srq(Some(srq));
    cfg
}

/// Clients of one endpoint. Their server sides use `cfg`.
pub(crate) fn pairs(peer: &Peer, cfg: &ConnCfg, count: usize) -> Result<Vec<Pair>> {
    let pair = |_| Pair::with(peer, &ConnCfg::new(), cfg);
    (0..count).map(pair).collect()
}

/// Sends a message of no bytes and sees that it was sent.
pub(crate) fn send(conn: &Conn) -> Result {
    conn.send(MrSlice::EMPTY, ALWAYS, 1)?;
    assert_eq!(opcode_of(&completion(conn)?, 1)?, WcOpcode::SEND);
    Ok(())
}

/// Posts receives until the queue is full; how many there were.
pub(crate) fn fill(srq: &Srq, depth: u32) -> u32 {
    for posted in 0.. {
        match srq.recv(MrSlice::EMPTY, posted.into()) {
            Ok(()) => {}
            Err(Error::QueueFull {
                queue: Queue::SharedReceive,
                depth: said,
            }) if said == depth => return posted,
            Err(other) => panic!("{other:?}"),
        }
    }
    unreachable!("the queue has an end")
}
