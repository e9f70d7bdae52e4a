//! The keep-alive of connections: a peer that is gone is noticed in time, one that lives never is,
//! and no program sees a probe.
//!
//! Hosts that stop are simulated, on a clock that jumps over waits. Two guests: `cargo xtask test
//! hosts`.

#[cfg(feature = "sim")]
mod away;
#[cfg(feature = "sim")]
mod failing;
#[cfg(feature = "sim")]
mod gone;
#[cfg(feature = "sim")]
mod idle;
mod own;
#[cfg(feature = "sim")]
mod probes;
mod settings;
#[cfg(feature = "sim")]
mod world;
