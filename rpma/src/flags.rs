//! How an operation behaves.

use std::ops::BitOr;

use crate::verbs::Signal;

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
    /// [`COMPLETION_ALWAYS`](Self::COMPLETION_ALWAYS).
    pub const COMPLETION_ON_ERROR: Self = Self(1);

    /// A completion in any case.
    pub const COMPLETION_ALWAYS: Self = Self(1 | Self::ON_SUCCESS);

    const ON_SUCCESS: u8 = 2;

    pub(crate) fn signal(self) -> Signal {
        match self.0 & Self::ON_SUCCESS {
            0 => Signal::OnError,
            _ => Signal::Always,
        }
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
