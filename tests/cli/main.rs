//! The command `rpma` of rpma-cli on a device, as a user runs it.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod perf;
mod support;
