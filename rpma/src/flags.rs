//! How an operation behaves.

use std::ops::{BitOr, BitOrAssign};

use crate::verbs::SendFlags;

/// The flags of an operation (`RPMA_F_*`).
///
/// There is always one of the two completion flags: the C library's "no flags at all", which is an error
/// there, cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// A completion only if the operation fails.
    ///
    /// Its slot in the send queue comes back with the completion of a later operation that has
    /// [`COMPLETION_ALWAYS`](Self::COMPLETION_ALWAYS), for which the last free slot is kept: see
    /// [`Queue::Send`](crate::Queue::Send).
    pub const COMPLETION_ON_ERROR: Self = Self(Self::ON_ERROR);

    /// A completion in any case.
    pub const COMPLETION_ALWAYS: Self = Self(Self::ON_ERROR | Self::ON_SUCCESS);

    /// The completion of the peer's receive gives an event also where the peer asked for events of
    /// solicited messages only ([`Notify::Solicited`](crate::Notify)). For sends, and for writes with
    /// immediate data.
    pub const SOLICITED: Self = Self(Self::ON_ERROR | Self::SOLICIT);

    /// The data is taken when the operation is posted, so that the source may be changed at once. For
    /// writes and sends of up to `ConnCfg::set_max_inline_data` bytes.
    pub const INLINE: Self = Self(Self::ON_ERROR | Self::IN_REQUEST);

    /// The operation is executed after all earlier reads and fallback flushes of the connection have
    /// completed (`IBV_SEND_FENCE`; InfiniBand specification, 10.8.3.3: a fence covers earlier reads and
    /// atomic operations).
    ///
    /// Without it a write may reach the peer's memory before an earlier read has been served, and that
    /// is what a fallback flush is. Behind a **native** flush no public source says what a fence does:
    /// poll the flush first, or use [`Conn::atomic_write`](crate::Conn::atomic_write). See
    /// [what is ordered](crate::Conn#order).
    ///
    /// On soft-RoCE it sets nothing: that executes in order, and its fence waits for ever after a lost
    /// packet.
    pub const FENCE: Self = Self(Self::ON_ERROR | Self::BEHIND_READS);

    const ON_ERROR: u8 = 1;
    const ON_SUCCESS: u8 = 2;
    const SOLICIT: u8 = 4;
    const IN_REQUEST: u8 = 8;
    const BEHIND_READS: u8 = 16;

    pub(crate) fn signaled(self) -> bool {
        self.0 & Self::ON_SUCCESS != 0
    }

    pub(crate) fn inline(self) -> bool {
        self.0 & Self::IN_REQUEST != 0
    }

    /// `fence`: what stands for a fence on this device.
    #[inline]
    pub(crate) fn to_verbs(self, fence: SendFlags) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.signaled());
        flags.set(SendFlags::SOLICITED, self.0 & Self::SOLICIT != 0);
        flags.set(SendFlags::INLINE, self.inline());
        if self.0 & Self::BEHIND_READS != 0 {
            flags |= fence;
        }
        flags
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
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
        assert_eq!(flags.to_verbs(SendFlags::FENCE), fenced);
        assert_eq!(flags.to_verbs(SendFlags::empty()), SendFlags::SIGNALED);
        let plain = Flags::COMPLETION_ALWAYS.to_verbs(SendFlags::FENCE);
        assert_eq!(plain, SendFlags::SIGNALED);
    }
}
