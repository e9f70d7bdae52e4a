//! [`Ring`]: the entries of a log, each at the place of its position.
//!
//! A position counts the bytes of the log from its begin. Its place is the rest of a division by
//! the length of the ring. A pad fills the end of the ring if the next record does not fit there.

use std::iter;

use crate::format::{LINE, RING};

/// The bytes of an entry before its record: its checksum, the length of the record, its position,
/// and the epoch of its writer.
const ENTRY: usize = 24;
/// The length of a pad, which no record has.
const PAD: u32 = u32::MAX;

pub(crate) fn size_of(record: usize) -> u64 {
    (ENTRY as u64 + record as u64).next_multiple_of(LINE)
}

/// The bytes of the longest record of entries that have at most `size` bytes.
pub(crate) fn record_in(size: u64) -> usize {
    (size - size % LINE) as usize - ENTRY
}

/// The position of a record after `end`, and the position after it. A ring of `ring` bytes has a
/// pad before it if it does not fit into the rest.
pub(crate) fn place(ring: u64, end: u64, record: usize) -> (u64, u64) {
    let (size, left) = (size_of(record), ring - end % ring);
    let at = if left < size { end + left } else { end };
    (at, at + size)
}

/// The ring of a log, or of a part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring(Vec<u8>);

/// An entry that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) at: u64,
    epoch: u64,
    /// `None`: it is a pad.
    pub(crate) record: Option<&'a [u8]>,
    /// The position after it.
    pub(crate) next: u64,
}

impl Ring {
    pub(crate) fn new(len: u64) -> Self {
        Self(vec![0; len as usize])
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The offset of a position in a server's memory.
    pub(crate) fn offset(&self, at: u64) -> u64 {
        RING + at % self.len()
    }

    /// The bytes from `at` up to `end`, or up to the end of the ring.
    pub(crate) fn piece(&self, at: u64, end: u64) -> &[u8] {
        let from = at % self.len();
        let to = self.len().min(from + (end - at));
        &self.0[from as usize..to as usize]
    }

    pub(crate) fn encode(&mut self, at: u64, epoch: u64, record: Option<&[u8]>) {
        let len = record.map_or(PAD, |record| record.len() as u32);
        let record = record.unwrap_or_default();
        let from = (at % self.len()) as usize;
        let entry = &mut self.0[from..from + size_of(record.len()) as usize];
        let (head, rest) = entry.split_at_mut(ENTRY);
        head[4..8].copy_from_slice(&len.to_le_bytes());
        head[8..16].copy_from_slice(&at.to_le_bytes());
        head[16..].copy_from_slice(&epoch.to_le_bytes());
        let (bytes, zeros) = rest.split_at_mut(record.len());
        bytes.copy_from_slice(record);
        zeros.fill(0);
        let sum = crc32c::crc32c(&entry[4..ENTRY + record.len()]);
        entry[..4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Writes the record of the lap before at its place again, if it fits there: a fault. Returns the
    /// position after it.
    pub(crate) fn encode_older(&mut self, at: u64, epoch: u64) -> u64 {
        let older = at
            .checked_sub(self.len())
            .and_then(|older| self.entry(older));
        let older = older.and_then(|entry| Some((entry.record?.to_vec(), entry.next - entry.at)));
        let left = self.len() - at % self.len();
        match older {
            Some((record, size)) if size <= left => {
                self.encode(at, epoch, Some(&record));
                at + size
            }
            _ => at,
        }
    }

    /// The entry at a position, if it is whole.
    pub(crate) fn entry(&self, at: u64) -> Option<Entry<'_>> {
        let bytes = (at % LINE == 0).then(|| self.piece(at, at + self.len()))?;
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (record, size) = match number(4) {
            PAD => (None, bytes.len() as u64),
            len => {
                let record = bytes.get(ENTRY..ENTRY + len as usize)?;
                (Some(record), size_of(record.len()))
            }
        };
        let whole = 4..ENTRY + record.map_or(0, <[u8]>::len);
        let is_whole = word(8) == at && number(0) == crc32c::crc32c(&bytes[whole]);
        is_whole.then_some(Entry {
            at,
            epoch: word(16),
            record,
            next: at + size,
        })
    }

    pub(crate) fn entries(&self, from: u64, to: u64) -> impl Iterator<Item = Entry<'_>> {
        let mut at = from;
        iter::from_fn(move || {
            let entry = (at < to).then(|| self.entry(at)).flatten()?;
            at = entry.next;
            Some(entry)
        })
    }

    /// The end of the whole entries from `from` up to `to`.
    pub(crate) fn end_of_whole(&self, from: u64, to: u64) -> u64 {
        self.entries(from, to)
            .last()
            .map_or(from, |entry| entry.next)
    }

    /// The end of the entries that both logs have, from `from` up to `to`.
    pub(crate) fn common(&self, other: &Self, from: u64, to: u64) -> u64 {
        let both = self.entries(from, to).zip(other.entries(from, to));
        let same = both.take_while(|(one, other)| one == other);
        same.last().map_or(from, |(entry, _)| entry.next)
    }
}
