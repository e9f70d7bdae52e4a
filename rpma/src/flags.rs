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

    const ON_ERROR: u8 = 1;
    const ON_SUCCESS: u8 = 2;
    const SOLICIT: u8 = 4;
    const IN_REQUEST: u8 = 8;

    pub(crate) fn signaled(self) -> bool {
        self.0 & Self::ON_SUCCESS != 0
    }

    pub(crate) fn inline(self) -> bool {
        self.0 & Self::IN_REQUEST != 0
    }

    #[inline]
    pub(crate) fn to_verbs(self) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.signaled());
        flags.set(SendFlags::SOLICITED, self.0 & Self::SOLICIT != 0);
        flags.set(SendFlags::INLINE, self.inline());
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
