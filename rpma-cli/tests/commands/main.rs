//! The command `rpma` on the simulated fabric, as a user runs it.

mod check;
mod common;
mod doctor;
mod forms;
mod perf;
