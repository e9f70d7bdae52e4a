//! A completion queue of a connection, and its arming.

use rpma::{Cq, Error, Result, Wc};

use super::Shared;
use crate::arming::Arming;

/// Completions that are polled one by one. After a sleep there is seldom more than one.
const SINGLY: usize = 4;
/// Completions that one poll takes, if there are more of them.
const POLLED: usize = 16;

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

    /// Settles all completions that are there.
    fn drain(&self, conn: &Shared) -> Result<(), Box<Error>> {
        let mut wc = Wc::default();
        for _ in 0..SINGLY {
            if conn.poll(self, std::slice::from_mut(&mut wc))?.count == 0 {
                return Ok(());
            }
        }
        self.drain_many(conn)
    }

    #[inline(never)]
    fn drain_many(&self, conn: &Shared) -> Result<(), Box<Error>> {
        let mut wcs = [Wc::default(); POLLED];
        while conn.poll(self, &mut wcs)?.count > 0 {}
        Ok(())
    }

    /// A sleeper that has left its waker arms the queue, and settles all completions that are
    /// there.
    pub(crate) fn arm_and_drain(&self, conn: &Shared) -> Result<(), Box<Error>> {
        self.arming
            .arm_and_drain(|| self.arm(), || self.drain(conn))
    }

    fn arm(&self) -> Result<(), Box<Error>> {
        self.cq.req_notify(rpma::Notify::Any).map_err(Box::new)
    }

    /// The driver has taken an event of the queue.
    pub(super) fn event(&self, conn: &Shared, is_waited: impl FnOnce() -> bool) {
        let drained = self
            .arming
            .event(|| self.arm(), || self.drain(conn), is_waited);
        if let Err(error) = drained {
            log::error!("{error}");
            conn.give_up(*error);
        }
    }
}
