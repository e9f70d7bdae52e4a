//! [`Counters`]: the numbers of a connection, for a program's monitoring.
//!
//! No number is taken back, not even the bytes of a post that the device has refused: a monitoring
//! system takes a smaller value for a restart.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

#[cfg(doc)]
use crate::conn::Conn;
#[cfg(doc)]
use crate::error::Error;
use crate::status::WcStatus;

/// How many statuses are counted by themselves, and one more for the others: `enum ibv_wc_status`
/// of rdma-core 56 has 24.
pub(crate) const STATUSES: usize = 24 + 1;

/// Counts the requests, bytes and failures of a connection since it was made: [`Conn::counters`].
///
/// Each number only grows, and wraps around after 2⁶⁴. Add the counters of several connections with
/// `+` or `sum`, even those of connections that have ended.
///
/// ```no_run
/// use rpma::{Conn, Counters, WcStatus};
///
/// fn report(conns: &[Conn]) {
///     let all: Counters = conns.iter().map(Conn::counters).sum();
///     println!("{} operations, {} bytes", all.posted, all.bytes);
///     for (status, count) in all.failures() {
///         println!("failed {count} times: {status}");
///     }
/// }
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that the device has taken into the send queue: one for each read, write, send,
    /// atomic write and flush. A native flush has one for each 2 GiB, and a commit one for each
    /// part, each flush and the pointer. The library's own requests count as well. A post that
    /// failed counts if the device may have its requests ([`Error::Provider`]).
    pub posted: u64,
    /// Bytes of the program that these requests carry: of reads, writes and sends, and 8 for each
    /// atomic write. Flushes carry none, with any method. The bytes of a post that the device
    /// refused are included. Those of a post that the library refused are not.
    pub bytes: u64,
    /// Receives that the device has taken into the connection's own receive queue. Receives of a
    /// [`Srq`](crate::Srq) are not counted, and neither are the bytes that arrive: see
    /// [`WcSuccess`](crate::WcSuccess).
    pub receives: u64,
    /// Posts that were refused because the send queue was full: [`Error::QueueFull`] and
    /// [`Error::NoCompletionDue`]. A batch and a commit count once. A program that retries counts
    /// once for each try.
    pub full_send_queue: u64,
    /// As [`full_send_queue`](Self::full_send_queue), of the receive queue.
    pub full_receive_queue: u64,
    /// The keep-alive's probes that completed with an error
    /// ([`Failure::Probe`](crate::Failure::Probe)). There is at most one, because it ends the
    /// connection. If the library ended the connection after a silence, only [`Conn::failure`]
    /// shows it. Probes that are flushed when the connection ends do not count.
    pub probes_lost: u64,
    /// See [`failed`](Self::failed).
    pub(crate) failed: [u64; STATUSES],
}

impl Counters {
    /// Returns the number of polled completions with this status. Successful completions are not
    /// counted: for [`WcStatus::SUCCESS`] it returns 0. The statuses from 24 on, which libibverbs
    /// does not define, are counted together. Completions in a shared receive queue's own queue do
    /// not count.
    #[must_use]
    pub fn failed(&self, status: WcStatus) -> u64 {
        self.failed[Self::place_of(status)]
    }

    /// Returns each status with which operations or receives have failed, and the number of these
    /// failures. All statuses from 24 on are counted under 24.
    ///
    /// At the end of a connection all operations in flight are flushed. So each lost client adds
    /// its receives to [`WcStatus::WR_FLUSH_ERR`].
    pub fn failures(&self) -> impl Iterator<Item = (WcStatus, u64)> + use<> {
        (0..)
            .map(WcStatus)
            .zip(self.failed)
            .filter(|(_, count)| *count > 0)
    }

    /// Where a status is counted.
    pub(crate) fn place_of(status: WcStatus) -> usize {
        (status.0 as usize).min(STATUSES - 1)
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failures: BTreeMap<_, _> = self
            .failures()
            .map(|(status, count)| (status.to_string(), count))
            .collect();
        f.debug_struct("Counters")
            .field("posted", &self.posted)
            .field("bytes", &self.bytes)
            .field("receives", &self.receives)
            .field("full_send_queue", &self.full_send_queue)
            .field("full_receive_queue", &self.full_receive_queue)
            .field("probes_lost", &self.probes_lost)
            .field("failures", &failures)
            .finish()
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        // By name: a count that is added here later is not forgotten.
        let Self {
            posted,
            bytes,
            receives,
            full_send_queue,
            full_receive_queue,
            probes_lost,
            failed,
        } = self;
        let pairs = [
            (posted, other.posted),
            (bytes, other.bytes),
            (receives, other.receives),
            (full_send_queue, other.full_send_queue),
            (full_receive_queue, other.full_receive_queue),
            (probes_lost, other.probes_lost),
        ];
        for (sum, more) in pairs.into_iter().chain(failed.iter_mut().zip(other.failed)) {
            *sum = sum.wrapping_add(more);
        }
    }
}

impl Add for Counters {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Sum for Counters {
    fn sum<Each: Iterator<Item = Self>>(each: Each) -> Self {
        each.fold(Self::default(), Self::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each known status has a place of its own; all others share the last one.
    #[test]
    fn an_unknown_status_is_counted_too() {
        let mut counters = Counters::default();
        for status in [0, 5, 23, 24, 25, u32::MAX].map(WcStatus) {
            counters.failed[Counters::place_of(status)] += 1;
        }
        let failures: Vec<_> = counters.failures().collect();
        let expected = [(0, 1), (5, 1), (23, 1), (24, 3)];
        assert_eq!(failures, expected.map(|(code, n)| (WcStatus(code), n)));
        assert_eq!(counters.failed(WcStatus(77)), 3);
        assert_eq!(counters.failed(WcStatus::WR_FLUSH_ERR), 1);
    }

    /// A sum has all of each, and wraps around.
    #[test]
    fn counters_add_up() {
        let one = Counters {
            posted: 1,
            bytes: u64::MAX,
            receives: 3,
            full_send_queue: 4,
            full_receive_queue: 5,
            probes_lost: 6,
            failed: std::array::from_fn(|n| n as u64),
        };
        let sum: Counters = [one, one].into_iter().sum();
        let expected = Counters {
            posted: 2,
            bytes: u64::MAX - 1,
            receives: 6,
            full_send_queue: 8,
            full_receive_queue: 10,
            probes_lost: 12,
            failed: std::array::from_fn(|n| 2 * n as u64),
        };
        assert_eq!(sum, expected);
    }
}
