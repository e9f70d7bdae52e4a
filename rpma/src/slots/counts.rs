//! Events of a connection that are counted where they are rare: full queues and failures.
//!
//! Posted requests and their bytes are counted by the [`Ring`](super::ring::Ring), under its lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ConnSlots;
use crate::counters::{Counters, STATUSES};
use crate::error::Queue;
use crate::status::WcStatus;

/// Threads add to them at the same time, without a lock.
#[derive(Debug, Default)]
pub(super) struct Counts {
    full_send_queue: AtomicU64,
    full_receive_queue: AtomicU64,
    probes_lost: AtomicU64,
    /// By status; in the last one those of unknown statuses.
    failed: [AtomicU64; STATUSES],
}

impl ConnSlots {
    #[cold]
    pub(crate) fn count_failed(&self, status: WcStatus) {
        count(&self.counts.failed[Counters::place_of(status)]);
    }

    #[cold]
    pub(super) fn count_lost_probe(&self) {
        count(&self.counts.probes_lost);
    }

    #[cold]
    pub(super) fn count_full(&self, queue: Queue) {
        match queue {
            Queue::Send => count(&self.counts.full_send_queue),
            _ => count(&self.counts.full_receive_queue),
        }
    }

    /// All counts. Each is read by itself.
    pub(crate) fn counters(&self) -> Counters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut counters = Counters {
            posted: self.send.next_number(),
            bytes: self.send.bytes(),
            receives: self.receive.next_number(),
            full_send_queue: read(&self.counts.full_send_queue),
            full_receive_queue: read(&self.counts.full_receive_queue),
            probes_lost: read(&self.counts.probes_lost),
            ..Counters::default()
        };
        for (failed, count) in counters.failed.iter_mut().zip(&self.counts.failed) {
            *failed = read(count);
        }
        counters
    }
}

fn count(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
