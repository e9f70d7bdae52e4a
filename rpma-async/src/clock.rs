//! The time: the system's, or with the feature `sim` the simulated fabric's, which a test can make
//! its runtime's.

use std::time::{Duration, Instant};

#[cfg(feature = "sim")]
pub(crate) use rpma::sim::now;

#[cfg(not(feature = "sim"))]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The instant `limit` from now. `None` if the clock cannot express it: it is never reached.
pub(crate) fn after(limit: Duration) -> Option<Instant> {
    now().checked_add(limit)
}
