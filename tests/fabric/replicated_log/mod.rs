//! The example `replicated-log` under faults: see docs/building-a-log.md.

#[path = "../../../examples/replicated-log/main.rs"]
mod example;

mod cuts;
mod faults;
#[allow(clippy::duplicate_mod, reason = "sim-log has the table as well")]
mod found_by;
mod input;
mod network;
mod prelude;
mod restarts;
mod scenes;
mod smoke;
mod storm;
mod sweep;
mod tokio;
mod world;
