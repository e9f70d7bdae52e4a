//! Waiting for a completion that may never come.
//!
//! A receive completes when the peer has sent something. If the peer ends or is killed instead, no
//! completion queue tells that. An operation of our own fails then, but only when the device has given up
//! trying. The connection tells it at once: it has an event, which the peer's kernel has sent. So whoever
//! waits for a completion watches the connection as well. (A host that vanishes sends nothing. Programs
//! that have to notice that set a limit to their waits.)

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rpma::{Conn, ConnEvent, Cq, Error, Wc};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// For how long a completion may still come after the connection has ended. The two reach us by
/// different ways: a message that the peer has sent just before it left can be the slower one.
const GRACE: Duration = Duration::from_secs(1);

/// The connection has ended instead.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) ConnEvent);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, while waiting for a completion", self.0)
    }
}

impl std::error::Error for Ended {}

/// Waits for the next completion in any of `queues`: the connection's main queue, its queue for
/// receives, or that of a shared receive queue.
///
/// A failed operation is an error, and so is the end of the connection: [`Ended`].
pub(crate) fn next_completion(conn: &Conn, queues: &[&Cq]) -> Result<Wc> {
    Watch::default().next(&[conn], queues)
}

/// Waits for completions of many connections.
#[derive(Default)]
pub(crate) struct Watch {
    /// The queue pair of a connection that has ended, and until when a completion of it may come.
    /// Completions of the other connections keep coming meanwhile; without this they would hide that.
    ended: Option<(u32, Instant)>,
}

impl Watch {
    /// As [`next_completion`]. The end of any of `conns` is an error.
    pub(crate) fn next(&mut self, conns: &[&Conn], queues: &[&Cq]) -> Result<Wc> {
        loop {
            let mut wcs = [Wc::default()];
            for cq in queues {
                if cq.get_wc(&mut wcs)? > 0 {
                    wcs[0].result()?;
                    return Ok(wcs[0]);
                }
            }

            // All queues are empty, and each gives an event for what comes from now on: sleep until
            // there is one.
            let (watched, limit) = match self.ended_of(conns) {
                None => (conns, None),
                Some((conn, until)) => match until.checked_duration_since(Instant::now()) {
                    None => bail!(Ended(conn.next_event()?)),
                    Some(left) => (&[][..], Some(Timespec::try_from(left)?)),
                },
            };
            let fds = queues.iter().map(|cq| PollFd::new(cq, PollFlags::IN));
            let fds = fds.chain(watched.iter().map(|conn| PollFd::new(conn, PollFlags::IN)));
            let mut fds: Vec<PollFd<'_>> = fds.collect();
            retry_on_intr(|| poll(&mut fds, limit.as_ref()))?;
            let (of_queues, of_conns) = fds.split_at(queues.len());
            for (cq, fd) in queues.iter().zip(of_queues) {
                if !fd.revents().is_empty() {
                    take_event(conns, cq)?;
                }
            }
            if let Some(i) = of_conns.iter().position(|fd| !fd.revents().is_empty()) {
                self.ended = Some((conns[i].get_qp_num(), Instant::now() + GRACE));
            }
        }
    }

    /// The connection that has ended, unless it is none of those any more that we wait for.
    fn ended_of<'a>(&self, conns: &[&'a Conn]) -> Option<(&'a Conn, Instant)> {
        let (qp_num, until) = self.ended?;
        let conn = conns.iter().find(|conn| conn.get_qp_num() == qp_num)?;
        Some((conn, until))
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
/// the connection is an error.
///
/// What is in a queue already gives no event: empty it before.
pub(crate) fn completion_event(conn: &Conn, channel: impl AsFd) -> Result<()> {
    let of_channel = PollFd::new(&channel, PollFlags::IN);
    let mut fds = [of_channel, PollFd::new(conn, PollFlags::IN)];
    retry_on_intr(|| poll(&mut fds, None))?;

    let grace = Timespec::try_from(GRACE)?;
    if retry_on_intr(|| poll(&mut fds[..1], Some(&grace)))? == 0 {
        bail!(Ended(conn.next_event()?));
    }
    Ok(())
}
