//! Shared receive queues.

#[path = "../common/mod.rs"]
mod common;
mod objects;
mod queues;
mod slots;
mod support;
