//! Losses of power on the simulated fabric: the possible contents of persistent memory.
//!
//! Promises: every image that a platform may leave is found, and no other image; a fault in a
//! protocol is found and explained, and a protocol without one raises no alarm.

#[path = "../../../examples/sim-log/main.rs"]
#[expect(dead_code, reason = "its main")]
mod sim_log;

mod acks;
mod again;
mod commits;
mod cuts;
mod declared;
mod early;
mod example;
mod forgotten;
mod group;
mod hosts;
mod joint;
mod large;
mod late;
pub(crate) mod protocols;
mod recovering;
mod reports;
mod rules;
mod served;
mod stores;
mod storm;
mod strays;
mod table;
mod threads;
mod told;
mod torn;
pub(crate) mod world;
