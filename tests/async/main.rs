//! The awaited operations of rpma-async: on a device, and on the simulated fabric.

#[path = "../common/mod.rs"]
mod common;
mod operations;
mod parts;
mod support;
