//! Clients that connect again. Both sides of each test are in one thread.

mod codes;
#[path = "../common/mod.rs"]
mod common;
mod memory;
mod steps;
mod support;
