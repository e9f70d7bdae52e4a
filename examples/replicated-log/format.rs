//! The bytes of a log in the memory of each replica. All numbers are little-endian.
//!
//! | at | |
//! |---|---|
//! | 0 | the header, 48 bytes: `rpmalog` and the version, key, log, replica, ring, sum |
//! | 64 | the tail, 8 bytes: the epoch of the writer, and the end of the log |
//! | 128 | the head, 8 bytes: the position of the first record that is kept |
//! | 192 | a byte without a meaning, for commits that have no other |
//! | 256 | the ring |
//!
//! A *position* counts the bytes of the log from its beginning, so it only grows. Its place in the
//! ring is the rest of a division. Each entry begins at a multiple of 64, and is in one piece: a pad
//! fills the end of the ring if the next record does not fit there.
//!
//! | bytes | an entry |
//! |---|---|
//! | 8 | the sum of the other bytes (FNV-1a, 64 bits) |
//! | 8 | its position |
//! | 4 | the bytes of the record; of a pad 2^32-1 |
//! | 4 | zeros |
//! | … | the record, and zeros up to a multiple of 64 |

use super::{Fault, LogError, Lsn};

pub(crate) const TAIL: u64 = 64;
pub(crate) const HEAD: u64 = 128;
pub(crate) const SPARE: u64 = 192;
pub(crate) const RING: u64 = 256;
/// Everything begins at multiples of it.
pub(crate) const LINE: u64 = 64;
const ENTRY: usize = 24;
const PAD: u32 = u32::MAX;
const MAGIC: [u8; 8] = *b"rpmalog1";

/// Names a log and one of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: u64,
    /// Drawn when the log was created.
    pub(crate) log: u64,
    /// Drawn when the replica got its first copy.
    pub(crate) replica: u64,
    /// The bytes of the ring.
    pub(crate) ring: u64,
}

