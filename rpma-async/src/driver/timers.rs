//! Timers: of tasks that wait with a limit, and of the steps of keep-alives.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::task::Waker;
use std::time::Instant;

use super::table::Member;

/// The work of a timer.
pub(crate) enum Due {
    Wake(Waker),
    KeepAlive(Weak<dyn Member>),
}

/// The name of a timer.
pub(crate) type Timer = (Instant, u64);

#[derive(Default)]
pub(crate) struct Timers {
    next: u64,
    due: BTreeMap<Timer, Due>,
}

impl Timers {
    /// Returns the timer, and whether it is the first one now.
    pub(crate) fn add(&mut self, at: Instant, due: Due) -> (Timer, bool) {
        self.next += 1;
        let timer = (at, self.next);
        self.due.insert(timer, due);
        let is_first = self
            .due
            .first_key_value()
            .is_some_and(|(first, _)| *first == timer);
        (timer, is_first)
    }

    pub(crate) fn remove(&mut self, timer: Timer) -> Option<Due> {
        self.due.remove(&timer)
    }

    pub(crate) fn first(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn take(&mut self, now: Instant) -> Option<Due> {
        let first = self.due.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
