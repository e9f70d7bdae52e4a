//! The two lines of a slot.

use crate::offer::Identity;

/// A cache line: it reaches the memory by itself.
pub(super) const LINE: usize = 64;
/// The two lines of a slot.
pub(super) const SLOT: usize = 2 * LINE;
/// The remedy for a directory that cannot be trusted.
pub(super) const REMEDY: &str = "restore it, or write zeros over its bytes, let the server's program make it again, call \
     Directory::set_lowest_epoch with an epoch above all that its keys have had, and let each writer take over with such an \
     epoch";

pub(super) type Bytes = [u8; LINE];

/// This word of a slot's first line shows that an operator has given the slot up. It changes by one
/// store, so that no other state of the slot comes between.
pub(super) const GIVEN_UP: [u8; 8] = *b"given up";
pub(super) const GIVEN_UP_AT: usize = 40;

/// A line of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Zero,
    /// The power was cut while it was written, or the memory has lost it.
    Invalid,
    Valid(Entry),
}

/// An identity, and the number of the update that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) identity: Identity,
}

impl Entry {
    pub(super) fn encode(&self, slot: u32) -> Bytes {
        let Identity {
            key,
            epoch,
            instance,
        } = self.identity;
        let mut bytes = [0; LINE];
        let fields = [self.number, key, epoch, instance];
        for (at, field) in (0..).step_by(8).zip(fields) {
            bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        let sum = checksum(&[&bytes[..32], &slot.to_le_bytes()]);
        bytes[32..40].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

impl Line {
    fn decode(bytes: &Bytes, slot: u32) -> Self {
        if *bytes == [0; LINE] {
            return Self::Zero;
        }
        let word = |at| u64::from_le_bytes(array(bytes, at));
        let entry = Entry {
            number: word(0),
            identity: Identity {
                key: word(8),
                epoch: word(16),
                instance: word(24),
            },
        };
        let is_valid = *bytes == entry.encode(slot) && entry.identity.key != 0;
        if is_valid {
            Self::Valid(entry)
        } else {
            Self::Invalid
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    /// An operator has given it up. Its lines are to be zeroed.
    GivenUp,
    Kept {
        entry: Entry,
        /// The line that has it: 0 or 1.
        line: usize,
        /// Whether the other line is valid as well.
        is_whole: bool,
    },
    /// The key that it kept is lost, for this reason.
    Broken(&'static str),
}

impl Slot {
    /// The first line of a new key is durable before its second line is written. So a first line
    /// that is not valid beside zeros belongs to a key that was never kept. An update writes one
    /// line, and leaves the other one valid.
    pub(super) fn decode(lines: &[Bytes; 2], slot: u32) -> Self {
        use Line::{Invalid, Valid, Zero};
        let kept = |entry, line, is_whole| Self::Kept {
            entry,
            line,
            is_whole,
        };
        if lines[0][GIVEN_UP_AT..GIVEN_UP_AT + 8] == GIVEN_UP {
            return Self::GivenUp;
        }
        match lines.each_ref().map(|bytes| Line::decode(bytes, slot)) {
            [Zero | Invalid, Zero] => Self::Free,
            [Zero | Invalid, Invalid] => Self::Broken("both its lines are invalid"),
            [Valid(entry), Zero | Invalid] => kept(entry, 0, false),
            [Zero | Invalid, Valid(entry)] => kept(entry, 1, false),
            [Valid(one), Valid(other)] => {
                let (older, newer, line) = if one.number < other.number {
                    (one, other, 1)
                } else {
                    (other, one, 0)
                };
                let (from, to) = (older.identity, newer.identity);
                if older.number == newer.number || from.key != to.key || from.epoch > to.epoch {
                    return Self::Broken("its lines contradict each other");
                }
                kept(newer, line, true)
            }
        }
    }
}

/// FNV-1a with 64 bits.
pub(super) fn checksum(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The bytes of a field, whose place is inside.
pub(super) fn array<const N: usize>(bytes: &Bytes, at: usize) -> [u8; N] {
    std::array::from_fn(|n| bytes[at + n])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(number: u64, key: u64, epoch: u64) -> Entry {
        Entry {
            number,
            identity: Identity {
                key,
                epoch,
                instance: 9,
            },
        }
    }

    /// Directories outlive the program that made them.
    #[test]
    fn the_bytes_are_these() {
        assert_eq!(checksum(&[b"a"]), 0xaf63_dc4c_8601_ec8c, "FNV-1a of 'a'");
        let bytes = entry(1, 2, 3).encode(4);
        assert_eq!(bytes[..8], 1_u64.to_le_bytes());
        assert_eq!(bytes[8..16], 2_u64.to_le_bytes());
        assert_eq!(bytes[16..24], 3_u64.to_le_bytes());
        assert_eq!(bytes[24..32], 9_u64.to_le_bytes());
        assert_eq!(bytes[40..], [0; 24]);
    }

    /// Promise: the newer valid line counts; a slot without a valid line is free only if its key
    /// was never kept; everything else is an error.
    #[test]
    fn the_newer_valid_line_counts() {
        let zero = [0; LINE];
        let mut torn = entry(1, 5, 1).encode(0);
        torn[24..].fill(0);
        let line = |number, key, epoch| entry(number, key, epoch).encode(0);
        let kept = |number, epoch, line, is_whole| Slot::Kept {
            entry: entry(number, 5, epoch),
            line,
            is_whole,
        };
        let (invalid, contradict) = (
            Slot::Broken("both its lines are invalid"),
            Slot::Broken("its lines contradict each other"),
        );
        let mut given_up = line(3, 5, 1);
        given_up[GIVEN_UP_AT..GIVEN_UP_AT + 8].copy_from_slice(&GIVEN_UP);
        for (lines, slot) in [
            ([zero, zero], Slot::Free),
            ([torn, zero], Slot::Free),
            ([zero, torn], invalid),
            ([torn, torn], invalid),
            ([line(1, 5, 1), zero], kept(1, 1, 0, false)),
            ([line(1, 5, 1), torn], kept(1, 1, 0, false)),
            ([torn, line(2, 5, 1)], kept(2, 1, 1, false)),
            ([line(1, 5, 1), line(2, 5, 1)], kept(2, 1, 1, true)),
            ([line(3, 5, 4), line(2, 5, 1)], kept(3, 4, 0, true)),
            ([line(3, 5, 1), line(2, 5, 4)], contradict),
            ([line(3, 5, 1), line(2, 6, 1)], contradict),
            ([line(3, 5, 1), line(3, 5, 1)], contradict),
            ([entry(1, 5, 1).encode(1), zero], Slot::Free),
            ([line(1, 0, 1), zero], Slot::Free),
            ([given_up, line(2, 6, 1)], Slot::GivenUp),
        ] {
            assert_eq!(Slot::decode(&lines, 0), slot);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(lines: [[u8; 32]; 4], slot: u32) {
            let line = |n: usize| std::array::from_fn(|at| lines[2 * n + at / 32][at % 32]);
            let _ = Slot::decode(&[line(0), line(1)], slot);
        }

        #[test]
        fn a_torn_line_is_not_valid(old: [u64; 3], new: [u64; 3], words in 1..255_u8) {
            let line = |number, [key, epoch, instance]: [u64; 3]| Entry {
                number,
                identity: Identity { key: key.max(1), epoch, instance },
            }.encode(1);
            let (old, new) = (line(1, old), line(3, new));
            let torn = std::array::from_fn(|at| match words >> (at / 8) & 1 {
                0 => old[at],
                _ => new[at],
            });
            let decoded = Line::decode(&torn, 1);
            prop_assert!(decoded == Line::Invalid || torn == old || torn == new);
        }
    }
}
