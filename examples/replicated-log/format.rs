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
//! ring is the rest of a division. Each entry begins at a multiple of 64, and is in one piece: a
//! pad fills the end of the ring if the next record does not fit there.
//!
//! | bytes | an entry |
//! |---|---|
//! | 8 | the sum of the other bytes (FNV-1a, 64 bits) |
//! | 8 | its position |
//! | 8 | the bytes of the record; of a pad 2^32-1 |
//! | … | the record, and zeros up to a multiple of 64 |

use super::{Fault, LogError, Lsn};

pub(crate) const TAIL: u64 = 64;
pub(crate) const HEAD: u64 = 128;
pub(crate) const SPARE: u64 = 192;
pub(crate) const RING: u64 = 256;
/// Everything begins at multiples of it.
pub(crate) const LINE: u64 = 64;
const ENTRY: usize = 24;
const PAD: usize = u32::MAX as usize;
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
        let words = [Self::MAGIC, self.key, self.log, self.replica, self.ring, 0];
        let mut bytes = [0; Self::LEN];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = sum(&bytes[..40]);
        bytes[40..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None`: there is no log. The first 8 bytes are written last, so they stand for all.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, LogError> {
        let [first, key, log, replica, ring, sums] =
            [0, 8, 16, 24, 32, 40].map(|at| word(bytes, at));
        let header = Self {
            key,
            log,
            replica,
            ring,
        };
        match (&bytes[..7], bytes[7]) {
            _ if first == 0 => Ok(None),
            (name, _) if name != &MAGIC[..7] => foreign(format!(
                "the memory has other bytes than a log: {:02x?}",
                &bytes[..8]
            )),
            (_, version) if version != MAGIC[7] => foreign(format!(
                "the log is one of version {:?}, not 1",
                char::from(version)
            )),
            _ if sums != sum(&bytes[..40]) => foreign("the header of the log is damaged"),
            _ => Ok(Some(header)),
        }
    }
}

fn foreign<T>(why: impl Into<String>) -> Result<T, LogError> {
    Err(LogError::Foreign(why.into()))
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
        let (epoch, end) = (word >> 40, (word & ((1 << 40) - 1)) * LINE);
        Self { epoch, end }
    }
}

/// The bytes of a record with everything around it.
pub(crate) fn size_of(record: usize) -> u64 {
    (ENTRY as u64 + record as u64).next_multiple_of(LINE)
}

/// The ring of a log, or of a part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring(Vec<u8>);

/// The position of an entry, its record (`None`: a pad), and the position of the next one.
pub(crate) type Entry<'a> = (Lsn, Option<&'a [u8]>, Lsn);

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

    /// How many bytes before the end of the ring are too few for a record of this size.
    pub(crate) fn pad_before(&self, at: Lsn, size: u64) -> u64 {
        let left = self.len() - at % self.len();
        if left < size { left } else { 0 }
    }

    /// Writes a record at a position, or a pad.
    pub(crate) fn encode(&mut self, at: Lsn, record: Option<&[u8]>) {
        let len = record.map_or(PAD, <[u8]>::len) as u64;
        let record = record.unwrap_or_default();
        let head = [[0; 8], at.to_le_bytes(), len.to_le_bytes()].concat();
        let mut bytes = [&head, record].concat();
        let sum = sum(&bytes[8..]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes.resize(size_of(record.len()) as usize, 0);
        let from = (at % self.len()) as usize;
        self.0[from..from + bytes.len()].copy_from_slice(&bytes);
    }

    /// The entry at a position, if it is whole: its record, or `None` for a pad, and the position
    /// of the next one.
    pub(crate) fn entry(&self, at: Lsn) -> Option<(Option<&[u8]>, Lsn)> {
        let bytes = (at % LINE == 0).then(|| self.piece(at, at + self.len()))?;
        let (record, size) = match u32::try_from(word(bytes, 16)).ok()? as usize {
            PAD => (None, bytes.len() as u64),
            len => (Some(bytes.get(ENTRY..ENTRY + len)?), size_of(len)),
        };
        let whole = 8..ENTRY + record.map_or(0, <[u8]>::len);
        let is_whole = word(bytes, 8) == at && word(bytes, 0) == sum(&bytes[whole]);
        is_whole.then_some((record, at + size))
    }

    /// The whole entries from `from` up to `to`, each with its position, its record, and the
    /// position of the next one.
    pub(crate) fn entries(&self, from: Lsn, to: Lsn) -> impl Iterator<Item = Entry<'_>> {
        let mut at = from;
        std::iter::from_fn(move || {
            let (record, next) = (at < to).then(|| self.entry(at)).flatten()?;
            Some((std::mem::replace(&mut at, next), record, next))
        })
    }

    /// The end of the entries that both logs have, from `from` up to `to`.
    pub(crate) fn common(&self, other: &Self, from: Lsn, to: Lsn) -> Lsn {
        let both = self.entries(from, to).zip(other.entries(from, to));
        let same = both.take_while(|(one, other)| one == other);
        end_of(from, same.map(|(one, _)| one))
    }
}

/// The end of some entries.
pub(crate) fn end_of<'a>(from: Lsn, entries: impl Iterator<Item = Entry<'a>>) -> Lsn {
    entries.last().map_or(from, |(_, _, next)| next)
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
        let header = Header::decode(memory)?;
        if let Some(has) = header.map(|of| of.ring).filter(|has| *has != ring) {
            return foreign(format!("its ring has {has} bytes, not {ring}"));
        }
        let word = |at: u64| header.map_or(0, |_| word(memory, at as usize));
        let (mut tail, head) = (Tail::of(word(TAIL)), word(HEAD));
        // A replica that was far behind begins again at its head.
        tail.end = tail.end.max(head);
        if tail.end - head > ring || head % LINE != 0 || tail.end > Tail::MOST_END {
            return foreign(format!("head {head} and {tail:?} make no log"));
        }
        let ring = Ring(memory[RING as usize..][..ring as usize].to_vec());
        match end_of(head, ring.entries(head, tail.end)) {
            whole if whole < tail.end => foreign(format!("the record at {whole} is damaged")),
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
        let epoch = |tail: Tail| fault.either(Fault::IgnoresEpochs, 0, tail.epoch);
        let age = |found: &&Self| (epoch(found.tail), found.tail.end);
        logs.iter().copied().max_by_key(age)
    }

    /// The records, with their positions.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Lsn, &[u8])> {
        let entries = self.ring.entries(self.head, self.tail.end);
        entries.filter_map(|(at, record, _)| Some((at, record?)))
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}
