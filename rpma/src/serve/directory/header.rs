//! The header of a directory: its version, its slots, and the places of the keys' memory.

use super::line::{Bytes, LINE, REMEDY, array, checksum};
use crate::error::{Error, Result};

/// The header's first 8 bytes, which are written last.
pub(super) const MAGIC: [u8; 8] = *b"rpmadir\0";
/// These bytes are there while a directory is made.
pub(super) const BEGUN: [u8; 8] = *b"rpmanew\0";
/// These bytes are there while keys are copied, so that no server makes an empty directory then.
pub(super) const COPYING: [u8; 8] = *b"rpmacpy\0";
const VERSION: u32 = 2;
const VERSION_AT: usize = 8;
const PLACES_AT: usize = 24;
/// The identity, which is in no sum: it changes by one store.
pub(super) const IDENTITY_AT: usize = 48;
const SUM_AT: usize = 56;

/// The places of the keys' memory in the memory of a layout. All of it is 0 in a directory that
/// was made without a layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct Places {
    /// The offset of the first part from the beginning of the directory, in bytes.
    pub(in crate::serve) first: u64,
    /// The length of each part in bytes.
    pub(in crate::serve) len: u64,
    pub(in crate::serve) count: u64,
}

impl Places {
    /// Refuses the places of a directory that are not these. Each difference has both numbers.
    pub(super) fn check(&self, found: &Self) -> Result<()> {
        if self == found {
            return Ok(());
        }
        let compared = [
            ("begins its parts at the byte", found.first, self.first),
            ("has a length of the parts in bytes of", found.len, self.len),
            ("has a number of parts of", found.count, self.count),
        ];
        let differences: Vec<_> = compared
            .iter()
            .filter(|(_, has, asked)| has != asked)
            .map(|(part, has, asked)| format!("{part} {has}, and not {asked}"))
            .collect();
        let remedy = match (found.count, self.count) {
            (0, _) => {
                "it was made without a layout: open it with Directory::open, serve it by Server::new, \
                 and compute the places of the keys as the program that made it did"
            }
            (_, 0) => "it was made with a layout: open it with Layout::open_directory",
            _ => {
                "open it with the layout that made it. For another layout make a second memory, and \
                 copy the keys there by Layout::copy_to"
            }
        };
        Err(Error::invalid(format!(
            "the directory {}: {remedy}",
            differences.join("; it ")
        )))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) slots: u32,
    pub(super) places: Places,
    /// The random number of the memory. 0: it was lost.
    pub(super) identity: u64,
}

