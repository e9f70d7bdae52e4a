//! One wait for everything: endpoints, connections, shared receive queues, wake-ups; whose turn it is, what fails,
//! what is removed, and event loops.

#[path = "../common/mod.rs"]
mod common;
mod event_loops;
mod failures;
mod lives;
mod requests;
mod support;
mod turns;
