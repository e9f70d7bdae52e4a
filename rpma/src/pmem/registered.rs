//! A [`PmemMap`] as memory that can be registered, and made durable while a region owns it.

#![expect(unsafe_code, reason = "the promises of memory that can be registered")]

use std::ops::RangeBounds;

use super::{PmemKind, PmemMap};
use crate::error::Result;
use crate::verbs::{RegisterableMemory, Registered};

// SAFETY: the map is a part of a raw mapping, which it keeps, and which is fixed until the last
// part's Drop unmaps it, readable and writable; it never gives out references.
unsafe impl RegisterableMemory for PmemMap {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr()
    }

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn is_volatile(&self) -> bool {
        // A device writes to the page cache of a file.
        self.kind() == PmemKind::File
    }
}

impl Registered<PmemMap> {
    pub(crate) fn persist(&self, range: impl RangeBounds<usize>) -> Result<()> {
        // SAFETY: a map holds a raw pointer, so that a reference to it makes no claim about the
        // memory. `PmemMap` is `Sync`.
        unsafe { self.owner() }.persist(range)
    }
}
