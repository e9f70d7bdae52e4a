//! The time: the system's, or with the feature `sim` the simulated fabric's.

#[cfg(feature = "sim")]
pub(crate) use rpma::sim::now;

#[cfg(not(feature = "sim"))]
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}
