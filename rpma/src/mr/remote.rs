//! [`MrRemote`]: a region of the peer, made from the descriptor that it sent.

use std::fmt;
use std::ops::RangeBounds;

use super::usage::MrUsage;
use crate::error::{Error, Result};
use crate::range;
use crate::verbs::RemoteAddress;

/// The size of a region's descriptor in bytes.
pub(crate) const DESCRIPTOR_SIZE: usize = 21;

/// A memory region of a peer (`struct rpma_mr_remote`): its place and its permitted uses.
///
/// It is plain data and owns no object, and it does not identify its peer. If a program has
/// several peers, or connects again, keep each region with its connection. An operation on another
/// connection fails if that peer has no such key. If that peer has the key, the operation accesses
/// other memory.
///
/// The contents are claims of the peer. If the region does not exist or does not have these
/// rights, the peer's device refuses the operation, and that breaks the connection.
#[doc(alias = "rpma_mr_remote_delete")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrRemote {
    address: u64,
    size: u64,
    rkey: u32,
    usage: MrUsage,
}

impl MrRemote {
    /// Decodes a descriptor that [`Mr::get_descriptor`](crate::Mr::get_descriptor) or librpma made:
    /// 21 bytes, little-endian (address u64, size u64, rkey u32, usage u8). Bytes after those are
    /// ignored, as in librpma.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the descriptor is shorter, has no usage (both as in librpma),
    /// has no size, or describes memory that ends beyond the address space.
    #[doc(alias = "rpma_mr_remote_from_descriptor")]
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Self> {
        let Some((bytes, _rest)) = descriptor.split_first_chunk::<DESCRIPTOR_SIZE>() else {
            return Err(Error::invalid(format!(
                "a memory region's descriptor has {DESCRIPTOR_SIZE} bytes, this one has {}",
                descriptor.len()
            )));
        };
        let mr = Self {
            address: u64::from_le_bytes(field(bytes, 0)),
            size: u64::from_le_bytes(field(bytes, 8)),
            rkey: u32::from_le_bytes(field(bytes, 16)),
            usage: MrUsage::from_bits_retain(bytes[20]),
        };
        let refused = if mr.usage.is_empty() {
            "allows no usage at all".to_owned()
        } else if mr.size == 0 {
            "has a size of 0 bytes".to_owned()
        } else if mr.address.checked_add(mr.size - 1).is_none() {
            format!(
                "has {} bytes at {:#x}, beyond the end of the address space",
                mr.size, mr.address
            )
        } else {
            log::debug!("remote memory region: {mr:?}");
            return Ok(mr);
        };
        Err(Error::invalid(format!(
            "the descriptor's memory region {refused}"
        )))
    }

    pub(crate) fn new(address: u64, size: u64, rkey: u32, usage: MrUsage) -> Self {
        Self {
            address,
            size,
            rkey,
            usage,
        }
    }

    pub(crate) fn to_descriptor(self) -> [u8; DESCRIPTOR_SIZE] {
        let mut bytes = [0; DESCRIPTOR_SIZE];
        bytes[0..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[20] = self.usage.bits();
        bytes
    }

    /// Returns the size of the region in bytes.
    #[doc(alias = "rpma_mr_remote_get_size")]
    #[must_use]
    pub fn get_size(&self) -> u64 {
        self.size
    }

    /// Returns the permitted uses of the region.
    #[must_use]
    pub fn get_usage(&self) -> MrUsage {
        self.usage
    }

    /// Returns the flush types that the region supports: neither, one or both of
    /// [`MrUsage::FLUSH_TYPE_VISIBILITY`] and [`MrUsage::FLUSH_TYPE_PERSISTENT`].
    #[doc(alias = "rpma_mr_remote_get_flush_type")]
    #[must_use]
    pub fn get_flush_type(&self) -> MrUsage {
        self.usage & (MrUsage::FLUSH_TYPE_VISIBILITY | MrUsage::FLUSH_TYPE_PERSISTENT)
    }

    /// Returns a part of the region for operations, and checks its bounds once. `..` is all of it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the range is not inside the region.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteSlice> {
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        let (start, end) = range::ends(start, end, self.size);
        if start > end || end > self.size {
            return Err(*self.outside(start, end));
        }
        Ok(RemoteSlice {
            // An empty part may begin just after the end of the address space.
            address: self.address.wrapping_add(start),
            len: end - start,
            key: Key::new(self.rkey, self.usage),
        })
    }

