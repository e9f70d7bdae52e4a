//! Checks between two simulated hosts.

mod bad_input;
mod faults;
mod results;
mod world;
