//! The command `rpma` of rpma-cli on a device, as a user runs it.

mod check;
mod doctor;
mod perf;
mod prelude;
mod support;
