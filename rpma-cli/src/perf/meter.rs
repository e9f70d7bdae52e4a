//! [`Meter`]: the latencies and the counts of a thread.

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// The longest latency: an hour. Longer ones count as this.
const LONGEST: u64 = 3_600_000_000_000;
/// The significant digits of a latency.
const DIGITS: u8 = 3;

/// What a thread has measured.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) latencies: Histogram<u64>,
    /// The operations of the measurement that have completed.
    pub(super) operations: u64,
    /// When the last one completed, in nanoseconds from the begin of the run.
    pub(super) last: u64,
    pub(super) not_begun: u64,
    /// The processor's time of the thread during the measurement.
    pub(super) cpu_ns: u64,
    /// The thread's time at the begin of the measurement.
    cpu_before: Option<u64>,
}

impl Meter {
    pub(super) fn new() -> Self {
        // The bounds are constants, for which it never fails.
        let latencies = Histogram::new_with_bounds(1, LONGEST, DIGITS);
        Self {
            latencies: latencies.unwrap_or_else(|_| unreachable!()),
            operations: 0,
            last: 0,
            not_begun: 0,
            cpu_ns: 0,
            cpu_before: None,
        }
    }

    /// Counts operations that have completed together, with the same latency.
    pub(super) fn completed(&mut self, latency: u64, count: u64, now: u64) {
        self.latencies.saturating_record_n(latency.max(1), count);
        self.operations += count;
        self.last = now;
    }

    /// Counts an operation that was due, and could not begin before the end.
    pub(super) fn not_begun(&mut self, latency: u64) {
        self.latencies.saturating_record(latency.max(1));
        self.not_begun += 1;
    }

    /// The measurement begins, at the first call.
    pub(super) fn begin(&mut self) {
        if self.cpu_before.is_none() {
            self.cpu_before = Some(thread_time());
        }
    }

    /// The measurement of this thread has ended.
    pub(super) fn end(&mut self) {
        if let Some(before) = self.cpu_before {
            self.cpu_ns = thread_time() - before;
        }
    }

    /// Adds the measurements of another thread.
    pub(super) fn add(&mut self, other: &Self) {
        // Both have the same bounds, for which it never fails.
        let added = self.latencies.add(&other.latencies);
        debug_assert!(added.is_ok());
        self.operations += other.operations;
        self.last = self.last.max(other.last);
        self.not_begun += other.not_begun;
        self.cpu_ns += other.cpu_ns;
    }
}

/// The time of this thread on a processor, in nanoseconds.
fn thread_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
