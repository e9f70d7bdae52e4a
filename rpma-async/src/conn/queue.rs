//! A completion queue of a connection, and its arming.

use rpma::{Cq, Error, Result, Wc};

use super::Shared;
use super::shared::Polled;
use crate::arming::Arming;

/// Completions that a poll takes first. After a sleep there is seldom more than one.
const FEW: u32 = 2;
/// Completions that one poll takes, if there are more of them.
const MANY: u32 = 16;

#[derive(Debug)]
pub(crate) struct Queue {
    cq: Cq,
    arming: Arming,
}

impl Queue {
    pub(super) fn new(cq: Cq) -> Self {
        Self {
            cq,
            arming: Arming::default(),
        }
    }

    pub(super) fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Settles all completions that are there. Returns the last poll.
    #[inline]
    fn drain(&self, conn: &Shared) -> Result<Polled, Box<Error>> {
        let mut wcs = [Wc::default(); FEW as usize];
        let polled = conn.poll(self, &mut wcs)?;
        if polled.count < FEW {
            // The queue is empty.
            return Ok(polled);
        }
        self.drain_many(conn)
    }

    #[inline(never)]
    fn drain_many(&self, conn: &Shared) -> Result<Polled, Box<Error>> {
        let mut wcs = [Wc::default(); MANY as usize];
        loop {
            let polled = conn.poll(self, &mut wcs)?;
            if polled.count < MANY {
                return Ok(polled);
            }
        }
    }

    /// A sleeper that has left its waker arms the queue, and settles all completions that are
    /// there.
    pub(crate) fn arm_and_drain(&self, conn: &Shared) -> Result<(), Box<Error>> {
        self.arm()?;
        self.drain(conn).map(drop)
    }

    /// As [`arm_and_drain`](Self::arm_and_drain), where most often none is there.
    #[inline]
    pub(super) fn arm_and_poll(&self, conn: &Shared) -> Result<(), Box<Error>> {
        self.arm()?;
        let mut wc = Wc::default();
        if conn.poll(self, std::slice::from_mut(&mut wc))?.count > 0 {
            self.drain_many(conn)?;
        }
        Ok(())
    }

    fn arm(&self) -> Result<(), Box<Error>> {
        self.arming.arm(|| self.request_event())
    }

    fn request_event(&self) -> Result<(), Box<Error>> {
        self.cq.req_notify(rpma::Notify::Any).map_err(Box::new)
    }

    /// The driver has taken an event of the queue.
    pub(super) fn event(&self, conn: &Shared, is_waited: impl FnOnce(Polled) -> bool) {
        let drained = self
            .arming
            .event(|| self.request_event(), || self.drain(conn), is_waited);
        if let Err(error) = drained {
            log::error!("{error}");
            conn.give_up(*error);
        }
    }
}
