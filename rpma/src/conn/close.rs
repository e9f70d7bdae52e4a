//! Ending a connection without losing what was posted.

use std::fmt;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::Conn;
use crate::credits::State;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::verbs::{
    Deadline, LocalBuffer, Opcode, RemoteAddress, SendFlags, Wc, WcFailure, WcStatus,
};

/// The `wr_id` of the marker behind everything that was posted. Each marker has its own: one that we
/// gave up on comes later, and must not be taken for another one.
const ALL_SENT: u64 = u64::from_be_bytes(*b"rpma end");
/// That of the last send that is flushed, and of the last receive.
const SENDS_FLUSHED: u64 = ALL_SENT + 1;
const RECEIVES_FLUSHED: u64 = ALL_SENT + 2;

/// How long the device may take to flush a queue pair in the error state.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// For how long an acknowledgement may still come after the peer has closed the connection: the two
/// reach us by different ways.
const GRACE: Duration = Duration::from_secs(1);
/// Between two looks at the queues.
const PAUSE: Duration = Duration::from_micros(200);

impl Conn {
    /// Ends the connection when everything that was posted has been done, and returns the completions that
    /// nobody had read, those of each queue in their order. It waits for the peer for at most `limit`, and
    /// then for the device, for at most 5 s, which flushes what is left in the queues.
    ///
    /// [`disconnect`](Self::disconnect) discards what has not been sent yet, so that the peer may never
    /// see the last message. This waits until the peer's device has acknowledged all of it: a write of 0
    /// bytes is posted as a marker, for which a slot of the send queue is kept, and acknowledgements
    /// come in order. Nothing can be posted meanwhile. Then it disconnects and frees everything; receives
    /// that were posted and not used come back as failed completions.
    ///
    /// Let only one side end a connection: a peer that disconnects as soon as it has the last message may
    /// be gone before it acknowledges the marker, and then this fails although nothing was lost. And see
    /// that the peer sends nothing any more: where receives are those of a shared receive queue, a
    /// message that arrives meanwhile may be lost.
    ///
    /// The `op_context`s from 0x7270_6d61_2065_6e64 ("rpma end") to 0x7270_6d61_2065_6e66 are the markers'.
    /// Post nothing with them: such completions are not returned, and may end the wait too soon.
    ///
    /// A connection that has failed, or of which [`next_event`](Self::next_event) has said that the peer
    /// has closed it, is only freed, and what is in flight comes back as failed completions. One that was
    /// never established is only freed.
    ///
    /// # Errors
    ///
    /// [`CloseError`], with the completions: [`Error::TimedOut`] if the peer does not acknowledge in time or
    /// the device does not flush, [`Error::NotConnected`] if the peer has closed the connection before it
    /// acknowledged everything,
    /// [`Error::Operation`] with the first operation that failed before everything was acknowledged, or
    /// [`Error::Provider`] if a verb fails. The connection is freed all the same.
    pub fn close(self, limit: Duration) -> Result<Vec<Wc>, CloseError> {
        let mut rest = Rest::default();
        let state = self.queues.credits.end(State::Closed);
        let sent = match state {
            State::Open => self.send_rest(limit, &mut rest),
            _ => Ok(()),
        };
        let flushed = match state {
            State::Connecting => Ok(()),
            _ => self.flush_rest(&mut rest),
        };
        let freed = self.delete();
        match sent.and(flushed).and(freed) {
            Ok(()) => Ok(rest.completions),
            Err(error) => Err(CloseError {
                error,
                completions: rest.completions,
            }),
        }
    }

    /// Waits until everything that was posted is acknowledged.
    fn send_rest(&self, limit: Duration, rest: &mut Rest) -> Result<()> {
        self.post_marker(ALL_SENT)?;
        let deadline = Deadline::after(limit);
        let mut closed: Option<Deadline> = None;
        let all = rest.collect(self, &[ALL_SENT], || {
            if closed.is_none() && self.is_closed_by_the_peer() {
                closed = Some(Deadline::after(GRACE));
            }
            deadline.has_passed() || closed.is_some_and(Deadline::has_passed)
        })?;
        match rest.failure {
            Some(failure) => Err(failure.into()),
            None if all => Ok(()),
            None if closed.is_some() => Err(Error::NotConnected(
                "the peer has closed the connection before it acknowledged what was sent",
            )),
            None => Err(Error::TimedOut(
                "the peer did not acknowledge what was sent",
            )),
        }
    }

    /// Takes the next event, if there is one.
    fn is_closed_by_the_peer(&self) -> bool {
        let event = self.next_event_timeout(Duration::ZERO);
        matches!(event, Ok(ConnEvent::Closed | ConnEvent::Lost { .. }))
    }

