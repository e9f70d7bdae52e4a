//! Ending a connection without losing posted operations.

use std::time::Duration;

use rustix::io::Errno;

use super::Conn;
use crate::clock::sleep;
use crate::error::{Error, GivenBack, Result};
use crate::failure::NotConnected;
use crate::looking;
use crate::slots::{ConnState, Kind};
use crate::verbs::{Deadline, LocalBuffer, Wc};

/// How long the device may take to flush a queue pair in the error state.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// The same on iWARP, where a request that was posted in the error state may never complete.
/// soft-iWARP has flushed all by the end of the call that changes the state.
const FLUSH_LIMIT_OF_IWARP: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(200);

impl Conn {
    /// Ends the connection when all posted operations are done. Returns the completions that were
    /// not polled, those of each queue in their order. It waits for the peer for at most `limit`.
    /// Then it waits for the device, for at most 5 s, to flush the rest of the queues.
    ///
    /// [`disconnect`](Self::disconnect) discards operations that have not been sent yet, so that
    /// the peer may never see the last message. This method waits until the peer's device has
    /// acknowledged all operations. It posts an operation of 0 bytes as a marker, and answers come
    /// in order: a write, or on iWARP a read ([which completions are
    /// answers](Self#which-completions-are-answers)). A slot of the send queue is kept for the
    /// marker. No operation can be posted meanwhile. Then the method disconnects and frees
    /// everything. Receives that were posted and not used come back as failed completions.
    ///
    /// Let only one side end a connection. A peer that disconnects at once after the last message
    /// may be gone before it acknowledges the marker. Then this fails although no message was lost.
    /// Also make sure that the peer has stopped sending: if receives are those of a shared receive
    /// queue, a message that arrives meanwhile may be lost.
    ///
    /// If the connection failed, or another call has taken the event of its end
    /// ([`ended`](Self::ended)), this only frees it. Its operations in flight come back as failed
    /// completions. A connection that was never established is only freed.
    ///
    /// # Errors
    ///
    /// [`GivenBack`], with the completions. The connection is freed in each case.
    ///
    /// * The [`reason`](Self::reason) for which the connection failed, whichever thread polled it:
    ///   for instance [`Error::Operation`], or [`Error::Provider`] after a failed call.
    /// * [`Error::TimedOut`] if the peer does not acknowledge in time, or the device does not
    ///   flush.
    /// * [`Error::Ended`] if the peer closed the connection, and the acknowledgement did not come
    ///   within a second after that ([`quiet_from`](Self::quiet_from)). If
    ///   another call took that event earlier, this error is returned only if a failed operation
    ///   of this side is among the completions, or on iWARP if an operation has not completed. There
    ///   `Ok` after such an end is no proof that the peer has the operations: look at
    ///   [`ended`](Self::ended) before the call.
    /// * [`Error::NotConnected`] if the connection ended before the acknowledgement, without an
    ///   event of the peer.
    /// * [`Error::Provider`] if a verb fails.
    pub fn close(self, limit: Duration) -> Result<Vec<Wc>, GivenBack<Vec<Wc>>> {
        let mut completions = Vec::new();
        let state = self.queues.slots.end(ConnState::Closed);
        let sent = match state {
            ConnState::Open => self.send_rest(limit, &mut completions),
            _ => self.how_it_ended(state),
        };
        let flushed = match state {
            ConnState::Connecting => Ok(()),
            _ => self.flush_rest(FLUSH_LIMIT, &mut completions),
        };
        let sent = sent.and_then(|()| self.nothing_was_cut_off(state, &completions));
        let freed = self.delete();
        match sent.and(flushed).and(freed) {
            Ok(()) => Ok(completions),
            Err(error) => Err(GivenBack {
                error,
                object: completions,
            }),
        }
    }

    /// Returns the outcome of a connection that is not open: an error if it failed, even if another
    /// thread polled the failure. After a disconnect operations are flushed, which is no failure of
    /// the connection.
    fn how_it_ended(&self, state: ConnState) -> Result<()> {
        let error = if state == ConnState::Failed {
            self.reason()
        } else {
            self.queues.slots.cause()
        };
        error.map_or(Ok(()), Err)
    }

    /// The program has taken the peer's end already: an error if that cut off an operation of this
    /// side.
    fn nothing_was_cut_off(&self, state: ConnState, completions: &[Wc]) -> Result<()> {
        let is_cut_off = |wc: &Wc| wc.posted().is_some() && wc.result().is_err();
        // On iWARP, an operation that was posted after the end, before this side knew it, never
        // completes.
        let queues = &self.queues;
        let is_missing = || queues.peer.is_iwarp() && !queues.slots.are_sends_done();
        match self.ended() {
            Some(event)
                if state == ConnState::Closed
                    && (completions.iter().any(is_cut_off) || is_missing()) =>
            {
                Err(Error::Ended(Box::new(event.clone())))
            }
            _ => Ok(()),
        }
    }

