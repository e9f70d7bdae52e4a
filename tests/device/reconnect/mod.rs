//! Clients that connect again. Each test of `codes.rs`, `memory.rs`, `served.rs` and `steps.rs` has
//! both sides in one thread. The others need the simulated fabric: its time, and hosts that fail.
//! `ghosts.rs` and `quorum.rs` have the rules of docs/failures.md, and programs that break
//! them.

mod codes;
#[cfg(feature = "sim")]
mod faults;
#[cfg(feature = "sim")]
mod ghosts;
#[cfg(feature = "sim")]
mod hosts;
#[cfg(feature = "sim")]
mod limits;
mod memory;
#[cfg(feature = "sim")]
mod quorum;
#[cfg(feature = "sim")]
mod replicas;
mod served;
mod steps;
mod support;
#[cfg(feature = "sim")]
mod waits;
