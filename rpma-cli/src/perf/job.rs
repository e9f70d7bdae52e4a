//! [`Job`]: the work of all threads at one setting, and the [`Order`] of their operations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::pace::Pace;
use crate::args::Span;
use crate::settings::{Completions, Setting};

/// The time for all threads to start.
const START: Duration = Duration::from_millis(20);
/// [`Job::stall`] of a measurement.
const STALL: u64 = 10_000_000_000;

/// The end of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// The nanoseconds from the begin of the run.
    Time(u64),
    /// The measured operations of each connection.
    Count(u64),
}

/// The work of all threads.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) begin: Instant,
    /// The operations that are posted, and complete, together.
    pub(super) batch: u64,
    pub(super) warm_up: u64,
    pub(super) end: End,
    pub(super) sleeps: bool,
    /// With operations in flight and no completion for so long, the measurement ends.
    pub(super) stall: u64,
    /// Set to end all threads before the end.
    pub(super) stop: AtomicBool,
}

impl Job {
    pub(super) fn new(span: &Span, setting: &Setting) -> Self {
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let warm_up = nanos(span.warm_up);
        Self {
            begin: Instant::now() + START,
            batch: setting.batch.into(),
            warm_up,
            end: match span.count {
                Some(count) => End::Count(count.div_ceil(setting.connections.into())),
                None => End::Time(warm_up + nanos(span.time)),
            },
            sleeps: setting.completions != Completions::Poll,
            stall: STALL,
            stop: AtomicBool::new(false),
        }
    }

    /// The nanoseconds since the begin. 0 before it.
    pub(super) fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    pub(super) fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends all threads.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The numbers of a connection's operations: which one is next, and whether it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pace: Pace,
    batch: u64,
    warm_up: u64,
    end: End,
    /// The number of the next operation.
    next: u64,
    /// The operations of the measurement that have begun.
    counted: u64,
}

/// Operations that begin together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Begun {
    number: u64,
    at: u64,
}

/// Whether the next operations of a connection can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    /// At this time.
    Later(u64),
    Over,
}

impl Order {
    pub(super) fn new(job: &Job, pace: Pace) -> Self {
        Self {
            pace,
            batch: job.batch,
            warm_up: job.warm_up,
            end: job.end,
            next: 0,
            counted: 0,
        }
    }

    pub(super) fn turn(&self, now: u64) -> Turn {
        let due = self.pace.due(self.next + self.batch - 1);
        match self.end {
            End::Time(end) if now >= end || due >= end => Turn::Over,
            End::Count(count) if self.counted >= count => Turn::Over,
            _ if due > now => Turn::Later(due),
            _ => Turn::Now,
        }
    }

    /// The next operations begin.
    pub(super) fn begin(&mut self, now: u64) -> Begun {
        let begun = Begun {
            number: self.next,
            at: now,
        };
        self.next += self.batch;
        if self.counts(begun, 0) {
            self.counted += self.batch;
        }
        begun
    }

    /// Whether an operation belongs to the measurement, and not to the warm-up.
    fn counts(&self, begun: Begun, place: u64) -> bool {
        self.since(begun, place) >= self.warm_up
    }

    /// The time from which the latency of an operation is measured.
    fn since(&self, begun: Begun, place: u64) -> u64 {
        match self.pace {
            Pace::Closed => begun.at,
            open @ Pace::Open { .. } => open.due(begun.number + place),
        }
    }

    /// Calls `count` with the latency and the number of the operations that have completed.
    pub(super) fn completed(&self, begun: Begun, now: u64, mut count: impl FnMut(u64, u64)) {
        if let Pace::Closed = self.pace {
            if self.counts(begun, 0) {
                count(now.saturating_sub(begun.at), self.batch);
            }
            return;
        }
        for place in 0..self.batch {
            if self.counts(begun, place) {
                count(now.saturating_sub(self.since(begun, place)), 1);
            }
        }
    }

    /// The latencies of the operations that were due before the end and did not begin: up to now.
    pub(super) fn not_begun(&self, now: u64) -> impl Iterator<Item = u64> {
        let (pace, from) = (self.pace, self.next.max(self.pace.first_from(self.warm_up)));
        let until = match (pace, self.end) {
            (Pace::Open { .. }, End::Time(end)) => {
                let all = pace.first_from(end.min(now));
                // An incomplete batch was not due.
                all - (all.saturating_sub(self.next)) % self.batch
            }
            _ => 0,
        };
        (from..until).map(move |number| now.saturating_sub(pace.due(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(pace: Pace, batch: u64, end: End) -> Order {
        Order {
            pace,
            batch,
            warm_up: 100,
            end,
            next: 0,
            counted: 0,
        }
    }

    const EVERY_10: Pace = Pace::Open {
        first: 0.0,
        interval: 10.0,
    };

    fn latencies(order: &Order, begun: Begun, now: u64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        order.completed(begun, now, |latency, count| all.push((latency, count)));
        all
    }

    /// Promise: no coordinated omission. An operation that begins late is measured from the time
    /// at which it was due.
    #[test]
    fn an_open_loop_measures_from_the_intended_begin() {
        let mut order = order(EVERY_10, 1, End::Time(1000));
        order.next = 20;
        let begun = order.begin(500);
        assert_eq!(latencies(&order, begun, 510), [(310, 1)]);
    }

    #[test]
    fn a_closed_loop_measures_from_the_post() {
        let mut order = order(Pace::Closed, 4, End::Time(1000));
        let begun = order.begin(500);
        assert_eq!(latencies(&order, begun, 510), [(10, 4)]);
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let mut closed = order(Pace::Closed, 1, End::Count(1));
        let begun = closed.begin(99);
        assert!(latencies(&closed, begun, 510).is_empty());
        assert_eq!(closed.turn(100), Turn::Now);
        closed.begin(100);
        assert_eq!(closed.turn(101), Turn::Over);
        let mut open = order(EVERY_10, 4, End::Time(1000));
        open.next = 8;
        let begun = open.begin(150);
        assert_eq!(latencies(&open, begun, 150), [(50, 1), (40, 1)]);
    }

    #[test]
    fn a_batch_is_due_with_its_last_operation() {
        let order = order(EVERY_10, 4, End::Time(1000));
        assert_eq!(order.turn(29), Turn::Later(30));
        assert_eq!(order.turn(30), Turn::Now);
        assert_eq!(order.turn(1000), Turn::Over);
    }

    /// Promise: operations for which there was no time count with the time that they waited.
    #[test]
    fn operations_that_could_not_begin_are_counted() {
        let mut open = order(EVERY_10, 1, End::Time(150));
        open.next = 5;
        let waited: Vec<u64> = open.not_begun(150).collect();
        assert_eq!(waited, [50, 40, 30, 20, 10]);
        open.batch = 4;
        open.next = 8;
        assert_eq!(open.not_begun(150).count(), 2, "100 and 110 of 80 to 140");
        let closed = order(Pace::Closed, 1, End::Time(150));
        assert_eq!(closed.not_begun(150).count(), 0);
    }
}
