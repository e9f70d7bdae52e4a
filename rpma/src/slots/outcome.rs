//! The outcome of a post: a number or a [`Refusal`], in one register.
//!
//! A refusal becomes an [`Error`](crate::Error) in refused.rs, when the lock of the queue is free.

use std::num::NonZeroU32;

use super::ring::{NotPosted, NotTaken};
use crate::failure::Failure;
use crate::verbs::{CallFailed, PostError};

/// Whether a request was posted: its number, or why not. One word, which is returned in a
/// register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome(u64);

impl Outcome {
    /// Set if it was not posted. A number does not have it.
    const REFUSED: u64 = 1 << 63;

    #[inline(always)]
    pub(crate) fn posted(number: u64) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(super) fn of(posted: Result<u64, NotPosted<NoCall>>) -> Self {
        match posted {
            Ok(number) => Self(number),
            Err(error) => Refusal::from(error).into(),
        }
    }

    /// Of receives of a [`Pool`](super::Pool), which have no number.
    #[inline(always)]
    pub(crate) fn of_pool(posted: Result<(), NotPosted<NoCall>>) -> Self {
        Self::of(posted.map(|()| 0))
    }

    /// The number of the request, or of the last one if there are several.
    #[inline(always)]
    pub(crate) fn result(self) -> Result<u64, Refusal> {
        match self.0 & Self::REFUSED {
            0 => Ok(self.0),
            // The kind of a refusal is never 0.
            _ => Err(Refusal(
                NonZeroU32::new(self.0 as u32).unwrap_or(NonZeroU32::MIN),
            )),
        }
    }
}

impl From<Refusal> for Outcome {
    #[inline(always)]
    fn from(refusal: Refusal) -> Self {
        Self(Self::REFUSED | u64::from(refusal.0.get()))
    }
}

/// Why a request was not posted, until it becomes an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(NonZeroU32);

impl Refusal {
    pub(super) const TOO_LONG: u32 = 1;
    pub(super) const FULL: u32 = 2;
    pub(super) const NO_COMPLETION_DUE: u32 = 3;
    const ENDED: u32 = 4;
    const CALL_FAILED: u32 = 5;
    const CALL_REFUSED: u32 = 6;
    /// The bits of these.
    const KINDS: u32 = 7;

    /// One of the kinds above, with the bits of a call.
    pub(super) fn bits(self) -> u32 {
        self.0.get()
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
        let failed = self.0.get() & Self::KINDS == Self::CALL_FAILED;
        self.of_send().filter(|_| failed)
    }

    /// The call that failed or that refused the request, if there was one.
    pub(super) fn call(self) -> Option<CallFailed> {
        let failed = self.0.get() & Self::KINDS >= Self::CALL_FAILED;
        failed.then(|| CallFailed::from_bits(self.0.get() >> 3))
    }
}

impl From<NotPosted<NoCall>> for Refusal {
    #[cold]
    #[inline(never)]
    fn from(error: NotPosted<NoCall>) -> Self {
        let bits = match error {
            NotPosted::Ended => Self::ENDED,
            NotPosted::TooLong => Self::TOO_LONG,
            NotPosted::Full => Self::FULL,
            NotPosted::NoCompletionDue => Self::NO_COMPLETION_DUE,
            NotPosted::Refused(NoCall::Ended) | NotPosted::Failed(NoCall::Ended) => Self::ENDED,
            NotPosted::Refused(NoCall::Failed(call)) => call.to_bits() << 3 | Self::CALL_REFUSED,
            NotPosted::Failed(NoCall::Failed(call)) => call.to_bits() << 3 | Self::CALL_FAILED,
        };
        // Not 0, by its lowest bits.
        Self(NonZeroU32::new(bits).unwrap_or(NonZeroU32::MIN))
    }
}

/// Why a request was not given to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoCall {
    /// The connection takes no request.
    Ended,
    Failed(CallFailed),
}

impl From<PostError> for NotTaken<NoCall> {
    #[cold]
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::NoRoom,
            PostError::Refused(call) => Self::Refused(NoCall::Failed(call)),
            PostError::Failed(call) => Self::Failed(NoCall::Failed(call)),
        }
    }
}
