//! The uses of a memory region, and the access rights that they need.

use std::fmt;

use crate::error::{Error, Result};
use crate::peer::PeerKey;
use crate::verbs::AccessFlags;

bitflags::bitflags! {
    /// The permitted uses of a memory region (`RPMA_MR_USAGE_*`).
    ///
    /// The bits travel in the region's descriptor and have librpma's values. An operation is
    /// refused when it is posted if its local or its remote region lacks the right.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MrUsage: u8 {
        /// A peer reads from the region.
        const READ_SRC = 0x01;
        /// Reads of a peer's memory land in the region. On iWARP that makes it remotely writable: a
        /// peer with its key, or a guess of it, can write to it.
        const READ_DST = 0x02;
        /// Writes to a peer's memory come from the region.
        const WRITE_SRC = 0x04;
        /// A peer writes to the region.
        const WRITE_DST = 0x08;
        /// A peer flushes the region to global visibility, **and may read it**: a peer without
        /// native flush flushes by reading.
        const FLUSH_TYPE_VISIBILITY = 0x10;
        /// A peer flushes the region to persistence, and may read it, as above. Memory that is
        /// known to be volatile is refused, by this library and, with native flush, by soft-RoCE.
        const FLUSH_TYPE_PERSISTENT = 0x20;
        /// Sends come from the region.
        const SEND = 0x40;
        /// Receives land in the region.
        const RECV = 0x80;
    }
}

impl fmt::Display for MrUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// The rights that a region with `usage` is registered with.
///
/// They are librpma's, with two differences. A flush right brings the right to read whether or not
/// the device has native flush, so that either kind of initiator can flush the region (W-10). And
/// a source of writes is not made writable: verbs does not need that, and a read-only mapping can
/// be one.
pub(crate) fn access(usage: MrUsage, native_flush: bool, iwarp: bool) -> AccessFlags {
    let mut access = AccessFlags::empty();
    if usage.contains(MrUsage::READ_SRC) {
        access |= AccessFlags::REMOTE_READ;
    }
    if usage.contains(MrUsage::READ_DST) {
        access |= AccessFlags::LOCAL_WRITE;
        if iwarp {
            access |= AccessFlags::REMOTE_WRITE;
        }
    }
    if usage.contains(MrUsage::WRITE_DST) {
        access |= AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
    }
    for (flush, right) in [
        (MrUsage::FLUSH_TYPE_VISIBILITY, AccessFlags::FLUSH_GLOBAL),
        (
            MrUsage::FLUSH_TYPE_PERSISTENT,
            AccessFlags::FLUSH_PERSISTENT,
        ),
    ] {
        if usage.contains(flush) {
            access |= AccessFlags::REMOTE_READ;
            if native_flush {
                access |= right;
            }
        }
    }
    if usage.contains(MrUsage::RECV) {
        access |= AccessFlags::LOCAL_WRITE;
    }
    access
}

/// The permitted uses of a local part, its `Peer`, and whether it is too long for any operation.
/// All of it is in one word, so that one comparison is enough. From below: 8 bits of usage, 24 of
/// the key of the `Peer`, 32 of the length, its upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    #[inline]
    pub(crate) const fn new(peer: PeerKey, usage: MrUsage) -> Self {
        Self((peer.number() as u64) << 8 | usage.bits() as u64)
    }

    /// The tag of a part of `len` bytes.
    #[inline]
    pub(crate) const fn with_len(self, len: u64) -> Self {
        Self(self.0 | len >> 32 << 32)
    }

    /// The length. The caller has its lower half.
    #[inline]
    pub(crate) fn len(self, lower: u32) -> u64 {
        self.0 >> 32 << 32 | u64::from(lower)
    }

    #[inline]
    pub(crate) fn usage(self) -> MrUsage {
        MrUsage::from_bits_retain(self.0 as u8)
    }

    /// Whether it is for a `needed` use with the peer of `wanted`, which has that usage and no
    /// other, and its length has 32 bits.
    #[inline(always)]
    pub(crate) fn fits(self, wanted: Self, needed: MrUsage) -> bool {
        self.0 & (!0xff | u64::from(needed.bits())) == wanted.0
    }

    /// Whether it may be used with the peer of `of`: it is of the same peer, or has no peer.
    #[inline]
    pub(crate) fn is_of(self, of: Self) -> bool {
        let peer = |tag: Self| (tag.0 as u32) >> 8;
        peer(self) == peer(of) || peer(self) == PeerKey::ANY.number()
    }
}

