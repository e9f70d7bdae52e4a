//! Losses of power on the simulated fabric: the possible contents of persistent memory.
//!
//! Promises: every image that a platform may leave is found, and no other image; a fault in a
//! protocol is found and explained, and a protocol without one raises no alarm.

#[path = "../../../examples/sim-log/main.rs"]
#[expect(dead_code, reason = "its main")]
pub(crate) mod sim_log;

pub(crate) mod acks;
pub(crate) mod again;
pub(crate) mod commits;
pub(crate) mod cuts;
mod declared;
pub(crate) mod early;
mod example;
pub(crate) mod forgotten;
pub(crate) mod group;
mod hosts;
pub(crate) mod joint;
mod large;
mod late;
pub(crate) mod protocols;
pub(crate) mod recovering;
mod reports;
pub(crate) mod rules;
pub(crate) mod served;
pub(crate) mod stores;
mod storm;
pub(crate) mod strays;
mod table;
pub(crate) mod threads;
pub(crate) mod told;
pub(crate) mod torn;
pub(crate) mod world;