    /// In a box, as the error of [`Mr`](crate::Mr)'s slice.
    #[cold]
    #[inline(never)]
    fn outside(&self, start: u64, end: u64) -> Box<Error> {
        let name = "remote memory region";
        Box::new(range::outside(start, end, self.size, name))
    }
}

impl TryFrom<&[u8]> for MrRemote {
    type Error = Error;

    fn try_from(descriptor: &[u8]) -> Result<Self> {
        Self::from_descriptor(descriptor)
    }
}

/// The bytes of a field. The callers' offsets are constants inside the descriptor.
fn field<const N: usize>(bytes: &[u8; DESCRIPTOR_SIZE], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[offset + i])
}

/// A part of a peer's region, as an operation takes it. Plain data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteSlice {
    address: u64,
    len: u64,
    key: Key,
}

/// The rkey of a region and its permitted uses, in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u64);

impl Key {
    #[inline]
    const fn new(rkey: u32, usage: MrUsage) -> Self {
        Self(rkey as u64 | (usage.bits() as u64) << 32)
    }

    #[inline(always)]
    fn rkey(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    fn usage(self) -> MrUsage {
        MrUsage::from_bits_retain((self.0 >> 32) as u8)
    }
}

impl fmt::Debug for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSlice")
            .field("address", &self.address)
            .field("len", &self.len)
            .field("rkey", &self.key.rkey())
            .field("usage", &self.key.usage())
            .finish()
    }
}

impl RemoteSlice {
    /// No memory at all, for operations of 0 bytes: the C library's NULL.
    pub const EMPTY: Self = Self {
        address: 0,
        len: 0,
        key: Key::new(0, MrUsage::all()),
    };

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the part has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn usage(&self) -> MrUsage {
        self.key.usage()
    }

