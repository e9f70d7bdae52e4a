//! Waiting for a completion that may never come.
//!
//! A receive completes when the peer has sent something. If the peer dies instead, no completion
//! queue tells that. The connection does: it has an event. So whoever waits for a receive watches the
//! connection as well.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, bail};
use rpma::{Conn, Cq, Error, Wc};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// Waits for the next completion in any of `queues`: the connection's main queue, its queue for
/// receives, or that of a shared receive queue.
///
/// A failed operation is an error, and so is an event of the connection, unless a completion is there
/// as well: the peer may have sent its last message just before it left.
pub(crate) fn next_completion(conn: &Conn, queues: &[&Cq]) -> Result<Wc> {
    next_completion_of(&[conn], queues)
}

/// As [`next_completion`], where the queues are those of many connections.
pub(crate) fn next_completion_of(conns: &[&Conn], queues: &[&Cq]) -> Result<Wc> {
    let mut ended: Option<&Conn> = None;
    loop {
        let mut wcs = [Wc::default()];
        for cq in queues {
            if cq.get_wc(&mut wcs)? > 0 {
                wcs[0].result()?;
                return Ok(wcs[0]);
            }
        }
        // The queues were empty once more after the event was seen.
        if let Some(conn) = ended {
            bail!("{}, while waiting for a completion", conn.next_event()?);
        }

        // All queues are empty, and each gives an event for what comes from now on: sleep until
        // there is one.
        let fds = queues.iter().map(|cq| PollFd::new(cq, PollFlags::IN));
        let fds = fds.chain(conns.iter().map(|conn| PollFd::new(conn, PollFlags::IN)));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        retry_on_intr(|| poll(&mut fds, None))?;
        let (of_queues, of_conns) = fds.split_at(queues.len());
        for (cq, fd) in queues.iter().zip(of_queues) {
            if !fd.revents().is_empty() {
                take_event(conns, cq)?;
            }
        }
        let ready = of_conns.iter().position(|fd| !fd.revents().is_empty());
        ended = ready.map(|i| conns[i]);
    }
}

/// Takes the queue's event, which arms the queue again. It does not block: two queues may share the
/// descriptor that was readable.
fn take_event(conns: &[&Conn], cq: &Cq) -> Result<()> {
    let mut taken = cq.wait_timeout(Duration::ZERO);
    if let Err(Error::SharedChannel) = taken {
        let fd = cq.get_fd();
        let owner = |conn: &&&Conn| conn.get_compl_fd().is_ok_and(|of_conn| of_conn == fd);
        taken = match conns.iter().find(owner) {
            Some(conn) => conn.wait_timeout(Duration::ZERO).map(drop),
            None => bail!("the queue uses a channel of none of these connections"),
        };
    }
    match taken {
        Ok(()) | Err(Error::NoCompletion) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until there is an event on a completion channel, for those who take it themselves. The end of
/// the connection is an error, unless an event is there as well.
///
/// What is in a queue already gives no event: empty it before.
pub(crate) fn completion_event(conn: &Conn, channel: impl AsFd) -> Result<()> {
    let of_channel = PollFd::new(&channel, PollFlags::IN);
    let mut fds = [of_channel, PollFd::new(conn, PollFlags::IN)];
    retry_on_intr(|| poll(&mut fds, None))?;

    // What the peer has sent before it ended the connection is there by now.
    let now = Timespec::default();
    if retry_on_intr(|| poll(&mut fds[..1], Some(&now)))? == 0 {
        bail!("{}, while waiting for a completion", conn.next_event()?);
    }
    Ok(())
}
