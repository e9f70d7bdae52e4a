//! The limits of a request, and the work of several requests together.

use std::ops::Range;

use super::AT_ONCE;
use crate::commit::wire::{MAX_RANGES, Request};
use crate::error::{Error, Result};
use crate::method::Limits;
use crate::mr::Mr;
use crate::pmem::PmemMap;

/// The bytes of a cache line, which reaches the memory as a whole.
const LINE: usize = 64;

/// The memory that a client may name.
#[derive(Debug)]
pub(super) struct Offered {
    /// Where the region begins.
    pub(super) base: u64,
    /// The addresses that the client may name.
    pub(super) bytes: Range<u64>,
    pub(super) limits: Limits,
}

impl Offered {
    /// Refuses a request that is not inside the offer and its limits.
    pub(super) fn check(&self, request: &Request) -> Result<()> {
        let Self { bytes, limits, .. } = self;
        let number = request.number;
        let refused = |why: String| Err(Error::invalid(format!("persist request {number} {why}")));
        let ranges = request.ranges();
        if ranges.is_empty() || ranges.len() > limits.ranges().into() {
            let (count, most) = (ranges.len(), limits.ranges());
            return refused(format!("has {count} ranges: it must have 1 to {most}"));
        }
        let mut sum = 0u64;
        for &(address, len) in ranges {
            if !self.has(address, len) {
                return refused(format!(
                    "names {len} bytes at {address:#x}, but the client was offered the bytes at \
                     {bytes:#x?}"
                ));
            }
            sum = sum.saturating_add(len);
        }
        if sum > limits.bytes().into() {
            let most = limits.bytes();
            return refused(format!("has {sum} bytes: it must have at most {most}"));
        }
        let Some((at, _)) = request.pointer else {
            return Ok(());
        };
        if at % 8 != 0 || !self.has(at, 8) {
            return refused(format!(
                "has its pointer at {at:#x}: the pointer must begin at a multiple of 8, in \
                 {bytes:#x?}"
            ));
        }
        match ranges
            .iter()
            .find(|(begin, len)| at < begin + len && *begin < at + 8)
        {
            None => Ok(()),
            Some((begin, len)) => refused(format!(
                "has its pointer at {at:#x}, inside the {len} bytes at {begin:#x}: the pointer \
                 must lie outside its ranges"
            )),
        }
    }

    fn has(&self, address: u64, len: u64) -> bool {
        let end = address.checked_add(len);
        len > 0 && address >= self.bytes.start && end.is_some_and(|end| end <= self.bytes.end)
    }

    /// The offset of an address that was checked.
    fn offset(&self, address: u64) -> usize {
        (address - self.base) as usize
    }
}

/// The ranges and pointers of several requests that were checked.
#[derive(Debug)]
pub(super) struct Work {
    ranges: [(usize, usize); AT_ONCE * MAX_RANGES],
    range_count: usize,
    /// Offsets and values, in the order of the requests.
    pointers: [(usize, [u8; 8]); AT_ONCE],
    pointer_count: usize,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            ranges: [(0, 0); AT_ONCE * MAX_RANGES],
            range_count: 0,
            pointers: [(0, [0; 8]); AT_ONCE],
            pointer_count: 0,
        }
    }
}

impl Work {
    /// Adds a request: up to [`AT_ONCE`].
    pub(super) fn add(&mut self, request: &Request, offered: &Offered) {
        for &(address, len) in request.ranges() {
            let start = offered.offset(address);
            self.ranges[self.range_count] = (start, start + len as usize);
            self.range_count += 1;
        }
        if let Some((address, value)) = request.pointer {
            self.pointers[self.pointer_count] = (offered.offset(address), value);
            self.pointer_count += 1;
        }
    }

    /// Makes the ranges durable, and then the pointers, in the order of the requests.
    pub(super) fn execute(&mut self, memory: &Mr<PmemMap>) -> Result<()> {
        let ranges = &mut self.ranges[..self.range_count];
        ranges.sort_unstable();
        let mut rest = ranges.iter().copied();
        let mut merged = rest.next();
        while let Some((start, end)) = merged {
            match rest.next() {
                Some((next, last)) if next <= end => merged = Some((start, end.max(last))),
                next => {
                    memory.persist(start..end)?;
                    merged = next;
                }
            }
        }
        let pointers = &self.pointers[..self.pointer_count];
        for (n, &(at, value)) in pointers.iter().enumerate() {
            memory.store_u64(at, u64::from_ne_bytes(value))?;
            // Stores to one line reach the memory in their order; a later line could pass it.
            let next = pointers.get(n + 1).map(|(next, _)| next / LINE);
            if next != Some(at / LINE) {
                memory.persist(at..at + 8)?;
            }
        }
        Ok(())
    }
}
