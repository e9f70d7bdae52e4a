//! The crate `rpma-log` under faults: see docs/building-a-log.md.

mod calls;
mod compaction;
mod cuts;
mod explored;
mod faults;
#[allow(clippy::duplicate_mod, reason = "sim-log has the table as well")]
mod found_by;
mod input;
mod network;
mod prelude;
mod replace;
mod replace_cuts;
mod restarts;
mod returns;
mod scenes;
mod smoke;
mod storm;
mod sweep;
mod tokio;
mod world;
