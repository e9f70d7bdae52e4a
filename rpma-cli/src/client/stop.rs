//! Why a case ends before its end, and the [`Clock`] of its waits.

use std::time::{Duration, Instant};

use rpma::{Conn, ConnEvent, Error};

use crate::interrupt::Interrupt;
use crate::problem::{Problem, in_words};
use crate::time::now;

/// The result of a case, or of a step of it.
pub(crate) type Result<T = ()> = std::result::Result<T, Stop>;

/// Why a case did not pass.
#[derive(Debug)]
pub(crate) enum Stop {
    /// What was expected, and what came.
    Failed(String),
    /// Why the hosts cannot do it.
    NotPossible(String),
    /// The session has ended: no other case can run.
    Over(Problem),
    /// The user has ended the command.
    Interrupted,
}

/// For a command that ends with it.
impl From<Stop> for Problem {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Over(problem) => problem,
            Stop::Interrupted => Self::new("interrupted", ""),
            Stop::Failed(text) | Stop::NotPossible(text) => Self::new(text, ""),
        }
    }
}

/// The step of a result.
pub(crate) trait InStep<T> {
    /// Names the step in the text of a failure.
    fn step(self, step: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Stop>> InStep<T> for std::result::Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| match error.into() {
            Stop::Failed(text) => Stop::Failed(format!("{}: {text}", step())),
            other => other,
        })
    }
}

/// The library knows what the devices and the memory cannot do.
impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        match error.into() {
            error @ Error::NotSupported(_) => Self::NotPossible(in_words(error)),
            error => Self::Failed(in_words(error)),
        }
    }
}

/// A failed case.
pub(crate) fn failed<T>(text: impl Into<String>) -> Result<T> {
    Err(Stop::Failed(text.into()))
}

/// A case for which these hosts are not able.
pub(crate) fn not_possible<T>(text: impl Into<String>) -> Result<T> {
    Err(Stop::NotPossible(text.into()))
}

/// The longest wait before the interrupt is looked at.
const SLICE: Duration = Duration::from_millis(100);

/// The limit of a case.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    interrupt: Interrupt,
    limit: Duration,
    until: Instant,
}

impl Clock {
    pub(crate) fn new(interrupt: &Interrupt, limit: Duration) -> Self {
        Self {
            interrupt: interrupt.clone(),
            limit,
            until: now() + limit,
        }
    }

    /// Begins anew.
    pub(crate) fn restart(&mut self, limit: Duration) {
        *self = Self::new(&self.interrupt, limit);
    }

    /// Waits in slices, until there is a result or the limit of the case has passed.
    pub(crate) fn within<T>(&self, mut wait: impl FnMut(Duration) -> rpma::Result<T>) -> Result<T> {
        loop {
            if self.interrupt.is_set() {
                return Err(Stop::Interrupted);
            }
            let left = self.until.saturating_duration_since(now());
            match wait(left.min(SLICE)) {
                Err(Error::TimedOut(_) | Error::NoEvent | Error::NoCompletion) => {}
                result => return Ok(result?),
            }
            if left.is_zero() {
                return failed(format!("nothing came within {} s", self.limit.as_secs()));
            }
        }
    }

    /// Waits until a connection is established, or is over. Returns which of the two.
    pub(crate) fn established_or_end(&self, conn: &Conn) -> Result<ConnEvent> {
        loop {
            let event = self.within(|limit| conn.next_event_timeout(limit))?;
            if event == ConnEvent::Established || event.is_end() {
                return Ok(event);
            }
        }
    }
}
