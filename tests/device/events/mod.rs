//! The promises about completion events, one or more tests for each: see docs/completion-events.md.
//!
//! No test passes by luck or by being fast. "No event" is looked at for a short while, and then the
//! test goes on with the same queue, so that an event that comes late disturbs it. Code that may
//! hang if a promise is broken runs in a thread of its own, so that the test fails instead.

mod arming;
mod channels;
mod device;
mod drops;
mod signals;
#[cfg(feature = "sim")]
mod simulated;
mod solicited;
mod support;
mod waits;
