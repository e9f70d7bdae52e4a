//! The `op_context` of each entry of a ring.
//!
//! It has a file of its own for one `unsafe` block: each operation, and each completion, looks up
//! one entry, and the check of an index that is right by construction is 3 of some 70
//! instructions.

#![expect(
    unsafe_code,
    reason = "the index of an entry, which is right by construction"
)]

use std::fmt;

use crate::primitives::AtomicU64;

/// A power of two of entries.
pub(crate) struct Contexts {
    entries: Box<[AtomicU64]>,
    /// Their number less 1. Neither is changed once they are made.
    mask: u32,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the entries: there may be thousands.
        f.debug_struct("Contexts")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Contexts {
    /// Contexts for at least `len` requests.
    pub(crate) fn new(count: u32) -> Self {
        // No program has the memory for more than a billion.
        let size = count.max(1).checked_next_power_of_two().unwrap_or(1 << 31);
        Self {
            entries: (0..size).map(|_| AtomicU64::new(0)).collect(),
            mask: size - 1,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The context of a number, which stands at the remainder of the number.
    #[inline(always)]
    pub(crate) fn of(&self, number: u64) -> &AtomicU64 {
        self.view().of(number)
    }

    /// The same entries, for a loop: its stores cannot change where they are. The compiler cannot
    /// assume that for entries in memory.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        View {
            entries: &self.entries,
            mask: self.mask,
        }
    }
}

/// See [`Contexts::view`].
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    entries: &'a [AtomicU64],
    /// As in [`Contexts`]. Only this makes a view.
    mask: u32,
}

impl<'a> View<'a> {
    /// As [`Contexts::of`].
    #[inline(always)]
    pub(crate) fn of(self, number: u64) -> &'a AtomicU64 {
        let index = (number as u32 & self.mask) as usize;
        debug_assert!(index < self.entries.len());
        // SAFETY: `Contexts::new` makes `mask + 1` entries, both never change, and `index` is
        // `mask` at most.
        unsafe { self.entries.get_unchecked(index) }
    }
}
