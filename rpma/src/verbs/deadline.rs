//! The end of a wait: an instant of the clock, or never.

use std::time::{Duration, Instant};

use crate::clock::now;

/// The instant at which a wait ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// Without a limit.
    Never,
    /// Until this instant.
    At(Instant),
}

impl Deadline {
    /// Returns the instant `limit` from now, or `Never` if the clock cannot express it.
    pub(crate) fn after(limit: Duration) -> Self {
        Self::at(now(), limit)
    }

    /// As [`after`](Self::after), from an instant on.
    pub(crate) fn at(from: Instant, limit: Duration) -> Self {
        from.checked_add(limit).map_or(Self::Never, Self::At)
    }

    pub(crate) fn earlier(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(one), Self::At(other)) => Self::At(one.min(other)),
            (Self::Never, deadline) | (deadline, Self::Never) => deadline,
        }
    }

    pub(crate) fn has_passed(self) -> bool {
        match self {
            Self::Never => false,
            Self::At(instant) => now() >= instant,
        }
    }

    /// Returns the time that is left, as a limit for another wait.
    pub(crate) fn left(self) -> Duration {
        match self {
            Self::Never => Duration::MAX,
            Self::At(instant) => instant.saturating_duration_since(now()),
        }
    }

    /// Returns the instant for `poll`, or `None` without a limit.
    pub(crate) fn instant(self) -> Option<Instant> {
        match self {
            Self::Never => None,
            Self::At(instant) => Some(instant),
        }
    }
}
