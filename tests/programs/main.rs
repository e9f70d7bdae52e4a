//! Tests on a device that start other programs: the examples, the command `rpma`, librpma's programs,
//! and this one under a tracer.

#[path = "../common/mod.rs"]
mod common;

mod cli;
mod examples;
mod interop;
mod porting;
mod swapped;
mod syscalls;