#[inline]
pub(crate) fn require(usage: MrUsage, needed: MrUsage, side: &'static str) -> Result<()> {
    if usage.contains(needed) {
        return Ok(());
    }
    Err(missing(usage, needed, side))
}

#[cold]
fn missing(usage: MrUsage, needed: MrUsage, side: &'static str) -> Error {
    Error::invalid(format!(
        "the {side} memory region was registered for {usage}, and this operation needs {needed}: \
         register it with that usage as well"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_follow_the_table_of_the_c_library() {
        use AccessFlags as A;
        use MrUsage as U;
        for (usage, plain) in [
            (U::READ_SRC, A::REMOTE_READ),
            (U::READ_DST, A::LOCAL_WRITE),
            (U::WRITE_SRC, A::empty()),
            (U::WRITE_DST, A::REMOTE_WRITE.union(A::LOCAL_WRITE)),
            (U::FLUSH_TYPE_VISIBILITY, A::REMOTE_READ),
            (U::FLUSH_TYPE_PERSISTENT, A::REMOTE_READ),
            (U::SEND, A::empty()),
            (U::RECV, A::LOCAL_WRITE),
        ] {
            assert_eq!(access(usage, false, false), plain, "{usage}");
        }
        assert_eq!(
            access(U::READ_DST, false, true),
            A::LOCAL_WRITE | A::REMOTE_WRITE
        );
    }

    #[test]
    fn a_flush_right_keeps_the_right_to_read() {
        let native = access(MrUsage::FLUSH_TYPE_PERSISTENT, true, false);
        assert_eq!(
            native,
            AccessFlags::FLUSH_PERSISTENT | AccessFlags::REMOTE_READ
        );
        let native = access(MrUsage::FLUSH_TYPE_VISIBILITY, true, false);
        assert_eq!(native, AccessFlags::FLUSH_GLOBAL | AccessFlags::REMOTE_READ);
    }

    #[test]
    fn a_missing_usage_is_named() {
        let error = require(MrUsage::READ_SRC, MrUsage::WRITE_DST, "remote").expect_err("missing");
        let text = error.to_string();
        assert!(
            text.contains("READ_SRC") && text.contains("WRITE_DST"),
            "{text}"
        );
    }

    /// One comparison gives the result of three.
    #[test]
    fn a_tag_says_all_at_once() {
        let lengths = [0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX];
        let (peer, other) = (PeerKey::for_test(1), PeerKey::for_test((1 << 24) - 1));
        let of = Tag::new(peer, MrUsage::empty());
        for usage in (0..=u8::MAX).map(MrUsage::from_bits_retain) {
            for (key, len) in [peer, other, PeerKey::ANY]
                .into_iter()
                .flat_map(|key| lengths.map(|len| (key, len)))
            {
                let tag = Tag::new(key, usage).with_len(len);
                assert_eq!((tag.usage(), tag.len(len as u32)), (usage, len));
                assert_eq!(tag.is_of(of), key != other);
                for needed in MrUsage::all().iter() {
                    let expected = key == peer && usage.contains(needed) && len >> 32 == 0;
                    assert_eq!(
                        tag.fits(Tag::new(peer, needed), needed),
                        expected,
                        "{key:?} {usage} {len} {needed}"
                    );
                }
            }
        }
    }
}
