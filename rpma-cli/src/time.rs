//! The time now: for limits, and of the calendar in UTC.

#[cfg(not(feature = "sim"))]
use std::time::Instant;
use std::time::SystemTime;

/// The time by which `rpma` measures its limits: a simulated fabric can have a clock of its own.
#[cfg(feature = "sim")]
pub(crate) use rpma::sim::now;

/// The time by which `rpma` measures its limits.
#[cfg(not(feature = "sim"))]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The time now, as `2026-01-31T23:59:59Z`.
pub(crate) fn utc_now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
