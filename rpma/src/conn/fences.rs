//! The means that order an operation after earlier reads and flushes: a fence, or the order of the
//! peer's device.
//!
//! On soft-RoCE no fence is posted: it would wait for ever after a lost packet. The peer's device
//! decides then. soft-RoCE executes one request after the other, and an adapter does not. If the
//! peer's device is an adapter, only polling keeps the order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::posted::Posted;
use crate::verbs::SendFlags;

/// The fences of a connection.
#[derive(Debug)]
pub(super) struct Fences {
    /// The flags that requests can have: on soft-RoCE without a fence.
    possible: SendFlags,
    /// There is no fence, and the peer's device reorders: operations that need a fence are not
    /// supported.
    missing: AtomicBool,
    /// The number of the last flush, plus 1. Only if a fence is missing.
    last_flush: AtomicU64,
}

impl Fences {
    pub(super) fn new(on_soft_roce: bool, peer_reorders: bool) -> Self {
        let possible = if on_soft_roce {
            SendFlags::all().difference(SendFlags::FENCE)
        } else {
            SendFlags::all()
        };
        Self {
            possible,
            missing: AtomicBool::new(on_soft_roce && peer_reorders),
            last_flush: AtomicU64::new(0),
        }
    }

    /// The peer is declared to reorder. Flushes that were posted until now were not noted, so each
    /// of the operations that were `posted_so_far` counts as one.
    pub(super) fn peer_reorders(&self, posted_so_far: impl FnOnce() -> u64) {
        let is_missing = !self.possible.contains(SendFlags::FENCE);
        if is_missing && !self.missing.swap(true, Ordering::SeqCst) {
            self.last_flush
                .fetch_max(posted_so_far(), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(super) fn possible(&self) -> SendFlags {
        self.possible
    }

    #[inline(always)]
    pub(super) fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// A flush was posted.
    #[inline(always)]
    pub(super) fn flushed(&self, posted: Posted) {
        if self.is_missing() {
            self.note(posted);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&self, posted: Posted) {
        // The latest of several threads.
        self.last_flush
            .fetch_max(posted.number() + 1, Ordering::Relaxed);
    }

    /// Refuses an atomic write that has no order after the flushes before it, unless all of those
    /// `were_polled`.
    pub(super) fn check_atomic_write(&self, were_polled: impl FnOnce(u64) -> bool) -> Result<()> {
        if !self.is_missing() {
            return Ok(());
        }
        match self.last_flush.load(Ordering::Relaxed) {
            0 => Ok(()),
            last if were_polled(last - 1) => Ok(()),
            _ => Err(behind_a_flush()),
        }
    }
}

/// The error of an atomic write after a flush that was not polled.
#[cold]
pub(super) fn behind_a_flush() -> Error {
    missing("an atomic write after a flush that was not polled needs a fence")
}

#[cold]
pub(super) fn missing(why: &str) -> Error {
    Error::not_supported(format!(
        "{why}, and soft-RoCE has none that can be used. The peer's device is declared to execute operations out of \
         order (ConnCfg::set_peer_reorders, or its Offer): poll the completion of the earlier flush or read, and \
         then post"
    ))
}
