//! Ending a connection without losing what was posted.

use std::fmt;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::Conn;
use crate::cq::Cq;
use crate::credits::State;
use crate::error::{Error, Result};
use crate::verbs::{Deadline, LocalBuffer, Opcode, RemoteAddress, SendFlags, Wc, WcFailure};

/// The `wr_id` of the markers.
const MARKER: u64 = u64::from_be_bytes(*b"rpma end");
/// How long the device may take to flush a queue pair in the error state.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at the queues.
const PAUSE: Duration = Duration::from_micros(200);

impl Conn {
    /// Ends the connection when everything that was posted has been done, within `limit`, and returns
    /// the completions that nobody had read, those of each queue in their order.
    ///
    /// [`disconnect`](Self::disconnect) discards what has not been sent yet, so that the peer may never
    /// see the last message. This waits until the peer's device has acknowledged all of it: a write of 0
    /// bytes is posted as a marker, for which a slot of the send queue is kept, and acknowledgements
    /// come in order. Nothing can be posted meanwhile. Then it disconnects and frees everything; receives
    /// that were posted and not used come back as failed completions.
    ///
    /// Let only one side end a connection: a peer that disconnects as soon as it has the last message may
    /// be gone before it acknowledges the marker, and then this fails although nothing was lost.
    ///
    /// The `op_context` 0x7270_6d61_2065_6e64 ("rpma end") is the markers': completions of operations that
    /// were posted with it are not returned.
    ///
    /// A connection that has failed, or that the peer has closed, is only freed, and what is in flight
    /// comes back as failed completions. One that was never established is only freed.
    ///
    /// # Errors
    ///
    /// [`CloseError`], with the completions: [`Error::TimedOut`] if the peer does not acknowledge in time,
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
        self.post_marker()?;
        rest.expected += 1;
        let all = rest.collect(self, Deadline::after(limit))?;
        match rest.first_failure {
            Some(failure) => Err(failure.into()),
            None if all => Ok(()),
            None => Err(Error::TimedOut(
                "the peer did not acknowledge what was sent",
            )),
        }
    }

    /// Moves the queue pair to the error state, and takes what that flushes.
    fn flush_rest(&self, rest: &mut Rest) -> Result<()> {
        // First, so that no message of the peer can take the marker's receive.
        self.queues.qp.set_error()?;
        if self.queues.srq.is_none() {
            let posted = self.queues.qp.post_recv(LocalBuffer::EMPTY, MARKER);
            rest.expected += u32::from(posted.is_ok());
        }
        rest.expected += u32::from(self.post_marker().is_ok());
        // It also makes rxe look at the receives again.
        let disconnected = match self.queues.qp.disconnect() {
            // The peer's side is gone already.
            Err(error) if error.is_errno(Errno::INVAL) => Ok(()),
            result => result,
        };
        match rest.collect(self, Deadline::after(FLUSH_LIMIT))? {
            true => disconnected,
            false => Err(Error::TimedOut("the device did not flush the queues")),
        }
    }

    fn post_marker(&self) -> Result<()> {
        let flags = SendFlags::SIGNALED;
        let none = RemoteAddress::NONE;
        Ok(self
            .queues
            .qp
            .post_send(Opcode::Write, none, &[], flags, MARKER)?)
    }
}

/// What was left in the queues.
#[derive(Default)]
struct Rest {
    completions: Vec<Wc>,
    first_failure: Option<WcFailure>,
    /// The markers that were posted, and those that have come. One for which we did not want to wait any
    /// longer comes later, and must not be taken for another queue's.
    expected: u32,
    markers: u32,
}

impl Rest {
    /// Takes completions until all markers have come; `false` if `deadline` passes first.
    fn collect(&mut self, conn: &Conn, deadline: Deadline) -> Result<bool> {
        loop {
            let last_look = deadline.has_passed();
            for cq in std::iter::once(&conn.queues.cq).chain(&conn.queues.rcq) {
                self.drain(cq)?;
            }
            if self.markers >= self.expected || last_look {
                return Ok(self.markers >= self.expected);
            }
            thread::sleep(PAUSE);
        }
    }

    fn drain(&mut self, cq: &Cq) -> Result<()> {
        let mut wcs = [Wc::default(); 16];
        loop {
            let count = cq.get_wc(&mut wcs)?;
            if count == 0 {
                return Ok(());
            }
            for wc in &wcs[..count] {
                self.first_failure = self.first_failure.or(wc.result().err());
                match wc.wr_id() {
                    MARKER => self.markers += 1,
                    _ => self.completions.push(*wc),
                }
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
