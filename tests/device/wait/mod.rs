//! One wait for everything: endpoints, connections, shared receive queues and wake-ups. The order
//! of turns, failures, removals, and event loops.

#[cfg(feature = "sim")]
mod clocks;
mod event_loops;
mod failures;
mod lives;
mod requests;
pub(crate) mod support;
mod turns;