impl Header {
    pub(crate) const LEN: usize = 48;
    pub(crate) const MAGIC: u64 = u64::from_le_bytes(MAGIC);

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        let fields = [self.key, self.log, self.replica, self.ring];
        for (place, field) in bytes[8..40].chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let sum = sum(&bytes[..40]);
        bytes[40..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None`: there is no log. The first 8 bytes are written last, so they stand for all.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, LogError> {
        if bytes[..8] == [0; 8] {
            return Ok(None);
        }
        let no = |why: String| Err(LogError::Foreign(why));
        if bytes[..7] != MAGIC[..7] {
            return no(format!(
                "the memory has other bytes than a log: {:02x?}",
                &bytes[..8]
            ));
        }
        if bytes[7] != MAGIC[7] {
            return no(format!(
                "the log is one of version {:?}, not 1",
                char::from(bytes[7])
            ));
        }
        if sum(&bytes[..40]) != word(bytes, 40) {
            return no("the header of the log is damaged".to_owned());
        }
        let [key, log, replica, ring] = [8, 16, 24, 32].map(|at| word(bytes, at));
        Ok(Some(Self {
            key,
            log,
            replica,
            ring,
        }))
    }
}

/// The end of a log, with the epoch of its writer: 24 bits and 40 bits of one word. The larger tail
/// is that of the newer log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tail {
    pub(crate) epoch: u64,
    pub(crate) end: Lsn,
}

impl Tail {
    pub(crate) const MOST_EPOCH: u64 = (1 << 24) - 1;
    /// 70 terabytes.
    pub(crate) const MOST_END: Lsn = LINE << 40;

    pub(crate) fn word(self) -> u64 {
        (self.epoch << 40) | (self.end / LINE)
    }

    pub(crate) fn of(word: u64) -> Self {
        let end = (word & ((1 << 40) - 1)) * LINE;
        Self {
            epoch: word >> 40,
            end,
        }
    }
}

/// The bytes of a record with everything around it.
pub(crate) fn size_of(record: usize) -> u64 {
    (ENTRY as u64 + record as u64).next_multiple_of(LINE)
}

/// The ring of a log, or of a part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring(Vec<u8>);

/// An entry: its record, or a pad; and the position of the next one.
pub(crate) type Entry<'a> = (Option<&'a [u8]>, Lsn);

impl Ring {
    pub(crate) fn new(len: u64) -> Self {
        Self(vec![0; len as usize])
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The offset of a position in a replica's memory.
    pub(crate) fn offset(&self, at: Lsn) -> u64 {
        RING + at % self.len()
    }

    /// The bytes from `at` up to `end`, or up to the end of the ring.
    pub(crate) fn piece(&self, at: Lsn, end: Lsn) -> &[u8] {
        let from = at % self.len();
        let to = self.len().min(from + (end - at));
        &self.0[from as usize..to as usize]
    }

    pub(crate) fn put(&mut self, at: Lsn, bytes: &[u8]) {
        let from = (at % self.len()) as usize;
        self.0[from..from + bytes.len()].copy_from_slice(bytes);
    }

    /// How many bytes before the end of the ring are too few for a record of this size.
    pub(crate) fn pad_before(&self, at: Lsn, size: u64) -> u64 {
        match self.len() - at % self.len() {
            left if left < size => left,
            _ => 0,
        }
    }

    /// Writes a record at a position, or a pad.
    pub(crate) fn encode(&mut self, at: Lsn, record: Option<&[u8]>) {
        let len = record.map_or(PAD, |record| record.len() as u32);
        let mut bytes = vec![0; record.map_or(ENTRY, |record| size_of(record.len()) as usize)];
        bytes[8..16].copy_from_slice(&at.to_le_bytes());
        bytes[16..20].copy_from_slice(&len.to_le_bytes());
        if let Some(record) = record {
            bytes[ENTRY..ENTRY + record.len()].copy_from_slice(record);
        }
        let end = ENTRY + record.map_or(0, <[u8]>::len);
        let sum = sum(&bytes[8..end]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        self.put(at, &bytes);
    }

    /// The entry at a position, if it is whole.
    pub(crate) fn entry(&self, at: Lsn) -> Option<Entry<'_>> {
        if at % LINE != 0 {
            return None;
        }
        let bytes = self.piece(at, at + self.len());
        let len = word(bytes, 16);
        let (record, size) = match u32::try_from(len).ok()? {
            PAD => (0, bytes.len() as u64),
            len => (len as usize, size_of(len as usize)),
        };
        let whole = bytes.get(8..ENTRY + record)?;
        let is_whole = word(bytes, 8) == at && word(bytes, 0) == sum(whole);
        let record = (len != u64::from(PAD)).then_some(&whole[ENTRY - 8..]);
        is_whole.then_some((record, at + size))
    }

    /// The end of the entries from `from` on that are whole: `to` if all are.
    pub(crate) fn whole(&self, from: Lsn, to: Lsn) -> Lsn {
        let mut at = from;
        while let Some((_, next)) = (at < to).then(|| self.entry(at)).flatten() {
            at = next;
        }
        at
    }

    /// The end of the entries that both logs have, from `from` up to `to`.
    pub(crate) fn common(&self, other: &Self, from: Lsn, to: Lsn) -> Lsn {
        let mut at = from;
        while at < to {
            match (self.entry(at), other.entry(at)) {
                (Some(one), Some(same)) if one == same => at = one.1,
                _ => break,
            }
        }
        at
    }
}

/// A log as it is in one replica.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// `None`: there is no log.
    pub(crate) header: Option<Header>,
    pub(crate) tail: Tail,
    pub(crate) head: Lsn,
    pub(crate) ring: Ring,
}

impl Found {
    /// Takes the log out of these bytes of a replica's memory, if all its records are whole.
    pub(crate) fn decode(memory: &[u8], ring: u64) -> Result<Self, LogError> {
        let no = |why: String| Err(LogError::Foreign(why));
        let header = Header::decode(memory)?;
        if let Some(has) = header.map(|of| of.ring).filter(|has| *has != ring) {
            return no(format!("its ring has {has} bytes, not {ring}"));
        }
        let (mut tail, mut head) = (Tail::default(), 0);
        if header.is_some() {
            tail = Tail::of(word(memory, TAIL as usize));
            head = word(memory, HEAD as usize);
        }
        // A replica that was far behind begins again at its head.
        tail.end = tail.end.max(head);
        if tail.end - head > ring || head % LINE != 0 || tail.end > Tail::MOST_END {
            return no(format!("head {head} and {tail:?} make no log"));
        }
        let ring = Ring(memory[RING as usize..][..ring as usize].to_vec());
        match ring.whole(head, tail.end) {
            whole if whole < tail.end => no(format!("the record at {whole} is damaged")),
            _ => Ok(Self {
                header,
                tail,
                head,
                ring,
            }),
        }
    }

    /// The newest of some logs: each acknowledged record is in it, if enough were read.
    pub(crate) fn newest<'a>(logs: &[&'a Self], fault: Fault) -> Option<&'a Self> {
        let newest = logs.iter().max_by_key(|found| match fault {
            Fault::IgnoresEpochs => Tail {
                epoch: 0,
                end: found.tail.end,
            },
            _ => found.tail,
        });
        newest.copied()
    }

    /// The records, with their positions.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Lsn, &[u8])> {
        let mut at = self.head;
        let entries = std::iter::from_fn(move || {
            let (record, next) = (at < self.tail.end)
                .then(|| self.ring.entry(at))
                .flatten()?;
            Some((std::mem::replace(&mut at, next), record))
        });
        entries.filter_map(|(at, record)| Some((at, record?)))
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}
