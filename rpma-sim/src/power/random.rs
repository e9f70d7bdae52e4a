//! Numbers by chance that are the same in each run.

use crate::order::mix;

/// A generator that a seed determines.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// No bit, all of the bits, or any.
    pub(crate) fn any_of(&mut self, bits: u8) -> u8 {
        match self.below(3) {
            0 => 0,
            1 => bits,
            _ => self.next() as u8 & bits,
        }
    }

    /// Some of the bits, and not all, if there is more than one.
    pub(crate) fn some_of(&mut self, bits: u8) -> u8 {
        if bits.count_ones() < 2 {
            return bits;
        }
        loop {
            let some = self.next() as u8 & bits;
            if some != 0 && some != bits {
                return some;
            }
        }
    }
}
