//! Messages: send and receive, immediate data, operations of 0 bytes, gathered and inline data, and
//! what becomes of a message for which there is no receive, or too small a one.

mod arriving;
#[path = "../common/mod.rs"]
mod common;
mod parts;
mod queues;
mod receives;
mod regions;
mod support;
