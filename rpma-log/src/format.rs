//! The bytes of a log in the memory of each server. docs/log-format.md is the page for readers in
//! other languages.

use crate::LogError;
use crate::list::{LEN, LISTS};
pub use crate::list::{List, Member};
use crate::ring::{Ring, size_of};

/// The offset of the tail, a word of 8 bytes: [`Tail`].
pub const TAIL: u64 = 64;
/// The offset of the head, a word of 8 bytes: the position of the first record that is kept.
pub const HEAD: u64 = 128;
/// The offset of a byte without a meaning, which commits write that have no other.
pub const SPARE: u64 = 192;
/// The offset of the ring, after the two places for the [`List`].
pub const RING: u64 = LISTS[1] + LEN as u64;
/// Records and positions are multiples of it, in bytes.
pub const LINE: u64 = 64;
/// The version of the format.
pub const VERSION: u8 = 3;

/// The bytes of the entry of a record: the record with everything around it.
#[must_use]
pub fn entry_len(record: usize) -> u64 {
    size_of(record)
}

const NAME: [u8; 7] = *b"rpmalog";

/// Names a log, and one of its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The key of the memory.
    pub key: u64,
    /// Drawn when the log was created.
    pub log: u64,
    /// Drawn when the server got its first copy.
    pub server: u64,
    /// The bytes of the ring.
    pub ring: u64,
    /// The number of servers of the log.
    pub servers: u32,
    /// The number of copies with which a record is acknowledged.
    pub copies: u32,
}

impl Header {
    /// Its bytes.
    pub const LEN: usize = 56;
    /// Its first word. It is written last: with it there is a log.
    pub const FIRST: u64 = u64::from_le_bytes([
        NAME[0],
        NAME[1],
        NAME[2],
        NAME[3],
        NAME[4],
        NAME[5],
        NAME[6],
        b'0' + VERSION,
    ]);

    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let copies = u64::from(self.servers) | u64::from(self.copies) << 32;
        let words = [
            Self::FIRST,
            self.key,
            self.log,
            self.server,
            self.ring,
            copies,
        ];
        let mut bytes = [0; Self::LEN];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[..48]);
        bytes[48..52].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the header at the begin of a server's memory. `None`: there is no log.
    ///
    /// # Errors
    ///
    /// [`LogError::Foreign`] for the bytes of something else, for another version, and for a damaged
    /// header.
    ///
    /// # Panics
    ///
    /// For fewer bytes than a header has.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, LogError> {
        let [first, key, log, server, ring, copies, sum] =
            [0, 8, 16, 24, 32, 40, 48].map(|at| word(bytes, at));
        match (&bytes[..7], bytes[7]) {
            _ if first == 0 => return Ok(None),
            (name, _) if name != NAME => {
                let begin = &bytes[..8];
                return foreign(format!(
                    "the memory has other bytes than a log: {begin:02x?}"
                ));
            }
            (_, version) if version != b'0' + VERSION => {
                let version = char::from(version);
                return foreign(format!(
                    "the log is one of version {version:?}, not {VERSION}"
                ));
            }
            _ if sum != u64::from(crc32c::crc32c(&bytes[..48])) => {
                return foreign("the header of the log is damaged");
            }
            _ => {}
        }
        Ok(Some(Self {
            key,
            log,
            server,
            ring,
            servers: copies as u32,
            copies: (copies >> 32) as u32,
        }))
    }
}

/// The end of a log, with the epoch of its writer: 24 bits and 40 bits of one word, so that they
/// change together. The larger tail is that of the newer log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tail {
    /// The epoch of the writer.
    pub epoch: u64,
    /// The position after the last record.
    pub end: u64,
}

impl Tail {
    /// The highest epoch.
    pub const MOST_EPOCH: u64 = (1 << 24) - 1;
    /// No record ends at this position or after it: 70 terabytes.
    pub const MOST_END: u64 = LINE << 40;

    /// The word in a server's memory.
    #[must_use]
    pub fn word(self) -> u64 {
        (self.epoch << 40) | (self.end / LINE)
    }

    /// The tail of a word.
    #[must_use]
    pub fn of(word: u64) -> Self {
        let (epoch, end) = (word >> 40, (word & ((1 << 40) - 1)) * LINE);
        Self { epoch, end }
    }
}

/// A log as it is in the memory of one server.
#[derive(Clone, Debug)]
pub struct Stored {
    /// `None`: there is no log.
    pub header: Option<Header>,
    /// The servers of the log. `None`: there is no log.
    pub list: Option<List>,
    /// The place of the list.
    pub(crate) list_at: usize,
    /// The end of the log.
    pub tail: Tail,
    /// The position of the first record that is kept.
    pub head: u64,
    pub(crate) ring: Ring,
}

impl Stored {
    /// Reads the memory of a server, whose ring has `ring` bytes.
    ///
    /// # Errors
    ///
    /// [`LogError::Foreign`] as [`Header::decode`], and if a record or the list is damaged, if the head
    /// and the tail make no log, or if the ring has another length.
    ///
    /// # Panics
    ///
    /// For fewer bytes than [`RING`] and the ring.
    pub fn decode(memory: &[u8], ring: u64) -> Result<Self, LogError> {
        let header = Header::decode(memory)?;
        if let Some(has) = header.map(|of| of.ring).filter(|has| *has != ring) {
            return foreign(format!(
                "its ring has {has} bytes, not {ring}: set that ring"
            ));
        }
        let (list, list_at) = header.and_then(|_| List::find(memory)).unzip();
        if list.is_some() != header.is_some() {
            return foreign("the list of the log's servers is damaged");
        }
        let word = |at: u64| header.map_or(0, |_| word(memory, at as usize));
        let (mut tail, head) = (Tail::of(word(TAIL)), word(HEAD));
        // A server that was far behind begins again at its head.
        tail.end = tail.end.max(head);
        if tail.end - head > ring || head % LINE != 0 || tail.end > Tail::MOST_END {
            return foreign(format!("head {head} and {tail:?} make no log"));
        }
        let ring = Ring::of(&memory[RING as usize..][..ring as usize]);
        match ring.end_of_whole(head, tail.end) {
            whole if whole < tail.end => foreign(format!("the record at {whole} is damaged")),
            _ => Ok(Self {
                header,
                list,
                list_at: list_at.unwrap_or_default(),
                tail,
                head,
                ring,
            }),
        }
    }

    /// The newest of some logs: the highest epoch, and among logs of one epoch the longest. Each
    /// acknowledged record is in it, if they are the logs of N - K + 1 servers of the newest
    /// [`List`] among them, and of as many of those before its change.
    #[must_use]
    pub fn newest<'a>(logs: &[&'a Self]) -> Option<&'a Self> {
        logs.iter().copied().max_by_key(|log| log.tail)
    }

    /// The records, with their positions.
    pub fn records(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let entries = self.ring.entries(self.head, self.tail.end);
        entries.filter_map(|entry| Some((entry.at, entry.record?)))
    }
}

pub(crate) fn foreign<T>(why: impl Into<String>) -> Result<T, LogError> {
    Err(LogError::Foreign(why.into()))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
