//! Why a request was not posted: a [`PostRefusal`].
//!
//! A refusal becomes an [`Error`](crate::Error) in refused.rs, when the lock of the queue is free.

use std::num::NonZeroU64;

use super::ring::{NotPosted, NotTaken};
use crate::failure::Failure;
use crate::verbs::{CallFailed, PostError};

/// Why a request was not posted, until it becomes an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostRefusal(NonZeroU64);

impl PostRefusal {
    pub(super) const TOO_LONG: u32 = 1;
    pub(super) const FULL: u32 = 2;
    pub(super) const NO_COMPLETION_DUE: u32 = 3;
    const ENDED: u32 = 4;
    const CALL_FAILED: u32 = 5;
    const CALL_REFUSED: u32 = 6;
    const KINDS: u32 = 7;

    /// One of the kinds above, with the bits of a call.
    pub(super) fn bits(self) -> u32 {
        self.0.get() as u32
    }

    /// Returns why the connection fails, if a send was refused in a way that changes the
    /// connection.
    pub(crate) fn of_send(self) -> Option<Failure> {
        let call = self.call()?;
        let (call, errno) = (call.name(), call.errno());
        Some(Failure::Post { call, errno })
    }

    /// As [`of_send`](Self::of_send), of a receive.
    pub(crate) fn of_receive(self) -> Option<Failure> {
        let failed = self.bits() & Self::KINDS == Self::CALL_FAILED;
        self.of_send().filter(|_| failed)
    }

    /// The call that failed or that refused the request, if there was one.
    pub(super) fn call(self) -> Option<CallFailed> {
        let failed = self.bits() & Self::KINDS >= Self::CALL_FAILED;
        failed.then(|| CallFailed::from_bits((self.0.get() >> 3) as u32))
    }
}

impl From<NotPosted<CallFailed>> for PostRefusal {
    #[cold]
    #[inline(never)]
    fn from(error: NotPosted<CallFailed>) -> Self {
        let bits = match error {
            NotPosted::Ended => Self::ENDED,
            NotPosted::TooLong => Self::TOO_LONG,
            NotPosted::Full => Self::FULL,
            NotPosted::NoCompletionDue => Self::NO_COMPLETION_DUE,
            NotPosted::Refused(call) => call.to_bits() << 3 | Self::CALL_REFUSED,
            NotPosted::Failed(call) => call.to_bits() << 3 | Self::CALL_FAILED,
        };
        // Not 0, by its lowest bits.
        Self(NonZeroU64::new(bits.into()).unwrap_or(NonZeroU64::MIN))
    }
}

impl From<PostError> for NotTaken<CallFailed> {
    #[cold]
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::NoRoom,
            PostError::Refused(call) => Self::Refused(call),
            PostError::Failed(call) => Self::Failed(call),
        }
    }
}
