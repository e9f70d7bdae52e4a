//! [`RecordRing`]: the source memory of commits, and the commits that still use it.
//!
//! Places are counted in bytes from the beginning of time, and a record never wraps. Records are
//! freed in the order of their commits.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::mr::{Mr, MrSlice, MrUsage};
use crate::peer::Peer;
use crate::verbs::{AlignedBuf, Place};

/// The ring of source memory. It is the queue of commits as well: a replica without room gets
/// them later from here.
#[derive(Debug)]
pub(super) struct RecordRing {
    mr: Mr<AlignedBuf>,
    size: u64,
    /// Commits with bytes in use, in their order.
    entries: VecDeque<CommitEntry>,
    /// The most of them.
    records: usize,
    last: u64,
    /// The place after the last record.
    head: u64,
}

/// A commit with bytes in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitEntry {
    pub(super) bytes: RecordBytes,
    /// The offset in the regions of the replicas.
    pub(super) at: u64,
    pub(super) pointer: Option<(u64, [u8; 8])>,
    /// The line of the commit, which may be posted later.
    pub(super) place: Place,
}

/// The place of a record in the ring. It is not empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordBytes {
    start: u64,
    pub(super) len: u64,
}

impl RecordRing {
    pub(super) fn new(peer: &Peer, bytes: usize, records: usize) -> Result<Self> {
        if bytes == 0 || records == 0 {
            return Err(Error::invalid(format!(
                "a ring of {bytes} bytes for {records} records: both must be at least 1"
            )));
        }
        let mr = Mr::reg(peer, AlignedBuf::zeroed(bytes)?, MrUsage::WRITE_SRC)?;
        Ok(Self {
            mr,
            size: bytes as u64,
            entries: VecDeque::with_capacity(records),
            records,
            last: 0,
            head: 0,
        })
    }

    /// The number of the last commit; 0 before the first one.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The number of the oldest commit with bytes in use, or of the next commit.
    pub(super) fn oldest(&self) -> u64 {
        self.last + 1 - self.entries.len() as u64
    }

    pub(super) fn entry(&self, number: u64) -> Option<&CommitEntry> {
        let at = number.checked_sub(self.oldest())?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Refuses a length for which there never is a place.
    pub(super) fn check_len(&self, len: usize) -> Result<()> {
        match len as u64 {
            0 => Err(Error::invalid(
                "a record of 0 bytes: it must have at least 1",
            )),
            len if len > self.size => Err(Error::invalid(format!(
                "a record of {len} bytes does not fit into the ring of source memory, which has {}",
                self.size
            ))),
            _ => Ok(()),
        }
    }

    /// The first byte, for a check without a post.
    pub(super) fn first_byte(&self) -> RecordBytes {
        RecordBytes { start: 0, len: 1 }
    }

    /// A place for a record, if there is one now. It is taken by [`push`](Self::push).
    pub(super) fn place(&self, len: usize) -> Option<RecordBytes> {
        let len = len as u64;
        let Some(oldest) = self.entries.front() else {
            // A place at the beginning, so that the longest record has one.
            let start = self.head.next_multiple_of(self.size);
            return (len <= self.size).then_some(RecordBytes { start, len });
        };
        if self.entries.len() == self.records {
            return None;
        }
        let start = if self.head % self.size + len > self.size {
            self.head.next_multiple_of(self.size)
        } else {
            self.head
        };
        let is_free = start + len - oldest.bytes.start <= self.size;
        is_free.then_some(RecordBytes { start, len })
    }

    /// Takes the place of a record for the next commit, and returns its number.
    pub(super) fn push(&mut self, entry: CommitEntry) -> u64 {
        self.head = entry.bytes.start + entry.bytes.len;
        self.entries.push_back(entry);
        self.last += 1;
        self.last
    }

    pub(super) fn free_up_to(&mut self, number: u64) {
        while !self.entries.is_empty() && self.oldest() <= number {
            self.entries.pop_front();
        }
    }

    pub(super) fn write(&mut self, bytes: RecordBytes, at: usize, data: &[u8]) -> Result<()> {
        let end = (at as u64).checked_add(data.len() as u64);
        if end.is_none_or(|end| end > bytes.len) {
            return Err(Error::invalid(format!(
                "{} bytes at offset {at} reach past the end of the record, which has {} bytes",
                data.len(),
                bytes.len
            )));
        }
        self.mr.write_at(self.offset(bytes) + at, data)
    }

    pub(super) fn slice(&self, bytes: RecordBytes) -> Result<MrSlice<'_>> {
        let start = self.offset(bytes);
        // A record is not longer than the ring.
        self.mr.slice(start..start + bytes.len as usize)
    }

    fn offset(&self, bytes: RecordBytes) -> usize {
        // The ring is memory of this host.
        (bytes.start % self.size) as usize
    }
}