impl Header {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = [0; LINE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[VERSION_AT..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.slots.to_le_bytes());
        let Places { first, len, count } = self.places;
        for (at, field) in (PLACES_AT..)
            .step_by(8)
            .zip([first, len, count, self.identity])
        {
            bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        Self::sum(&mut bytes);
        bytes
    }

    pub(super) fn sum(bytes: &mut [u8]) {
        // The format has 1 here, whatever the version is.
        let sum = checksum(&[&MAGIC, &1_u32.to_le_bytes(), &bytes[12..16]]);
        bytes[16..PLACES_AT].copy_from_slice(&sum.to_le_bytes());
        let sum = checksum(&[&bytes[..IDENTITY_AT]]);
        bytes[SUM_AT..LINE].copy_from_slice(&sum.to_le_bytes());
    }

    pub(super) fn decode(bytes: &Bytes) -> Result<Self> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::invalid(
                "the memory has no directory: Directory::open_or_create makes one in memory of zeros",
            ));
        }
        let version = u32::from_le_bytes(array(bytes, VERSION_AT));
        if version != VERSION {
            return Err(Error::invalid(format!(
                "the directory has the version {version}, and this library knows {VERSION}: use the \
                 version of the library that made it"
            )));
        }
        let word = |at| u64::from_le_bytes(array(bytes, at));
        let header = Self {
            slots: u32::from_le_bytes(array(bytes, 12)),
            places: Places {
                first: word(PLACES_AT),
                len: word(PLACES_AT + 8),
                count: word(PLACES_AT + 16),
            },
            identity: word(IDENTITY_AT),
        };
        if header.encode() == *bytes {
            Ok(header)
        } else {
            Err(Error::invalid(format!(
                "the header of the directory is broken: {REMEDY}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: Header = Header {
        slots: 3,
        places: Places {
            first: 0x1000,
            len: 0x2000,
            count: 3,
        },
        identity: 7,
    };

    /// Directories outlive the program that made them.
    #[test]
    fn the_bytes_are_these() {
        let bytes = HEADER.encode();
        assert_eq!(bytes[..16], *b"rpmadir\0\x02\0\0\0\x03\0\0\0");
        assert_eq!(bytes[16..24], 0xef60_7b02_1486_81fe_u64.to_le_bytes());
        for (at, word) in [(24, 0x1000_u64), (32, 0x2000), (40, 3), (48, 7)] {
            assert_eq!(bytes[at..at + 8], word.to_le_bytes());
        }
        assert_eq!(bytes[56..], checksum(&[&bytes[..48]]).to_le_bytes());
        assert_eq!(BEGUN, *b"rpmanew\0");
    }

    #[test]
    fn a_header_of_another_kind_is_refused_with_the_reason() {
        let with = |at: usize, byte: u8| {
            let mut bytes = HEADER.encode();
            bytes[at] = byte;
            bytes
        };
        let mut begun = HEADER.encode();
        begun[..8].copy_from_slice(&BEGUN);
        assert_eq!(Header::decode(&HEADER.encode()).expect("a header"), HEADER);
        for (bytes, reason) in [
            ([0; LINE], "has no directory"),
            (begun, "has no directory"),
            (with(0, b'R'), "has no directory"),
            (with(8, 3), "has the version 3, and this library knows 2"),
            (with(8, 1), "has the version 1, and this library knows 2"),
            (with(12, 8), "header of the directory is broken"),
            (with(16, 0), "header of the directory is broken"),
            (with(25, 1), "header of the directory is broken"),
            (with(33, 1), "header of the directory is broken"),
            (with(41, 1), "header of the directory is broken"),
            (with(63, 1), "header of the directory is broken"),
        ] {
            let text = Header::decode(&bytes).expect_err(reason).to_string();
            assert!(text.contains(reason), "{text}");
        }
        let identity = Header::decode(&with(48, 9)).expect("a header").identity;
        assert_eq!(identity, 9, "it changes by one store");
    }

    /// Promise: each field of the places is compared by itself, and the error has both numbers.
    #[test]
    fn each_difference_of_the_places_is_named() {
        let Places { first, len, count } = HEADER.places;
        let other = 9;
        for (asked, words) in [
            (
                Places {
                    first: other,
                    len,
                    count,
                },
                "at the byte 4096, and not 9:",
            ),
            (
                Places {
                    first,
                    len: other,
                    count,
                },
                "in bytes of 8192, and not 9:",
            ),
            (
                Places {
                    first,
                    len,
                    count: other,
                },
                "number of parts of 3, and not 9:",
            ),
            (Places::default(), "open it with Layout::open_directory"),
        ] {
            let text = asked
                .check(&HEADER.places)
                .expect_err("refused")
                .to_string();
            assert!(text.contains(words), "{text}");
        }
        let text = HEADER
            .places
            .check(&Places::default())
            .expect_err("refused");
        assert!(text.to_string().contains("without a layout"), "{text}");
        HEADER.places.check(&HEADER.places).expect("the same");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(one: [u8; 32], other: [u8; 32]) {
            let mut bytes: Bytes = std::array::from_fn(|at| match at {
                ..32 => one[at],
                _ => other[at - 32],
            });
            let _ = Header::decode(&bytes);
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            let _ = Header::decode(&bytes);
        }
    }
}
