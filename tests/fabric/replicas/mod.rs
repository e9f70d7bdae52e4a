//! Commits on several replicas, on the simulated fabric.
//!
//! Promises: an acknowledged record survives a loss of power of all replicas, at every event; no
//! source byte is used again before its release; a replica that is frozen, dead or set aside does
//! not stop the others, also under faults that a seed draws; commits do not allocate; and wrong
//! arguments are refused before any post.

mod acks;
mod allocations;
mod cluster;
mod cuts;
mod example;
mod faults;
mod holding;
mod input;
mod prelude;
mod reuse;
mod rooms;
mod served;
mod set;
mod shared_set;
mod shared_writer;
mod waiting;

/// The example, as a module.
#[path = "../../../examples/sim-replicas/main.rs"]
#[allow(dead_code, reason = "its `main` is not called")]
mod sim_replicas;