    /// Moves the queue pair to the error state, and takes what that flushes.
    fn flush_rest(&self, rest: &mut Rest) -> Result<()> {
        // First, so that no message of the peer can take the marker's receive.
        self.queues.qp.set_error()?;
        let mut wanted = Vec::new();
        if self.queues.srq.is_none() {
            let none = LocalBuffer::EMPTY;
            let posted = self.queues.qp.post_recv(none, RECEIVES_FLUSHED);
            wanted.extend(posted.is_ok().then_some(RECEIVES_FLUSHED));
        }
        let posted = self.post_marker(SENDS_FLUSHED);
        wanted.extend(posted.is_ok().then_some(SENDS_FLUSHED));
        // It also makes rxe look at the receives again.
        let disconnected = match self.queues.qp.disconnect() {
            // The peer's side is gone already.
            Err(error) if error.is_errno(Errno::INVAL) => Ok(()),
            result => result,
        };
        let deadline = Deadline::after(FLUSH_LIMIT);
        match rest.collect(self, &wanted, || deadline.has_passed())? {
            true => disconnected,
            false => Err(Error::TimedOut("the device did not flush the queues")),
        }
    }

    fn post_marker(&self, marker: u64) -> Result<()> {
        let flags = SendFlags::SIGNALED;
        let none = RemoteAddress::NONE;
        Ok(self
            .queues
            .qp
            .post_send(Opcode::Write, none, &[], flags, marker)?)
    }
}

/// What was left in the queues.
#[derive(Default)]
struct Rest {
    completions: Vec<Wc>,
    /// The first that tells why the connection failed.
    failure: Option<WcFailure>,
    /// The markers that have come.
    markers: Vec<u64>,
}

impl Rest {
    /// Takes completions until all `wanted` markers have come; `false` if it `is_over` first.
    fn collect(
        &mut self,
        conn: &Conn,
        wanted: &[u64],
        mut is_over: impl FnMut() -> bool,
    ) -> Result<bool> {
        loop {
            let last_look = is_over();
            for cq in std::iter::once(&conn.queues.cq).chain(&conn.queues.rcq) {
                let mut wcs = [Wc::default(); 16];
                while let count @ 1.. = cq.get_wc(&mut wcs)? {
                    self.take(&wcs[..count]);
                }
            }
            let all = self.has(wanted);
            if all || last_look {
                return Ok(all);
            }
            thread::sleep(PAUSE);
        }
    }

    fn has(&self, wanted: &[u64]) -> bool {
        wanted.iter().all(|marker| self.markers.contains(marker))
    }

    fn take(&mut self, wcs: &[Wc]) {
        for wc in wcs {
            if let Err(failure) = wc.result() {
                // The queues are read one after the other, so what one operation's failure flushed in the
                // one may be here before that failure in the other.
                let explains = |failure: &WcFailure| failure.status != WcStatus::WR_FLUSH_ERR;
                let explained = self.failure.as_ref().is_some_and(explains);
                if self.failure.is_none() || !explained && explains(&failure) {
                    self.failure = Some(failure);
                }
            }
            match wc.wr_id() {
                marker @ ALL_SENT..=RECEIVES_FLUSHED => self.markers.push(marker),
                _ => self.completions.push(*wc),
            }
        }
    }
}

/// A connection that could not be closed properly. It is freed all the same.
#[derive(Debug)]
pub struct CloseError {
    /// Why.
    pub error: Error,
    /// The completions that nobody had read, those of each queue in their order.
    pub completions: Vec<Wc>,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for CloseError {}

impl From<CloseError> for Error {
    fn from(error: CloseError) -> Self {
        error.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUCCESS: WcStatus = WcStatus::SUCCESS;
    const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

    fn rest(taken: &[(u64, WcStatus)]) -> Rest {
        let mut rest = Rest::default();
        for &(wr_id, status) in taken {
            rest.take(&[Wc::for_test(wr_id, status)]);
        }
        rest
    }

    /// The device flushes sends and receives each in its own time. Counting the markers lost receives:
    /// the two of the sends were taken for one of each queue.
    #[test]
    fn no_marker_stands_for_another() {
        let sends = [(3, FLUSHED), (ALL_SENT, FLUSHED), (SENDS_FLUSHED, FLUSHED)];
        let mut rest = rest(&sends);
        let wanted = [RECEIVES_FLUSHED, SENDS_FLUSHED];
        assert!(!rest.has(&wanted), "the receives have not come");
        rest.take(&[
            Wc::for_test(2, FLUSHED),
            Wc::for_test(RECEIVES_FLUSHED, FLUSHED),
        ]);
        assert!(rest.has(&wanted));
        let ids: Vec<_> = rest.completions.iter().map(Wc::wr_id).collect();
        assert_eq!(ids, [3, 2], "the markers are not the program's");
    }

    #[test]
    fn the_failure_is_the_one_that_explains_the_others() {
        let status = |taken: &[(u64, WcStatus)]| rest(taken).failure.map(|f| (f.wr_id, f.status));
        let (access, length) = (WcStatus::REM_ACCESS_ERR, WcStatus::LOC_LEN_ERR);
        assert_eq!(status(&[(1, SUCCESS)]), None);
        assert_eq!(status(&[(1, FLUSHED), (2, FLUSHED)]), Some((1, FLUSHED)));
        assert_eq!(status(&[(1, FLUSHED), (2, length)]), Some((2, length)));
        assert_eq!(
            status(&[(1, access), (2, FLUSHED), (3, length)]),
            Some((1, access))
        );
    }
}
