//! The free slots of a connection: a stack without a lock.

use crate::primitives::{AtomicU32, AtomicU64, Ordering};

/// The end of the stack.
const NONE: u32 = u32::MAX;

/// The indices that are free.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// The index on top, and in the upper half how many were taken. So an exchange fails if the
    /// same index is on top again, and another one is below it.
    top: AtomicU64,
    /// The index below each index that is on the stack.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// All indices below `len`, of which 0 is on top.
    pub(crate) fn new(len: u32) -> Self {
        let below = |index| if index + 1 < len { index + 1 } else { NONE };
        Self {
            top: AtomicU64::new(if len > 0 { 0 } else { u64::from(NONE) }),
            below: (0..len).map(|index| AtomicU32::new(below(index))).collect(),
        }
    }

    /// Takes an index.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let below = self.below.get(top as u32 as usize)?.load(Ordering::Relaxed);
            let taken = (top >> 32).wrapping_add(1) << 32 | u64::from(below);
            let exchanged =
                self.top
                    .compare_exchange_weak(top, taken, Ordering::AcqRel, Ordering::Acquire);
            match exchanged {
                Ok(_) => return Some(top as u32),
                Err(now) => top = now,
            }
        }
    }

    /// Gives an index back, which [`take`](Self::take) has returned.
    #[inline]
    pub(crate) fn give_back(&self, index: u32) {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            self.below[index as usize].store(top as u32, Ordering::Relaxed);
            let given = top & !u64::from(u32::MAX) | u64::from(index);
            let exchanged =
                self.top
                    .compare_exchange_weak(top, given, Ordering::AcqRel, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}
