//! A completion queue, and the threads that poll it.
//!
//! Any thread may poll. Each completion goes to one thread, which settles it without a lock. A
//! task that is about to sleep, and the driver, poll until the queue is empty.

use rpma::{Cq, Error, Result, Wc};

use super::Shared;
use crate::arming::Arming;
use crate::error::once_more;

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

    pub(crate) fn arming(&self) -> &Arming {
        &self.arming
    }

    /// Polls one completion.
    #[inline]
    pub(super) fn poll_one(&self, conn: &Shared, wc: &mut Wc) -> Result<bool, Box<Error>> {
        match self.cq.get_wc(std::slice::from_mut(wc)) {
            Ok(count) => Ok(count > 0),
            Err(error) => Err(failed(conn, error)),
        }
    }

    /// Settles all completions that are there.
    pub(crate) fn drain(&self, conn: &Shared) -> Result<(), Box<Error>> {
        let mut wc = Wc::default();
        for _ in 0..SINGLY {
            if !self.poll_one(conn, &mut wc)? {
                return Ok(());
            }
            conn.settle(&wc);
        }
        self.drain_many(conn)
    }

    #[inline(never)]
    fn drain_many(&self, conn: &Shared) -> Result<(), Box<Error>> {
        let mut wcs = [Wc::default(); POLLED];
        loop {
            let polled = self.cq.get_wc(&mut wcs);
            let count = polled.map_err(|error| failed(conn, error))?;
            if count == 0 {
                return Ok(());
            }
            wcs[..count].iter().for_each(|wc| conn.settle(wc));
        }
    }

    /// A sleeper that has left its waker arms the queue, and settles all completions that are
    /// there.
    pub(crate) fn arm_and_drain(&self, conn: &Shared) -> Result<(), Box<Error>> {
        self.arming
            .arm_and_drain(|| self.arm(), || self.drain(conn))
    }

    fn arm(&self) -> Result<(), Box<Error>> {
        self.cq.req_notify(rpma::Notify::Any).map_err(boxed)
    }

    /// The driver has taken an event of the queue.
    pub(crate) fn event(&self, conn: &Shared) {
        let drained = self.arming.event(|| self.arm(), || self.drain(conn));
        if let Err(error) = drained {
            log::error!("{error}");
            conn.give_up(*error);
        }
    }
}

/// A poll that failed may have lost a completion, and who waits for that would wait for ever.
#[cold]
fn failed(conn: &Shared, error: Error) -> Box<Error> {
    log::error!("{error}");
    conn.give_up(once_more(&error));
    boxed(error)
}

/// A box for rare errors: a small result fits into registers.
#[cold]
fn boxed(error: Error) -> Box<Error> {
    Box::new(error)
}
