//! Checks between two simulated hosts.

mod bad_input;
mod faults;
mod memory;
mod results;
mod world;
