//! The messages of [`Method::Server`](super::Method::Server), little endian.
//!
//! | a request: 32 + 16 n bytes | |
//! |---|---|
//! | 0 | `rC` |
//! | 2 | the version, 1 |
//! | 3 | n, the number of ranges |
//! | 4 | the request's number on its connection, from 1 on, u32 |
//! | 8 | 1 with a pointer, else 0 |
//! | 9 | 7 zeros |
//! | 16 | the address of the pointer, u64; 0 without one |
//! | 24 | its 8 bytes as they stand in memory; 0 without one |
//! | 32 | n times: address u64, length u64 |
//!
//! | an answer: 8 bytes | |
//! |---|---|
//! | 0 | `rA` |
//! | 2 | the version, 1 |
//! | 3 | 0: all of the request is durable |
//! | 4 | the number of the request, u32 |
//!
//! Addresses are those of the region's descriptor.

use crate::conn::Conn;
use crate::error::{Error, Result};
use crate::mr::MrUsage;

/// The usage of memory that requests name.
pub(super) const WRITTEN: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_PERSISTENT);
pub(super) const MAX_RANGES: usize = Conn::MAX_COMMIT_PARTS;
pub(super) const MAX_REQUEST: usize = HEAD + MAX_RANGES * RANGE;
pub(super) const ANSWER: usize = 8;

const HEAD: usize = 32;
const RANGE: usize = 16;
const VERSION: u8 = 1;

/// A client asks to make ranges durable, then to store a pointer, and to make that durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) number: u32,
    /// An address, and the bytes.
    pub(super) pointer: Option<(u64, [u8; 8])>,
    ranges: [Range; MAX_RANGES],
    count: u8,
}

/// An address, and a length.
pub(super) type Range = (u64, u64);

impl Request {
    /// A request for up to [`MAX_RANGES`] ranges; of more, for the first ones.
    pub(super) fn new(
        number: u32,
        pointer: Option<(u64, [u8; 8])>,
        ranges: impl Iterator<Item = Range>,
    ) -> Self {
        let mut made = Self {
            number,
            pointer,
            ranges: [(0, 0); MAX_RANGES],
            count: 0,
        };
        for (place, range) in made.ranges.iter_mut().zip(ranges) {
            *place = range;
            made.count += 1;
        }
        made
    }

    pub(super) fn ranges(&self) -> &[Range] {
        &self.ranges[..self.count.into()]
    }

    /// The bytes, and how many there are.
    pub(super) fn encode(&self) -> ([u8; MAX_REQUEST], usize) {
        let mut bytes = [0; MAX_REQUEST];
        bytes[..4].copy_from_slice(&[b'r', b'C', VERSION, self.count]);
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        if let Some((address, value)) = self.pointer {
            bytes[8] = 1;
            bytes[16..24].copy_from_slice(&address.to_le_bytes());
            bytes[24..32].copy_from_slice(&value);
        }
        let places = bytes[HEAD..].chunks_exact_mut(RANGE);
        for (place, (address, len)) in places.zip(self.ranges()) {
            place[..8].copy_from_slice(&address.to_le_bytes());
            place[8..].copy_from_slice(&len.to_le_bytes());
        }
        (bytes, HEAD + self.ranges().len() * RANGE)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let refused = |why: String| Err(Error::invalid(format!("a persist request {why}")));
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
            return refused(format!(
                "of {} bytes: it must have at least {HEAD}",
                bytes.len()
            ));
        };
        let [b'r', b'C', version, count, ..] = *head else {
            return refused(format!("that begins with {:?}", &head[..2]));
        };
        if version != VERSION {
            return refused(format!("of version {version}, and {VERSION} is known"));
        }
        let wanted = HEAD + usize::from(count) * RANGE;
        if bytes.len() != wanted || usize::from(count) > MAX_RANGES {
            return refused(format!(
                "of {} bytes with {count} ranges: it must have {wanted} bytes, and at most \
                 {MAX_RANGES} ranges",
                bytes.len()
            ));
        }
        let (address, value) = (u64_at(head, 16), eight_at(head, 24));
        let pointer = match head[8] {
            0 if address == 0 && value == [0; 8] => None,
            1 => Some((address, value)),
            0 => return refused("whose pointer flag is 0, but whose pointer has bytes".to_owned()),
            flag => return refused(format!("whose pointer flag is {flag}: it must be 0 or 1")),
        };
        if head[9..16] != [0; 7] {
            return refused("whose padding is not 0".to_owned());
        }
        let ranges = rest.chunks_exact(RANGE);
        let ranges = ranges.map(|range| (u64_at(range, 0), u64_at(range, 8)));
        let number = u32::from_le_bytes(std::array::from_fn(|at| head[4 + at]));
        Ok(Self::new(number, pointer, ranges))
    }
}

