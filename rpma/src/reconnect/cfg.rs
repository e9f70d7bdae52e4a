//! [`ReconnectCfg`]: the limits of a reconnect, and the waits between its rounds of tries.

use std::time::Duration;

use crate::error::{Error, Result};

/// The limits of a [`Reconnect`](super::Reconnect), and its waits between rounds of tries. A round
/// tries each address of the server once.
///
/// [`ConnCfg::set_timeout`](crate::ConnCfg::set_timeout) sets two other limits: that of the search
/// for the address, and that of the search for the route.
///
/// # Waits
///
/// The first round begins at once, or after the wait of
/// [`Reconnect::begin`](super::Reconnect::begin). The wait after the first round is the first wait.
/// Each later wait is twice as long as the one before, up to the longest wait. By default the waits
/// are 50, 100, 200, 400, 800, 1600 and 3200 ms, and from then on 5 s.
///
/// Each wait is shortened at random, to a time between half of it and all of it. So clients that
/// have lost the same server do not return in step. On a simulated fabric with a seed the waits
/// follow from the seed.
///
/// If a server answers that it is full, or that it could not cut off the old connection, the round
/// ends, and the next wait is the longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectCfg {
    limit: Duration,
    answer_limit: Duration,
    first_wait: Duration,
    longest_wait: Duration,
}

impl Default for ReconnectCfg {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(60),
            answer_limit: Duration::from_secs(10),
            first_wait: Duration::from_millis(50),
            longest_wait: Duration::from_secs(5),
        }
    }
}

impl ReconnectCfg {
    /// The default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the limit of a whole reconnect, with all its tries and waits. The default is 60 s.
    /// `Duration::MAX` is no limit.
    pub fn set_limit(&mut self, limit: Duration) -> &mut Self {
        self.limit = limit;
        self
    }

    /// Sets how long one try waits for the server's answer. The default is 10 s. The kernel sends
    /// a lost request again after about 4 s, so that 10 s are enough for two losses.
    pub fn set_answer_limit(&mut self, limit: Duration) -> &mut Self {
        self.answer_limit = limit;
        self
    }

    /// Sets the first wait and the longest one. The defaults are 50 ms and 5 s.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the first wait is shorter than 1 ms, or longer than the
    /// longest wait.
    pub fn set_waits(&mut self, first: Duration, longest: Duration) -> Result<&mut Self> {
        if first < Duration::from_millis(1) || first > longest {
            return Err(Error::invalid(format!(
                "waits from {first:?} to {longest:?}: the first one must be at least 1 ms, and the \
                 longest one must not be shorter"
            )));
        }
        (self.first_wait, self.longest_wait) = (first, longest);
        Ok(self)
    }

    /// See [`set_limit`](Self::set_limit).
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// See [`set_answer_limit`](Self::set_answer_limit).
    #[must_use]
    pub fn answer_limit(&self) -> Duration {
        self.answer_limit
    }

    /// See [`set_waits`](Self::set_waits).
    #[must_use]
    pub fn first_wait(&self) -> Duration {
        self.first_wait
    }

    /// See [`set_waits`](Self::set_waits).
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        self.longest_wait
    }

    /// The whole wait after `failed` rounds of tries without a connection, 1 at least.
    pub(super) fn wait_after(&self, failed: u32) -> Duration {
        let doubled = failed.saturating_sub(1).min(31);
        let wait = self.first_wait.saturating_mul(1 << doubled);
        wait.min(self.longest_wait)
    }
}

/// Shortens waits at random. All its numbers follow from the first one.
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A time from half of `wait` up to `wait`.
    pub(super) fn shorten(&mut self, wait: Duration) -> Duration {
        let half = wait / 2;
        let share = u32::from(self.next() as u16);
        half + (wait - half) / u32::from(u16::MAX) * share
    }

    /// Spreads the bits of a counter (splitmix64).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ bits >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the documented sequence of waits.
    #[test]
    fn waits_double_up_to_the_longest() {
        let cfg = ReconnectCfg::new();
        let waits = (1..=9).map(|failed| cfg.wait_after(failed).as_millis());
        let expected = [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000];
        assert!(waits.eq(expected));
        assert_eq!(cfg.wait_after(u32::MAX), cfg.longest_wait());
        let mut cfg = cfg;
        cfg.set_waits(Duration::MAX, Duration::MAX).expect("equal");
        assert_eq!(cfg.wait_after(2), Duration::MAX);
    }

    /// Promise: a wait is between its half and its whole, and clients are spread over that time.
    #[test]
    fn waits_are_spread_over_their_second_half() {
        let wait = Duration::from_secs(8);
        let mut eighths = [0; 8];
        for seed in 0..1000 {
            let shortened = Jitter::new(seed).shorten(wait);
            assert!(shortened >= wait / 2 && shortened <= wait, "{shortened:?}");
            eighths[shortened.as_secs().min(7) as usize] += 1;
        }
        assert_eq!(eighths[..4], [0; 4]);
        assert!(eighths[4..].iter().all(|count| *count > 200), "{eighths:?}");
        // The longest time that there is.
        assert!(Jitter::new(1).shorten(Duration::MAX) >= Duration::MAX / 2);
    }

    #[test]
    fn waits_that_cannot_be_are_refused() {
        let mut cfg = ReconnectCfg::new();
        let ms = Duration::from_millis;
        for (first, longest) in [(Duration::ZERO, ms(1)), (ms(2), ms(1))] {
            let error = cfg.set_waits(first, longest).expect_err("refused");
            assert!(error.to_string().contains("at least"), "{error}");
        }
        assert_eq!(cfg, ReconnectCfg::default());
    }
}