    /// Whether both are parts of one region.
    #[inline(always)]
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.key == other.key
    }

    /// The addresses of the first byte and of the last one. The part is not empty.
    #[inline(always)]
    pub(crate) fn ends(&self) -> (u64, u64) {
        // A region ends inside the address space.
        (
            self.address,
            self.address.wrapping_add(self.len.wrapping_sub(1)),
        )
    }

    /// The part of the same region between two addresses, with both: of bytes of parts of it.
    #[inline(always)]
    pub(crate) fn between(&self, (first, last): (u64, u64)) -> Self {
        Self {
            address: first,
            len: last.wrapping_sub(first).wrapping_add(1),
            key: self.key,
        }
    }

    /// Whether one of these 8 bytes lies in this part, of any length.
    #[inline(always)]
    pub(crate) fn has_byte_of(&self, word: &Self) -> bool {
        // How far the word's last byte lies after the byte before this part's first one.
        let distance = word.address.wrapping_add(7).wrapping_sub(self.address);
        distance < self.len.wrapping_add(7)
    }

    #[inline]
    pub(crate) fn address(&self) -> RemoteAddress {
        RemoteAddress {
            address: self.address,
            rkey: self.key.rkey(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Observed on librpma 1.3.0: READ_SRC | WRITE_DST | RECV, 8192 bytes.
    const SAMPLE: [u8; 21] = [
        0x00, 0x70, 0x5c, 0xf3, 0xe8, 0x55, 0, 0, 0x00, 0x20, 0, 0, 0, 0, 0, 0, 0xdb, 0x02, 0, 0,
        0x89,
    ];

    #[test]
    fn the_bytes_are_librpmas() {
        let mr = MrRemote::from_descriptor(&SAMPLE).expect("a valid descriptor");
        assert_eq!(mr.address, 0x55e8_f35c_7000);
        assert_eq!(mr.get_size(), 8192);
        assert_eq!(mr.rkey, 0x2db);
        assert_eq!(
            mr.get_usage(),
            MrUsage::READ_SRC | MrUsage::WRITE_DST | MrUsage::RECV
        );
        assert_eq!(mr.to_descriptor(), SAMPLE);
    }

    /// `from_descriptor` logs this. The C library logs the bytes as if they were in the host's
    /// order.
    #[test]
    fn the_log_shows_what_a_descriptor_means() {
        let mr = MrRemote::from_descriptor(&SAMPLE).expect("a valid descriptor");
        let text = format!("{mr:?}");
        for part in [
            "address: 94459003695104",
            "size: 8192",
            "rkey: 731",
            "READ_SRC",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_bad_descriptor_is_refused_with_the_reason() {
        let with = |offset: usize, bytes: &[u8]| {
            let mut descriptor = SAMPLE;
            descriptor[offset..offset + bytes.len()].copy_from_slice(bytes);
            descriptor
        };
        for (descriptor, reason) in [
            (&SAMPLE[..20], "this one has 20"),
            (&[], "this one has 0"),
            (&with(20, &[0]), "no usage"),
            (&with(8, &[0; 8]), "size of 0"),
            (&with(0, &[0xff; 8]), "beyond the end"),
            (&with(8, &[0xff; 8]), "beyond the end"),
        ] {
            let error = MrRemote::from_descriptor(descriptor).expect_err(reason);
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn the_last_byte_of_the_address_space_is_inside_it() {
        let mr = MrRemote::new(u64::MAX - 7, 8, 1, MrUsage::READ_SRC);
        let decoded = MrRemote::from_descriptor(&mr.to_descriptor()).expect("ends at the end");
        assert_eq!(decoded.slice(7..8).expect("inside").address, u64::MAX);
        assert!(decoded.slice(8..).expect("nothing, at the end").is_empty());
    }

    /// A part of the first and of the last bytes of the address space, and parts in the middle.
    #[test]
    fn a_word_is_beside_a_part_or_has_a_byte_of_it() {
        let part = |address, len| RemoteSlice {
            address,
            len,
            key: Key::new(1, MrUsage::WRITE_DST),
        };
        for begin in [0, 1, 64, 67, 71, u64::MAX - 6] {
            for len in [1, 7, 8, 20] {
                let Some(last) = u64::checked_add(begin, len - 1) else {
                    continue;
                };
                let words = [
                    0,
                    8,
                    48,
                    56,
                    64,
                    72,
                    80,
                    88,
                    96,
                    u64::MAX - 15,
                    u64::MAX - 7,
                ];
                for word in words {
                    let has = word <= last && word + 7 >= begin;
                    let found = part(begin, len).has_byte_of(&part(word, 8));
                    assert_eq!(found, has, "{len} at {begin}, the word at {word}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_valid_descriptor_survives_a_round_trip(
            address: u64, size in 1..=u64::MAX, rkey: u32, usage in 1..=u8::MAX, tail: Vec<u8>,
        ) {
            prop_assume!(address.checked_add(size - 1).is_some());
            let mr = MrRemote::new(address, size, rkey, MrUsage::from_bits_retain(usage));
            let mut bytes = mr.to_descriptor().to_vec();
            bytes.extend(tail);
            prop_assert_eq!(MrRemote::from_descriptor(&bytes).expect("valid"), mr);
        }

        #[test]
        fn no_bytes_panic_and_no_slice_leaves_the_region(bytes: Vec<u8>, start: u64, len: u64) {
            if let Ok(mr) = MrRemote::from_descriptor(&bytes) {
                if let Ok(slice) = mr.slice(start..start.saturating_add(len)) {
                    prop_assert!(slice.address >= mr.address);
                    prop_assert!(slice.address - mr.address + slice.len <= mr.size);
                }
            }
        }
    }
}
