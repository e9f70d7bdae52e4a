//! Shared receive queues.

mod objects;
mod queues;
mod slots;
mod support;
