//! The example `replicated-log` under faults: see docs/building-a-log.md.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/replicated-log/main.rs"]
mod replicated_log;

mod cuts;
mod faults;
mod found_by;
mod input;
mod network;
mod restarts;
mod scenes;
mod smoke;
mod storm;
mod sweep;
mod tokio;
mod world;