    /// Waits until everything that was posted is acknowledged.
    fn send_rest(&self, limit: Duration, completions: &mut Vec<Wc>) -> Result<()> {
        let slots = &self.queues.slots;
        let deadline = Deadline::after(limit);
        let is_over = || {
            if self.ended().is_none() {
                // Notes the end, if it is one.
                let _ = self.event_now();
            }
            slots.is_quiet()
        };
        // A read of 0 bytes behind another read may get a wrong answer from soft-iWARP, which ends
        // the connection (`siw_activate_tx`). So this side has no other in flight there.
        let waits_first = self.queues.peer.is_iwarp();
        let is_idle = || !slots.is_send_due();
        if !waits_first || self.collect(completions, is_idle, deadline.left(), is_over)? {
            self.post_marker(Kind::AllSent)?;
            let came = || slots.marker(Kind::AllSent).is_some();
            self.collect(completions, came, deadline.left(), is_over)?;
        }
        let (sent, failure) = (slots.marker(Kind::AllSent), slots.failure());
        if sent == Some(true) && failure.is_none() {
            return Ok(());
        }
        let flushed = || failure.map(Error::from);
        Err(slots.cause_or_event().or_else(flushed).unwrap_or_else(|| {
            if sent.is_some() {
                Error::NotConnected(NotConnected::Unacknowledged)
            } else {
                Error::TimedOut("the peer did not acknowledge all operations")
            }
        }))
    }

    /// Moves the queue pair to the error state, notifies the peer, and takes the completions that
    /// this flushes. It waits for the device for at most `limit`.
    ///
    /// Requests that are posted in the error state are flushed after all others: they are the
    /// markers. On iWARP such a request may never complete, as on soft-iWARP. So no marker is posted
    /// there, and the wait is for the requests that give a completion: the sends that were posted
    /// for one, and the receives. It is short, because the program may have posted some in the error
    /// state, before the end was noticed.
    pub(super) fn flush_rest(&self, limit: Duration, completions: &mut Vec<Wc>) -> Result<()> {
        // First, so that no message of the peer can take the marker's receive.
        let mut result = self.queues.qp.set_error();
        let mut is_flushed = result.is_ok();
        let mut wanted = Vec::new();
        if !self.queues.peer.is_iwarp() {
            wanted.push(Kind::SendsFlushed);
            if self.queues.srq.is_none() {
                wanted.push(Kind::ReceivesFlushed);
            }
        }
        for &marker in &wanted {
            // A marker that was not posted is waited for in vain: completions that come meanwhile
            // are not lost.
            result = result.and(self.post_marker(marker));
        }
        // It also makes rxe look at the receives again.
        let disconnected = self.queues.qp.disconnect();
        is_flushed |= disconnected.is_ok();
        let disconnected = match disconnected {
            // The peer's side is gone already.
            Err(error) if error.is_errno(Errno::INVAL) => Ok(()),
            result => result,
        };
        // A queue pair that is not in the error state does not flush.
        let limit = match (is_flushed, wanted[..].is_empty()) {
            (false, _) => Duration::ZERO,
            (true, false) => limit,
            (true, true) => limit.min(FLUSH_LIMIT_OF_IWARP),
        };
        let came = |marker: &Kind| self.queues.slots.marker(*marker).is_some();
        let are_flushed = || match wanted[..] {
            [] => !self.queues.slots.is_due(),
            _ => wanted.iter().all(came),
        };
        let all = self.collect(completions, are_flushed, limit, || false);
        result.and(disconnected)?;
        if all? || wanted.is_empty() {
            Ok(())
        } else {
            Err(Error::TimedOut("the device did not flush the queues"))
        }
    }

    /// Takes completions until `all` have come, in this thread or another one, and the queues are
    /// empty. Returns `false` if they have not come within `limit`, or if `is_over` becomes true
    /// before that. Each look calls `is_over`.
    fn collect(
        &self,
        completions: &mut Vec<Wc>,
        all: impl Fn() -> bool,
        limit: Duration,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<bool> {
        let queues = &self.queues;
        let take = |(completions, is_empty): &mut (&mut Vec<Wc>, bool)| {
            let is_over = is_over();
            let before = completions.len();
            for cq in std::iter::once(&queues.cq).chain(&queues.rcq) {
                let mut wcs = [Wc::default(); 16];
                let count = cq.get_wc(&mut wcs).map_err(Some)?;
                completions.extend(&wcs[..count]);
            }
            *is_empty = completions.len() == before;
            if is_over { Err(None) } else { Ok(()) }
        };
        let pause = |(_, is_empty): &mut (_, bool), _| {
            // Meanwhile other threads may poll, and leave completions.
            if std::mem::take(is_empty) {
                sleep(PAUSE);
            }
            Ok(())
        };
        let judge = |(_, is_empty): &mut (_, bool)| (*is_empty && all()).then_some(());
        match looking::wait(&mut (completions, false), limit, judge, take, pause) {
            Ok(_) | Err(None) => Ok(all()),
            Err(Some(error)) => Err(error),
        }
    }

    fn post_marker(&self, marker: Kind) -> Result<()> {
        let qp = &self.queues.qp;
        self.queues.slots.post_marker(marker, |wr_id| match marker {
            Kind::ReceivesFlushed => qp.post_recv::<false>(LocalBuffer::EMPTY, wr_id),
            _ => qp.post(&mut self.queues.question(), wr_id),
        })
    }
}
