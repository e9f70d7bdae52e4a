//! How an operation behaves.

use std::ops::{BitOr, BitOrAssign};

use crate::verbs::SendFlags;

/// The flags of an operation (`RPMA_F_*`).
///
/// Every value has one of the two completion flags. The C library's "no flags at all", which is an
/// error there, does not exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// Gives a completion only if the operation fails.
    ///
    /// A successful operation without a completion still holds its slot, until the completion of a
    /// later one is polled: see [`Queue::Send`](crate::Queue::Send).
    pub const COMPLETION_ON_ERROR: Self = Self(Self::ON_ERROR);

    /// Gives a completion in every case.
    pub const COMPLETION_ALWAYS: Self = Self(Self::ON_ERROR | Self::ON_SUCCESS);

    /// Makes the completion of the peer's receive give an event, even if the peer gets events only
    /// for solicited messages ([`Notify::Solicited`](crate::Notify)). For sends, and for writes
    /// with immediate data.
    pub const SOLICITED: Self = Self(Self::ON_ERROR | Self::SOLICIT);

    /// Copies the data when the operation is posted, so that the source may be changed at once.
    /// For writes and sends of up to
    /// [`ConnCfg::set_max_inline_data`](crate::ConnCfg::set_max_inline_data) bytes.
    pub const INLINE: Self = Self(Self::ON_ERROR | Self::IN_REQUEST);

    /// Delays the operation until all earlier reads and [fallback flushes](crate::Conn::flush) of
    /// the connection have completed (`IBV_SEND_FENCE`; InfiniBand specification, 10.8.3.3: a fence
    /// covers earlier reads and atomic operations).
    ///
    /// Without it a write may reach the peer's memory before an earlier read has been served, and a
    /// fallback flush is such a read. No public source defines the effect of a fence after a
    /// **native** flush: poll the flush first, or use
    /// [`Conn::atomic_write`](crate::Conn::atomic_write). See [what is ordered](crate::Conn#order).
    ///
    /// On soft-RoCE this flag posts [no fence](crate::guide::failures#fences-on-soft-roce): a peer
    /// on soft-RoCE executes in order without it. If the peer's device reorders
    /// ([`PeerCfg::set_reorders`](crate::PeerCfg::set_reorders)), the flag is
    /// [`Error::NotSupported`](crate::Error::NotSupported).
    pub const FENCE: Self = Self(Self::ON_ERROR | Self::BEHIND_READS);

    // The bits that verbs has are its own, so that they need no conversion.
    const ON_SUCCESS: u8 = SendFlags::SIGNALED.bits() as u8;
    const SOLICIT: u8 = SendFlags::SOLICITED.bits() as u8;
    const IN_REQUEST: u8 = SendFlags::INLINE.bits() as u8;
    const BEHIND_READS: u8 = SendFlags::FENCE.bits() as u8;
    const ON_ERROR: u8 = 1 << 7;

    #[inline]
    pub(crate) fn inline(self) -> bool {
        self.0 & Self::IN_REQUEST != 0
    }

    /// Whether a successful operation completes, too.
    #[inline]
    pub(crate) fn completes(self) -> bool {
        self.0 & Self::ON_SUCCESS != 0
    }

    #[inline]
    pub(crate) fn fence(self) -> bool {
        self.0 & Self::BEHIND_READS != 0
    }

    /// The flags that an operation on this device can have.
    #[inline]
    pub(crate) fn to_verbs(self, possible: SendFlags) -> SendFlags {
        SendFlags::from_bits_retain(u32::from(self.0)) & possible
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_what_the_device_takes_for_one() {
        let flags = Flags::FENCE | Flags::COMPLETION_ALWAYS;
        let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
        assert_eq!(flags.to_verbs(SendFlags::all()), fenced);
        let none = SendFlags::all().difference(SendFlags::FENCE);
        assert_eq!(flags.to_verbs(none), SendFlags::SIGNALED);
        let plain = Flags::COMPLETION_ALWAYS.to_verbs(SendFlags::all());
        assert_eq!(plain, SendFlags::SIGNALED);
    }
}
