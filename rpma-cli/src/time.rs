//! The time now: for limits, and of the calendar in UTC.

#[cfg(not(feature = "sim"))]
use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

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
    utc(SystemTime::now())
}

/// A time as `2026-01-31T23:59:59Z`.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day after 1970-01-01. Years begin in March here, so the leap day is the last one.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year + u64::from(month <= 2);
    (year, month, day - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
