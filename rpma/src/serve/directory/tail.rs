//! The line after the slots: the server that has the memory, and the lowest epoch of new keys.

use super::line::{Bytes, array, checksum};
use crate::pmem::MARK_LEN;

/// The two records of the lowest epoch, after the mark of [`PmemMap::claim`].
///
/// [`PmemMap::claim`]: crate::pmem::PmemMap::claim
const LOWEST_AT: [usize; 2] = [MARK_LEN, MARK_LEN + LOWEST_LEN];
pub(super) const LOWEST_LEN: usize = 16;

/// The lowest epoch of keys that the directory does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lowest {
    /// `is_whole`: both records have it. 0 if no slot was ever given up.
    Epoch { epoch: u64, is_whole: bool },
    /// The memory has lost it.
    Lost,
}

impl Lowest {
    /// The first record is durable before the second one is written, and both are durable before a
    /// slot is given up. So a first record that is not valid beside zeros belongs to a call that
    /// has not returned, and its slot is still broken.
    pub(super) fn decode(tail: &Bytes) -> Self {
        let records = LOWEST_AT.map(|at| record(tail, at));
        let epoch = |epoch, is_whole| Self::Epoch { epoch, is_whole };
        match records {
            [Record::Zero, Record::Zero] => epoch(0, true),
            [Record::Invalid, Record::Zero] => epoch(0, false),
            [Record::Valid(one), Record::Valid(other)] => epoch(one.max(other), one == other),
            [Record::Valid(one), _] | [_, Record::Valid(one)] => epoch(one, false),
            [_, Record::Invalid] => Self::Lost,
        }
    }
}

enum Record {
    Zero,
    Invalid,
    Valid(u64),
}

fn record(tail: &Bytes, at: usize) -> Record {
    let bytes: [u8; LOWEST_LEN] = array(tail, at);
    let epoch = u64::from_le_bytes(array(tail, at));
    match bytes {
        _ if bytes == [0; LOWEST_LEN] => Record::Zero,
        _ if bytes == encode(epoch) => Record::Valid(epoch),
        _ => Record::Invalid,
    }
}

fn encode(epoch: u64) -> [u8; LOWEST_LEN] {
    let epoch = epoch.to_le_bytes();
    let sum = checksum(&[b"lowest", &epoch]).to_le_bytes();
    std::array::from_fn(|at| match at {
        ..8 => epoch[at],
        _ => sum[at - 8],
    })
}

/// The two records of this epoch, in the order in which they are written, with their places in the
/// tail.
pub(super) fn lowest_records(epoch: u64) -> [(usize, [u8; LOWEST_LEN]); 2] {
    LOWEST_AT.map(|at| (at, encode(epoch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(records: [[u8; LOWEST_LEN]; 2]) -> Bytes {
        let mut tail = [0; 64];
        for (at, record) in LOWEST_AT.into_iter().zip(records) {
            tail[at..at + LOWEST_LEN].copy_from_slice(&record);
        }
        tail
    }

    /// Promise: the lowest epoch never decreases, whichever record was being written.
    #[test]
    fn the_higher_record_counts() {
        let (zero, torn) = ([0; LOWEST_LEN], [7; LOWEST_LEN]);
        let (low, high) = (encode(3), encode(9));
        let epoch = |epoch, is_whole| Lowest::Epoch { epoch, is_whole };
        for (records, lowest) in [
            ([zero, zero], epoch(0, true)),
            ([torn, zero], epoch(0, false)),
            ([low, zero], epoch(3, false)),
            ([low, torn], epoch(3, false)),
            ([low, low], epoch(3, true)),
            ([torn, low], epoch(3, false)),
            ([high, low], epoch(9, false)),
            ([high, torn], epoch(9, false)),
            ([high, high], epoch(9, true)),
            ([zero, torn], Lowest::Lost),
            ([torn, torn], Lowest::Lost),
        ] {
            assert_eq!(Lowest::decode(&tail(records)), lowest, "{records:?}");
        }
        assert_eq!(
            encode(3)[..8],
            3_u64.to_le_bytes(),
            "directories outlive the program"
        );
        assert_eq!(
            encode(3)[8..],
            checksum(&[b"lowest", &encode(3)[..8]]).to_le_bytes()
        );
    }
}
