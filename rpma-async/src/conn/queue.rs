//! A completion queue, and the threads that poll it.
//!
//! Any thread may poll. Each completion goes to one thread, which settles it without a lock. A task
//! that is about to sleep, and the driver, poll until the queue is empty.

use rpma::{Cq, Result, Wc};

use super::Shared;
use crate::arming::Arming;

/// Completions that one poll takes.
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

    pub(crate) fn arming(&self) -> &Arming {
        &self.arming
    }

    /// Polls one completion.
    #[inline]
    pub(super) fn poll_one(&self, wc: &mut Wc) -> Result<bool> {
        Ok(self.cq.get_wc(std::slice::from_mut(wc))? > 0)
    }

    /// Settles all completions that are there.
    pub(crate) fn drain(&self, conn: &Shared) -> Result<()> {
        let mut wcs = [Wc::default(); POLLED];
        loop {
            let count = self.cq.get_wc(&mut wcs)?;
            if count == 0 {
                return Ok(());
            }
            wcs[..count].iter().for_each(|wc| conn.settle(wc));
        }
    }

    /// A sleeper that has left its waker arms the queue, and settles all completions that are there.
    pub(crate) fn arm_and_drain(&self, conn: &Shared) -> Result<()> {
        self.arming
            .arm_and_drain(|| self.arm(), || self.drain(conn))
    }

    fn arm(&self) -> Result<()> {
        self.cq.req_notify(rpma::Notify::Any)
    }

    /// The driver has taken an event of the queue.
    pub(crate) fn event(&self, conn: &Shared) {
        let drained = self.arming.event(|| self.arm(), || self.drain(conn));
        if let Err(error) = drained {
            log::error!("{error}");
            conn.give_up(error);
        }
    }
}
