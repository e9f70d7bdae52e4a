//! Clients that connect again. Each test of `codes.rs`, `memory.rs` and `steps.rs` has both sides in
//! one thread. Those of `limits.rs` and `waits.rs` need the simulated fabric: its time, and hosts
//! that fail.

mod codes;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "sim")]
mod hosts;
#[cfg(feature = "sim")]
mod limits;
mod memory;
mod steps;
mod support;
#[cfg(feature = "sim")]
mod waits;