/// The property of [`fuzz::request`](crate::fuzz::request).
#[cfg(any(test, fuzzing))]
pub(crate) fn check_request(bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        let (encoded, len) = request.encode();
        assert_eq!(encoded[..len], *bytes);
    }
}

/// The bytes at `at`. The callers' places are inside.
fn eight_at(bytes: &[u8], at: usize) -> [u8; 8] {
    std::array::from_fn(|n| bytes[at + n])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(eight_at(bytes, at))
}

pub(super) fn answer(number: u32) -> [u8; ANSWER] {
    let [n0, n1, n2, n3] = number.to_le_bytes();
    [b'r', b'A', VERSION, 0, n0, n1, n2, n3]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Programs of other versions of this library read them.
    #[test]
    fn the_bytes_are_these() {
        let ranges = [(0x0102, 64), (0x2000, 1)];
        let request = Request::new(7, Some((0x1000, *b"\x01pointer")), ranges.into_iter());
        let (bytes, len) = request.encode();
        let mut expected = b"rC\x01\x02\x07\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
        expected.extend(b"\0\x10\0\0\0\0\0\0\x01pointer");
        expected.extend(b"\x02\x01\0\0\0\0\0\0\x40\0\0\0\0\0\0\0");
        expected.extend(b"\0\x20\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
        assert_eq!(bytes[..len], expected);
        assert_eq!(Request::decode(&expected).expect("a request"), request);
        assert_eq!(answer(0x0403_0201), *b"rA\x01\0\x01\x02\x03\x04");
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_reason() {
        let request = Request::new(1, None, [(64, 64)].into_iter());
        let (bytes, len) = request.encode();
        let good = &bytes[..len];
        let with = |at: usize, byte: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = byte;
            bytes
        };
        for (bytes, reason) in [
            (vec![], "of 0 bytes"),
            (good[..31].to_vec(), "of 31 bytes"),
            (with(0, b'x'), "begins with"),
            (with(2, 2), "version 2, and 1 is known"),
            (good[..47].to_vec(), "with 1 ranges: it must have 48"),
            (with(3, 2), "with 2 ranges: it must have 64"),
            ([with(3, 17), vec![0; 256]].concat(), "at most 16 ranges"),
            ([good, &[0]].concat(), "of 49 bytes"),
            (with(8, 2), "pointer flag is 2"),
            (with(16, 1), "pointer flag is 0, but"),
            (with(31, 1), "pointer flag is 0, but"),
            (with(15, 1), "padding"),
        ] {
            let text = Request::decode(&bytes).expect_err(reason).to_string();
            assert!(text.contains(reason), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_request_is_decoded_again(
            number: u32, pointer: Option<(u64, [u8; 8])>,
            ranges in proptest::collection::vec(any::<(u64, u64)>(), 0..=MAX_RANGES),
        ) {
            let request = Request::new(number, pointer, ranges.iter().copied());
            let (bytes, len) = request.encode();
            prop_assert_eq!(request.ranges(), &ranges);
            prop_assert_eq!(Request::decode(&bytes[..len]).expect("a request"), request);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, count in 0..=20u8) {
            let _ = Request::decode(&bytes);
            let _ = Request::decode(&[&[b'r', b'C', VERSION, count], &bytes[..]].concat());
        }
    }
}
